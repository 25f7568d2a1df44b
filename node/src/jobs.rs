//! `feedline job`: lists, shows and cancels the jobs of a cluster, and changes the weights of their mixes.

use feedline_data::messages::{JobState, JobStatus};
use feedline_data::mix::MixChange;
use feedline_data::tenants;
use serde::Serialize;

use crate::cli::{JobAction, JobArgs, RemovedJobsArgs};
use crate::failure::Failure;
use crate::{cluster, output, table};

/// Runs one action.
pub(crate) async fn run(args: JobArgs) -> Result<(), Failure> {
    let coordinator = cluster::connect(&args.cluster.urls(), &args.access.credentials()?).await?;
    let text = match args.action {
        JobAction::List { json: true } => json_line(&coordinator.list_jobs().await?)?,
        JobAction::List { json: false } => render(&coordinator.list_jobs().await?),
        JobAction::Show { job, json: true } => json_line(&coordinator.job_status(job).await?)?,
        JobAction::Show { job, json: false } => render_job(&coordinator.job_status(job).await?),
        JobAction::Cancel { job } => {
            coordinator.cancel_job(job).await?;
            format!("cancelled job {job}\n")
        }
        JobAction::SetWeights { job, weights } => {
            let change = coordinator.set_weights(job, weights).await?;
            format!("job {job}: {}\n", format_mix_change(&change))
        }
    };
    Ok(output::print(&text)?)
}

/// Rejects the removed command `feedline jobs`.
pub(crate) fn reject_removed(args: &RemovedJobsArgs) -> Failure {
    Failure::invalid_usage(format!(
        "`feedline jobs` was replaced by `feedline job`: use `{}`",
        args.replacement()
    ))
}

fn json_line(value: &impl Serialize) -> Result<String, Failure> {
    Ok(serde_json::to_string(value).map_err(Failure::failed)? + "\n")
}

/// Formats one job, with one line per column of the table.
fn render_job(job: &JobStatus) -> String {
    let (epoch, done) = epoch_and_progress(job);
    let mut lines = vec![
        ("id", job.job.to_string()),
        ("tenant", tenants::display_name(&job.tenant).to_owned()),
        ("name", job.name.clone()),
        ("state", format_state(&job.state)),
        ("epoch", epoch),
        ("done", done),
        ("consumers", job.consumers.to_string()),
        ("workers", job.workers.to_string()),
        ("rows", job.delivered.rows.to_string()),
        ("batches", job.delivered.batches.to_string()),
    ];
    lines.extend(EXTRA_COLUMNS.iter().filter_map(|(name, of)| Some((*name, of(job)?))));
    lines.iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect()
}

fn format_mix_change(change: &MixChange) -> String {
    let weights: Vec<String> = change.weights.iter().map(f64::to_string).collect();
    format!("the weights {} apply from row {} of pass {}", weights.join(", "), change.offset, change.pass)
}

fn render(jobs: &[JobStatus]) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut head = ["id", "name", "state", "epoch", "done", "consumers", "rows"].map(str::to_owned).to_vec();
    let has_several_tenants = has_several_tenants(jobs.iter().map(|job| &job.tenant));
    if has_several_tenants {
        head.insert(1, "tenant".to_owned());
    }
    let extras: Vec<&(&str, ExtraColumn)> =
        EXTRA_COLUMNS.iter().filter(|(_, of)| jobs.iter().any(|job| of(job).is_some())).collect();
    head.extend(extras.iter().map(|(name, _)| (*name).to_owned()));
    let rows = jobs.iter().map(|job| {
        let (epoch, done) = epoch_and_progress(job);
        let mut line = vec![
            job.job.to_string(),
            job.name.clone(),
            format_state(&job.state),
            epoch,
            done,
            job.consumers.to_string(),
            job.delivered.rows.to_string(),
        ];
        if has_several_tenants {
            line.insert(1, tenants::display_name(&job.tenant).to_owned());
        }
        line.extend(extras.iter().map(|(_, of)| of(job).unwrap_or_else(|| "-".to_owned())));
        line
    });
    let texts: &[usize] = if has_several_tenants { &[1, 2, 3] } else { &[1, 2] };
    table::render(&[head].into_iter().chain(rows).collect::<Vec<_>>(), texts)
}

