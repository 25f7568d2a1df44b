//! `feedline run`: opens a job, consumes its batches and prints a report.

pub(crate) mod consume;
mod consumer;
mod position;
mod report;
mod stall_watch;
mod step_time;

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use feedline_client::audit::{Audit, AuditReport};
use feedline_client::{ClientError, ClientSettings, Job, digest};
use feedline_data::checkpoint::Position;
use feedline_data::layout::Layout;
use feedline_data::messages::{ConsumerStats, JobSpec, JobStatus};
use feedline_data::pipeline::Pipeline;
use tokio_util::sync::CancellationToken;

use self::consume::{Checkpoints, DeliveredRows, DeliveryEnd, SharedAudit};
use self::consumer::{ConsumerOptions, RunConsumer};
use self::position::{Digests, PositionFile};
use self::report::{MAX_LISTED, PeakRss, RunReport, SkippedRowsReport, UnreadablePartsReport};
pub(crate) use self::step_time::StepTime;
use crate::access::ServerSecurity;
use crate::cli::RunArgs;
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::http::HttpAddresses;
use crate::progress::Progress;
use crate::{entropy, http, pipeline_file, signals};

/// Minimum size of the receive buffer of a consumer, regardless of the number of consumers in the process.
const MIN_BUFFER_BYTES: u64 = 32 << 20;

/// Runs a pipeline and prints the report. `started` is the start time of the process.
pub(crate) async fn run(args: RunArgs, started: Instant) -> Result<(), Failure> {
    let pipeline = pipeline_file::load(&args.file)?;
    if args.audit && pipeline.source.is_unbounded() {
        return Err(Failure::invalid_usage(
            "`--audit` compares the delivered rows with those of the whole job, but the source has `until: none`; remove `--audit`",
        ));
    }
    let saved = match &args.position {
        Some(path) => {
            position::check_writable(path)?;
            PositionFile::read(path)?
        }
        None => None,
    };
    let stop = signals::watch()?;
    let security = ServerSecurity::new(&args.server_access)?;
    let addresses = HttpAddresses { http: args.http.as_deref(), health: None };
    let http = http::start(addresses, &security, None).await?;
    let local = (&args.local, args.auto_cache.auto_cache);
    let urls = args.remote.urls();
    let cluster = tokio::select! {
        cluster = LocalCluster::open(&urls, &args.server_access.access, local) => cluster?,
        () = stop.cancelled() => return Err(interrupted_before_first_batch()),
    };
    let cluster = cluster.with_transport(args.transport);
    http.set_ready(Box::new(|| Ok(())));
    http.export_jobs(cluster.local_coordinator());
    let spec = spec(&args, pipeline, saved.as_ref());
    let job_name = spec.name.clone();
    let delivery = open_and_deliver(&args, &cluster, spec, saved.as_ref(), &stop).await;
    cluster.shutdown().await;
    http.shutdown().await;
    let delivery = delivery?;
    let report = build_report(&args, job_name, &delivery, started);
    args.report.print(&report, RunReport::to_text)?;
    exit_result(&args, &report, delivery.end)
}

fn spec(args: &RunArgs, pipeline: Pipeline, saved: Option<&PositionFile>) -> JobSpec {
    let name = args.job.clone().unwrap_or_else(|| format!("{}-{}", pipeline.name, entropy::name_suffix()));
    let saved_virtual_consumers = saved.map(|saved| saved.position.virtual_consumers);
    JobSpec {
        // The coordinator sets the tenant from the token.
        tenant: String::new(),
        name,
        pipeline,
        epochs: args.epochs,
        virtual_consumers: args.virtual_consumers.or(saved_virtual_consumers).unwrap_or(args.consumers),
        consumers: args.consumers,
        start: saved.map(|saved| saved.position.clone()),
        audit: args.audit,
        reindex: false,
        accept_reuploaded: args.accept_reuploaded,
        accept_changed_pipeline: args.accept_changed_pipeline,
        index_only: false,
        weight: args.weight,
        elastic: args.elastic,
    }
}

