//! `feedline lint`: finds errors in a pipeline and its dataset before a job starts. It lists the dataset and reads a sample
//! of it, never all data.

mod checks;
mod finding;
mod listing;
mod report;
mod rows;
mod sampling;
mod sizes;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::{OnError, Pipeline, PipelinePart};
use feedline_worker::ObjectAccess;
use feedline_worker::sample::PipelineSampler;

use self::checks::Check;
use self::finding::Finding;
pub(crate) use self::report::{ColumnReport, columns};
use self::report::{DatasetReport, LintReport};
use crate::cli::{FunctionArgs, StoreArgs, SwitchArg};
use crate::failure::Failure;
use crate::output::ReportFormat;
use crate::{pipeline_file, signals, store_access};

/// Time for which a failing request to a store is retried. It is short, because a user waits for the report.
pub(crate) const RETRY_BUDGET: Duration = Duration::from_secs(5);

/// Arguments of `feedline lint`.
#[derive(Args, Debug, Clone)]
#[command(after_help = "Exit status: 0 without errors, 1 with --strict and a warning, 2 with an error.\n\n\
    Examples:\n  \
    feedline lint pipeline.yaml\n  \
    feedline lint pipeline.yaml --consumers 1024 --strict --format json\n  \
    feedline lint pipeline.yaml --all")]
pub(crate) struct LintArgs {
    /// Pipeline file; its relative paths start at the working directory.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Check the footer or the beginning of each shard, instead of 32 shards.
    #[arg(long)]
    all: bool,
    /// Exit with status 1 if there are warnings.
    #[arg(long)]
    strict: bool,
    /// Number of consumers of the job, which the number of rows is compared with.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    consumers: u32,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "report", value_enum, value_name = "FORMAT", default_value_t)]
    format: ReportFormat,
    #[command(flatten)]
    stores: StoreArgs,
    #[command(flatten)]
    functions: FunctionArgs,
}

/// Checks the pipeline and prints the report.
pub(crate) async fn run(args: LintArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let stop = signals::watch()?;
    let mut report = tokio::select! {
        report = lint(&args) => report?,
        () = stop.cancelled() => return Err(Failure::Interrupted("interrupted before the end of the checks".to_owned())),
    };
    report.seconds = started.elapsed().as_secs_f64();
    args.format.print(&report, LintReport::to_text)?;
    if report.errors > 0 {
        return Err(Failure::invalid_usage(format!("{}; correct the errors", report.verdict())));
    }
    if report.warnings > 0 && args.strict {
        return Err(Failure::failed(format!("{}, and --strict does not allow warnings", report.verdict())));
    }
    Ok(())
}

async fn lint(args: &LintArgs) -> Result<LintReport, Failure> {
    let mut report = LintReport { file: args.file.display().to_string(), ..LintReport::default() };
    report.text = std::fs::read_to_string(&args.file).unwrap_or_default();
    let pipeline = match pipeline_file::read(&args.file) {
        Ok(pipeline) => pipeline,
        Err(failure) => {
            report.set_findings(vec![invalid_file(&report.file, &failure.to_string())]);
            return Ok(report);
        }
    };
    report.pipeline = Some(pipeline.name.clone());
    let access = store_access::for_preflight(&args.stores, RETRY_BUDGET)?;
    let (dataset, mut findings) = inspect(&pipeline_file::resolve(pipeline.clone())?, access, args).await;
    report.dataset = dataset;
    for finding in &mut findings {
        finding.line = finding.part.and_then(|part| pipeline.line_in(&report.text, part));
    }
    report.set_findings(findings);
    Ok(report)
}

/// Creates the finding for an invalid pipeline file. The sentence starts with the file, and with the line if it is known.
fn invalid_file(file: &str, sentence: &str) -> Finding {
    let rest = sentence.strip_prefix(file).and_then(|rest| rest.strip_prefix(':'));
    let Some(rest) = rest else { return Finding::new(Check::PipelineFile, sentence) };
    match rest.split_once(": ").map(|(line, message)| (line.parse(), message)) {
        Some((Ok(line), message)) => {
            Finding { line: Some(line), ..Finding::new(Check::PipelineFile, message) }
        }
        _ => Finding::new(Check::PipelineFile, rest.trim_start()),
    }
}