/// Returns the value of a column for a job, if the job has one.
type ExtraColumn = fn(&JobStatus) -> Option<String>;

/// Columns that the table contains only if at least one job has a value.
const EXTRA_COLUMNS: [(&str, ExtraColumn); 3] =
    [("slots of ranks", slot_column), ("weights", weight_column), ("wait reason", wait_column)];

/// Returns the ranks of an elastic job with their numbers of slots.
fn slot_column(job: &JobStatus) -> Option<String> {
    let owners: Vec<String> = job.slot_owners.iter().map(|(rank, slots)| format!("{rank}:{slots}")).collect();
    (!owners.is_empty()).then(|| owners.join(" "))
}

/// Returns the latest weights of a job whose weights were changed.
fn weight_column(job: &JobStatus) -> Option<String> {
    let change = job.layout.as_ref()?.mix_changes.last()?;
    let weights: Vec<String> = change.weights.iter().map(f64::to_string).collect();
    Some(weights.join(","))
}

/// Returns why a job waits for its topics, its consumers or the graph that it samples.
fn wait_column(job: &JobStatus) -> Option<String> {
    job.source_error.clone()
}

/// Whether the jobs belong to more than one tenant, so that tables need a column for the tenant.
pub(crate) fn has_several_tenants<'a>(mut tenants: impl Iterator<Item = &'a String>) -> bool {
    let first = tenants.next();
    tenants.any(|tenant| Some(tenant) != first)
}

/// Formats the state of a job, with the reason if it failed.
pub(crate) fn format_state(state: &JobState) -> String {
    match state {
        JobState::Preparing { shards: 0, .. } => "listing".to_owned(),
        JobState::Preparing { indexed, shards, .. } => format!("indexing {indexed}/{shards}"),
        JobState::Running => "running".to_owned(),
        JobState::Completed => "completed".to_owned(),
        JobState::Failed(sentence) => format!("failed: {sentence}"),
        JobState::Cancelled => "cancelled".to_owned(),
    }
}