async fn open_and_deliver(
    args: &RunArgs,
    cluster: &LocalCluster,
    spec: JobSpec,
    saved: Option<&PositionFile>,
    stop: &CancellationToken,
) -> Result<DeliveredRows, Failure> {
    let equal_share = ClientSettings::default().buffer_bytes / u64::from(args.consumers);
    let buffer_bytes = args.buffer.unwrap_or(equal_share.max(MIN_BUFFER_BYTES));
    let feature_cache_bytes = args.feature_cache.unwrap_or(0);
    let settings = ClientSettings { buffer_bytes, feature_cache_bytes, ..ClientSettings::default() };
    let job = tokio::select! {
        job = Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec.clone(), settings) => job?,
        () = stop.cancelled() => return Err(interrupted_before_first_batch()),
    };
    let delivery = deliver(args, cluster, &job, &spec, saved, stop).await;
    if let Err(failure) = &delivery
        && args.rank.is_none()
        && should_cancel(failure)
        && !cluster.is_embedded()
    {
        consume::cancel_job(&job).await;
    }
    delivery
}

/// Whether this run should cancel its job after `failure`. Returns false if another run has superseded this run, or if
/// the job has ended.
fn should_cancel(failure: &Failure) -> bool {
    use ClientError::{Cancelled, JobFailed, Superseded, UnknownJob};
    !matches!(failure.client_error(), Some(Superseded(_) | Cancelled | JobFailed(_) | UnknownJob(_)))
}

async fn deliver(
    args: &RunArgs,
    cluster: &LocalCluster,
    job: &Job,
    spec: &JobSpec,
    saved: Option<&PositionFile>,
    stop: &CancellationToken,
) -> Result<DeliveredRows, Failure> {
    let progress = Progress::start();
    let Some(ready) = consume::wait_until_ready(job, &progress, stop).await? else {
        return Err(interrupted_before_first_batch());
    };
    if let Some(dataset) = ready.dataset.as_ref().filter(|dataset| !dataset.changes.is_empty()) {
        eprintln!("feedline: {}", dataset.changes.describe(dataset.shards));
    }
    if let Some(saved) = saved {
        announce_resume(args, saved, &ready);
    }
    let (defects, audit) = inspect_dataset(args, cluster, job, spec, &ready).await?;
    let live_stats =
        Arc::new(Mutex::new(vec![ConsumerStats::default(); consumer_indexes(args).end as usize]));
    let options = ConsumerOptions {
        order: spec.pipeline.order,
        digest: !args.no_digest,
        step: args.step_ms.clone(),
        audit: audit.clone(),
        live_stats: Arc::clone(&live_stats),
    };
    let digests = saved.map(PositionFile::digests).transpose()?.unwrap_or_default();
    let consumers = build_consumers(args, job, &options, digests);
    let rows_before = saved.map_or(0, |saved| saved.rows);
    let checkpoints = args.position.as_deref().map(|path| Checkpoints { path, rows_before });
    let requested = Instant::now();
    let display = consume::RunDisplay::new(&progress, &live_stats, options.step.longest());
    let (mut consumers, end) = consume::run(job, consumers, checkpoints.as_ref(), display, stop).await?;
    drop(progress);
    consumers.iter_mut().for_each(RunConsumer::account_trailing);
    let position = if end == DeliveryEnd::Complete { None } else { job.position().await? };
    let status = if args.rank.is_some() && end != DeliveryEnd::Complete {
        for consumer in &mut consumers {
            consumer.leave().await?;
        }
        job.status().await?
    } else {
        if end != DeliveryEnd::Complete {
            consume::cancel_job(job).await;
        }
        consume::wait_until_settled(job).await?
    };
    let audit = audit.map(|audit| report_audit(&audit, status.layout.as_ref(), position.as_ref()));
    Ok(DeliveredRows { consumers, end, requested, audit, defects, status })
}

/// Creates the consumers of this run. Each consumer continues from the digests of its streams.
fn build_consumers(
    args: &RunArgs,
    job: &Job,
    options: &ConsumerOptions,
    digests: Digests,
) -> Vec<RunConsumer> {
    let session = entropy::session_id();
    let mut content = Some(digests.content);
    let consumer = |index: u32| {
        let streams = digests.streams.iter().filter(|(stream, _)| *stream % args.consumers == index);
        let own = Digests {
            streams: streams.map(|(stream, digest)| (*stream, digest.clone())).collect(),
            content: content.take().unwrap_or_default(),
        };
        let row_limit = args.limit.map(|limit| limit_share(limit, args.consumers, index));
        RunConsumer::new(index, job.consumer(index, session), options.clone(), row_limit, own)
    };
    consumer_indexes(args).map(consumer).collect()
}