/// Runs all checks that need the dataset.
async fn inspect(
    pipeline: &Pipeline,
    access: ObjectAccess,
    args: &LintArgs,
) -> (Option<DatasetReport>, Vec<Finding>) {
    let unknown = check_credentials(pipeline, &access);
    if !unknown.is_empty() {
        return (None, unknown);
    }
    let functions = args.functions.settings(SwitchArg::On);
    let sampler = match PipelineSampler::new(pipeline.clone(), access, functions) {
        Ok(sampler) => sampler,
        Err(error) => {
            let field = if pipeline.source.mix.is_some() { "mix" } else { "url" };
            let finding = Finding::new(Check::Url, error.to_string());
            return (None, vec![finding.in_part(PipelinePart::Source(field))]);
        }
    };
    let listed = listing::list(sampler.dataset(), pipeline.source.mix.is_some()).await;
    let mut findings = listed.findings;
    // Jobs do not read the shards that the first filter excludes.
    let shards = match sampler.exclude(listed.shards) {
        Ok(shards) => shards,
        Err(error) => {
            findings.push(Finding::new(Check::NoRows, error.to_string()).in_part(PipelinePart::Operator(0)));
            return (None, findings);
        }
    };
    if shards.is_empty() {
        return (None, findings);
    }
    findings.extend(check_listed(pipeline, &shards));
    let is_complete = findings.iter().all(|finding| finding.severity != checks::Severity::Error);
    let selected = sampling::select(&shards, args.all);
    let mut sample = sampling::read(sampler.dataset(), selected, pipeline.on_error == OnError::Fail).await;
    let count = sampling::count_rows(&shards, &sample);
    let mut dataset = DatasetReport {
        shards: shards.len() as u64,
        bytes: shards.iter().map(|shard| shard.size_bytes).sum(),
        sampled_shards: sample.sampled,
        read_bytes: sample.shards.iter().map(|(_, sampled)| sampled.store_bytes).sum(),
        requests: sample.shards.iter().map(|(_, sampled)| u64::from(sampled.store_requests)).sum(),
        ..DatasetReport::default()
    };
    dataset.set_rows(count);
    let is_readable = sample.shards.len() as u64 == sample.sampled;
    findings.append(&mut sample.findings);
    dataset.columns_are_exact = sampling::are_columns_exact(&shards, &sample);
    match sampling::merge_columns(&sample, &pipeline.source, dataset.columns_are_exact) {
        Err(finding) => findings.push(finding),
        Ok(Some(source)) => {
            let checked = rows::check(pipeline, &sampler, &sample, &source).await;
            findings.extend(checked.findings);
            dataset.sampled_rows = checked.rows;
            dataset.columns = Some(columns(&source));
            dataset.batch_columns = checked.output.as_ref().map(columns);
        }
        Ok(None) => {}
    }
    if is_complete && is_readable {
        let block_rows = sampling::mean_block_rows(&sample);
        findings.extend(sizes::check(pipeline, count, block_rows, args.consumers));
    }
    (Some(dataset), finding::combine_shards(findings))
}

/// Checks the names of the credentials and the URLs that they apply to.
fn check_credentials(pipeline: &Pipeline, access: &ObjectAccess) -> Vec<Finding> {
    let datasets = pipeline.source.datasets().into_iter();
    let named = datasets.filter_map(|source| Some((source.credentials.as_deref()?, &source.url)));
    let rejected = named.filter_map(|(name, urls)| access.reads().check_credentials(name, urls).err());
    let field = if pipeline.source.mix.is_some() { "mix" } else { "credentials" };
    rejected
        .map(|sentence| Finding::new(Check::Credentials, sentence).in_part(PipelinePart::Source(field)))
        .collect()
}

/// Checks the names and sizes of the shards of each dataset.
fn check_listed(pipeline: &Pipeline, shards: &[ShardRef]) -> Vec<Finding> {
    let datasets = (0..).zip(pipeline.source.datasets());
    let of_part = |part: u32| shards.iter().filter(|shard| shard.part == part).collect::<Vec<_>>();
    datasets.flat_map(|(part, source)| listing::check_shards(&of_part(part), source.format)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_file_has_a_line() {
        let finding = invalid_file("p.yaml", "p.yaml:7: unknown key `siez` in batch; did you mean `size`?");
        assert_eq!(
            (finding.line, finding.message.as_str()),
            (Some(7), "unknown key `siez` in batch; did you mean `size`?")
        );
        let finding = invalid_file("p.yaml", "p.yaml: the file is empty");
        assert_eq!((finding.line, finding.message.as_str()), (None, "the file is empty"));
        let finding = invalid_file("p.yaml", "cannot read p.yaml: no such file");
        assert_eq!((finding.line, finding.message.as_str()), (None, "cannot read p.yaml: no such file"));
    }
}