/// Returns the epoch of the slowest stream, and the percentage of the job's rows that are delivered.
fn epoch_and_progress(job: &JobStatus) -> (String, String) {
    let (Some(layout), Some(position)) = (&job.layout, &job.position) else {
        return (format!("-/{}", job.epochs), "-".to_owned());
    };
    if let Some(growth) = &position.growth {
        let first = growth.growth.segments.first();
        let epoch = first.map_or(growth.growth.epoch, |segment| segment.epoch);
        return (format!("{}/-", epoch + 1), "-".to_owned());
    }
    let streams = || position.streams.iter().zip(0..);
    let epoch = position
        .streams
        .iter()
        .map(|stream| stream.epoch)
        .min()
        .unwrap_or(0)
        .min(job.epochs.saturating_sub(1));
    let per_epoch: u64 = streams().map(|(_, stream)| layout.stream_rows(stream)).sum();
    let all = per_epoch * u64::from(layout.epochs);
    let delivered = |(position, stream): (&feedline_data::layout::StreamPosition, u32)| {
        u64::from(position.epoch) * layout.stream_rows(stream) + position.row
    };
    let open: u64 = position.open_ranges.iter().map(|range| range.end_row - range.start_row).sum();
    let done = streams().map(delivered).sum::<u64>().saturating_sub(open).min(all);
    let share = if all == 0 { 100.0 } else { done as f64 / all as f64 * 100.0 };
    (format!("{}/{}", epoch + 1, job.epochs), format!("{share:.0} %"))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use feedline_data::ids::JobId;
    use feedline_data::layout::Layout;
    use feedline_data::messages::{ConsumerStats, StoreStats};
    use feedline_data::pipeline::Remainder;

    use super::*;

    fn job(id: u64, state: JobState) -> JobStatus {
        JobStatus {
            job: JobId(id),
            tenant: String::new(),
            name: format!("job-{id}"),
            state,
            epochs: 2,
            consumers: 1,
            dataset: None,
            layout: None,
            position: None,
            operators: Vec::new(),
            store: StoreStats::default(),
            worker_cpu: Vec::new(),
            delivered: ConsumerStats { rows: id * 100, ..ConsumerStats::default() },
            worker_peak_rss_bytes: Vec::new(),
            coordinator_peak_rss_bytes: 0,
            workers: 1,
            settled: true,
            slot_owners: Vec::new(),
            source_error: None,
        }
    }

    #[test]
    fn the_table_formats_every_state() {
        let preparing = |indexed, shards| JobState::Preparing {
            indexed,
            shards,
            read_bytes: 0,
            total_bytes: 0,
            workers: 1,
        };
        let jobs = [
            job(1, preparing(0, 0)),
            job(2, preparing(3, 10)),
            job(26, JobState::Failed("no rows".to_owned())),
        ];
        expect![[r#"
            id  name    state            epoch  done  consumers  rows
             1  job-1   listing            -/2     -          1   100
             2  job-2   indexing 3/10      -/2     -          1   200
            1a  job-26  failed: no rows    -/2     -          1  2600
        "#]]
        .assert_eq(&render(&jobs));
        assert_eq!(render(&[]), "no jobs\n");
    }

    #[test]
    fn a_single_job_has_one_line_per_column() {
        let shown = render_job(&JobStatus { slot_owners: vec![(0, 3)], ..job(26, JobState::Running) });
        expect![[r#"
            id              1a
            tenant          -
            name            job-26
            state           running
            epoch           -/2
            done            -
            consumers       1
            workers         1
            rows            2600
            batches         0
            slots of ranks  0:3
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn the_table_has_a_tenant_column_for_several_tenants() {
        let job_of =
            |id: u64, tenant: &str| JobStatus { tenant: tenant.to_owned(), ..job(id, JobState::Running) };
        assert_eq!(
            render(&[job_of(1, "vision"), job_of(2, "vision")]).find("vision"),
            None,
            "a single tenant has no column"
        );
        expect![[r#"
            id  tenant  name   state    epoch  done  consumers  rows
             1  vision  job-1  running    -/2     -          1   100
             2  -       job-2  running    -/2     -          1   200
        "#]]
        .assert_eq(&render(&[job_of(1, "vision"), job_of(2, "")]));
    }

    #[test]
    fn slots_and_changed_weights_have_columns_if_a_job_has_them() {
        let layout = Layout {
            runs: Default::default(),
            mix_changes: vec![MixChange { pass: 0, offset: 500, weights: vec![3.0, 0.5] }],
            unbounded: false,
            indivisible: false,
            dataset_rows: 1000,
            passes: 1,
            epochs: 2,
            streams: 1,
            batch_rows: 10,
            remainder: Remainder::Emit,
            changes_rows: false,
            split_rows: 100,
            group_rows: 100,
            coordinated: false,
        };
        let jobs = [
            JobStatus { slot_owners: vec![(0, 3), (2, 1)], ..job(1, JobState::Running) },
            JobStatus { layout: Some(layout), ..job(2, JobState::Running) },
        ];
        expect![[r#"
            id  name   state    epoch  done  consumers  rows  slots of ranks  weights
             1  job-1  running    -/2     -          1   100         0:3 2:1        -
             2  job-2  running    -/2     -          1   200               -    3,0.5
        "#]]
        .assert_eq(&render(&jobs));
    }

    #[test]
    fn a_job_that_waits_has_a_reason() {
        let reason = "the job waits for its consumers: 9 blocks are not delivered".to_owned();
        let waiting = JobStatus { source_error: Some(reason), ..job(1, JobState::Running) };
        let shown = render_job(&waiting);
        assert!(shown.contains("\nwait reason     the job waits for its consumers: 9 blocks"), "{shown}");
        assert!(render(&[waiting]).contains("wait reason"));
    }
}