/// Returns the indexes of the consumers of this run.
fn consumer_indexes(args: &RunArgs) -> Range<u32> {
    args.rank.map_or(0..args.consumers, |rank| rank..rank + 1)
}

/// Returns the part of `limit` for consumer `index`. The parts differ by at most one row.
fn limit_share(limit: u64, consumers: u32, index: u32) -> u64 {
    let consumers = u64::from(consumers);
    limit / consumers + u64::from(u64::from(index) < limit % consumers)
}

/// Warns about unreadable parts of the dataset, and creates the audit for `--audit`.
async fn inspect_dataset(
    args: &RunArgs,
    cluster: &LocalCluster,
    job: &Job,
    spec: &JobSpec,
    ready: &JobStatus,
) -> Result<(UnreadablePartsReport, Option<SharedAudit>), Failure> {
    // A job that failed during preparation has no dataset. The request for the first batch returns the reason.
    let (Some(dataset), Some(layout)) = (&ready.dataset, &ready.layout) else {
        return Ok(Default::default());
    };
    if dataset.defects == 0 && !args.audit {
        return Ok(Default::default());
    }
    let manifest = cluster.coordinator.manifest(job.id()).await?;
    let defects = UnreadablePartsReport::of(&manifest);
    if let Some(warning) = defects.warning() {
        eprintln!("feedline: {warning}");
    }
    let audit = || Audit::new(layout.clone(), &manifest, &spec.pipeline, spec.start.as_ref());
    Ok((defects, args.audit.then(|| Arc::new(Mutex::new(audit())))))
}

fn report_audit(audit: &SharedAudit, layout: Option<&Layout>, position: Option<&Position>) -> AuditReport {
    let mut audit = audit.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(layout) = layout {
        audit.set_mix(&layout.mix_changes);
    }
    audit.report(position)
}

fn announce_resume(args: &RunArgs, saved: &PositionFile, ready: &JobStatus) {
    let file = args.position.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let streams = || (0..).zip(&saved.position.streams);
    let at_end = |layout: &feedline_data::layout::Layout| {
        saved.position.open_ranges.is_empty()
            && streams().all(|(stream, position)| layout.is_end(stream, *position))
    };
    if ready.layout.as_ref().is_some_and(at_end) {
        eprintln!(
            "feedline: no rows remain: {file} is at the end of the job; remove the file to start again"
        );
    } else if let Some(first) = saved.position.streams.iter().min() {
        eprintln!("feedline: resuming at epoch {}, row {} (from {file})", first.epoch, first.row);
    }
}

fn interrupted_before_first_batch() -> Failure {
    Failure::Interrupted("interrupted before the first batch".to_owned())
}

/// Returns the rows per second, excluding the first two seconds after the first batch; `None` for shorter runs.
fn steady_rate(consumers: &[RunConsumer]) -> Option<f64> {
    let after_warm_up =
        |consumer: &RunConsumer| consumer.warm_up_end.map(|(at, rows)| (at, consumer.stats().rows - rows));
    let rows: u64 = consumers.iter().filter_map(after_warm_up).map(|(_, rows)| rows).sum();
    let from = consumers.iter().filter_map(after_warm_up).map(|(at, _)| at).min()?;
    let seconds = (consumers.iter().filter_map(|consumer| consumer.last_batch).max()? - from).as_secs_f64();
    (seconds > 0.0).then(|| rows as f64 / seconds)
}

fn build_report(args: &RunArgs, job: String, delivery: &DeliveredRows, started: Instant) -> RunReport {
    let consumers = &delivery.consumers;
    let mut total = ConsumerStats::default();
    let mut skipped = SkippedRowsReport::default();
    for consumer in consumers {
        let stats = consumer.stats();
        total.add(&stats);
        skipped.count += consumer.skipped.count;
        skipped.first.extend_from_slice(&consumer.skipped.first);
    }
    skipped.first.sort_by_key(|row| row.row);
    skipped.first.truncate(MAX_LISTED);
    let first = consumers.iter().filter_map(|consumer| consumer.first_batch).min();
    let last = consumers.iter().filter_map(|consumer| consumer.last_batch).max();
    let seconds = last.map_or(0.0, |last| (last - delivery.requested).as_secs_f64());
    let epochs = consumers.iter().filter_map(|consumer| consumer.epochs.clone());
    let epochs = epochs.reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()));
    let streams =
        delivery.status.position.as_ref().map_or(args.consumers, |position| position.virtual_consumers);
    let digests = (!args.no_digest).then(|| consume::merge_digests(consumers));
    RunReport {
        job,
        rows: total.rows,
        batches: total.batches,
        epochs: epochs.map_or(0, |epochs| epochs.end() - epochs.start() + 1),
        seconds,
        rows_per_s: if seconds > 0.0 { total.rows as f64 / seconds } else { 0.0 },
        steady_rows_per_s: steady_rate(consumers),
        bytes: total.bytes,
        stall_seconds: total.stall_ns as f64 / 1e9,
        step_seconds: total.step_ns as f64 / 1e9,
        setup_seconds: (delivery.requested - started).as_secs_f64(),
        first_batch_seconds: first.map(|first| (first - started).as_secs_f64()),
        consumers: consumer_indexes(args).len() as u32,
        // In an elastic job, slots move between ranks, so no rank sees all batches of a slot in order.
        digest: digests.as_ref().filter(|_| !args.elastic).map(|digests| combine_digests(digests, streams)),
        content_digest: digests.map(|digests| digests.content.to_hex()),
        audit: delivery.audit,
        skipped,
        defects: delivery.defects.clone(),
        columns: delivery.status.dataset.as_ref().map(Into::into).unwrap_or_default(),
        operators: delivery.status.operators.iter().map(Into::into).collect(),
        store: (&delivery.status.store).into(),
        worker_cpu: delivery.status.worker_cpu.iter().map(|(_, cpu)| cpu.into()).collect(),
        peak_rss_bytes: PeakRss {
            client: feedline_common::process::peak_rss_bytes(),
            coordinator: delivery.status.coordinator_peak_rss_bytes,
            workers: delivery.status.worker_peak_rss_bytes.iter().map(|(_, bytes)| *bytes).collect(),
        },
    }
}

/// Combines the digests of all virtual consumers, including those without batches.
fn combine_digests(digests: &Digests, streams: u32) -> String {
    let stream = |stream| digests.streams.get(&stream).cloned().unwrap_or_default();
    let streams: Vec<_> = (0..streams).map(stream).collect();
    digest::combine(&streams)
}

/// Returns the result of the run, which determines the exit status.
fn exit_result(args: &RunArgs, report: &RunReport, end: DeliveryEnd) -> Result<(), Failure> {
    if let Some(audit) = report.audit.filter(|audit| !audit.is_exact()) {
        return Err(Failure::failed(format!(
            "the audit found {} missing, {} repeated and {} unexpected rows; this is a bug in feedline, please report it",
            audit.missing, audit.repeated, audit.unexpected
        )));
    }
    match (end, &args.position) {
        (DeliveryEnd::Interrupted, None) if args.rank.is_some() => {
            eprintln!("feedline: left the job, which continues with the remaining ranks");
            Ok(())
        }
        (DeliveryEnd::Interrupted, None) => {
            Err(Failure::Interrupted("interrupted; pass --position FILE to make runs resumable".to_owned()))
        }
        (DeliveryEnd::Interrupted, Some(path)) => {
            eprintln!("feedline: interrupted; run again with --position {} to resume", path.display());
            Ok(())
        }
        (DeliveryEnd::Complete | DeliveryEnd::Limit, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_divided_evenly() {
        let shares: Vec<u64> = (0..3).map(|index| limit_share(10, 3, index)).collect();
        assert_eq!(shares, [4, 3, 3]);
        assert_eq!(limit_share(1, 2, 1), 0);
    }

    #[test]
    fn a_superseded_run_does_not_cancel_its_job() {
        let superseded = ClientError::Superseded("taken over".to_owned());
        assert!(!should_cancel(&superseded.into()));
        assert!(!should_cancel(&ClientError::Cancelled.into()));
        assert!(should_cancel(&ClientError::Closed.into()));
        assert!(should_cancel(&Failure::failed("the position cannot be written")));
    }
}
