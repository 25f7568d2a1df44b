//! `feedline run`: opens a job, takes its batches and reports.

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
use self::report::{DefectsReport, LISTED, PeakRss, RunReport, SkippedRowsReport};
pub(crate) use self::step_time::StepTime;
use crate::access::ServerSecurity;
use crate::cli::{ReportFormat, RunArgs};
use crate::cluster::LocalCluster;
use crate::failure::Failure;
use crate::progress::Progress;
use crate::{entropy, http, output, pipeline_file, signals};

/// A consumer that shares a process with many others still buffers this much.
const LEAST_BUFFER_BYTES: u64 = 32 << 20;

/// Runs a pipeline and prints the report. `started` is when the process started.
pub(crate) async fn run(args: RunArgs, started: Instant) -> Result<(), Failure> {
    let pipeline = pipeline_file::load(&args.file)?;
    let saved = match &args.position {
        Some(path) => {
            position::check_writable(path)?;
            PositionFile::read(path)?
        }
        None => None,
    };
    let stop = signals::watch()?;
    let http = http::start(args.http.as_deref(), &ServerSecurity::new(&args.guard)?, None).await?;
    let cluster =
        LocalCluster::open(&args.remote.urls(), &args.guard.access, &args.local).await?.by(args.transport);
    if let Some(http) = &http {
        http.set_ready(Box::new(|| Ok(())));
    }
    let spec = spec(&args, pipeline, saved.as_ref());
    let job_name = spec.name.clone();
    let delivery = open_and_deliver(&args, &cluster, spec, saved.as_ref(), &stop).await;
    cluster.shutdown().await;
    if let Some(http) = http {
        http.shutdown().await;
    }
    let delivery = delivery?;
    let report = build_report(&args, job_name, &delivery, started);
    let text = match args.report {
        ReportFormat::Text => report.to_text(),
        ReportFormat::Json => report.to_json().map_err(Failure::failed)?,
    };
    output::print(&text)?;
    verdict(&args, &report, delivery.end)
}

fn spec(args: &RunArgs, pipeline: Pipeline, saved: Option<&PositionFile>) -> JobSpec {
    let name = args.job.clone().unwrap_or_else(|| format!("{}-{}", pipeline.name, entropy::name_suffix()));
    let saved_slots = saved.map(|saved| saved.position.virtual_consumers);
    JobSpec {
        // Whoever lets a caller in says whose it is.
        tenant: String::new(),
        name,
        pipeline,
        epochs: args.epochs,
        virtual_consumers: args.virtual_consumers.or(saved_slots).unwrap_or(args.consumers),
        consumers: args.consumers,
        start: saved.map(|saved| saved.position.clone()),
        audit: args.audit,
        reindex: false,
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
    let shared = ClientSettings::default().buffer_bytes / u64::from(args.consumers);
    let buffer_bytes = args.buffer.unwrap_or(shared.max(LEAST_BUFFER_BYTES));
    let settings = ClientSettings { buffer_bytes, ..ClientSettings::default() };
    let job = tokio::select! {
        job = Job::open(Arc::clone(&cluster.coordinator), cluster.directory(), spec.clone(), settings) => job?,
        () = stop.cancelled() => return Err(interrupted_early()),
    };
    let delivery = deliver(args, cluster, &job, &spec, saved, stop).await;
    if let Err(failure) = &delivery
        && args.rank.is_none()
        && is_ours_to_end(failure)
        && !cluster.is_embedded()
    {
        consume::abandon(&job).await;
    }
    delivery
}

/// Whether a job that ended this run with `failure` is left for this run to cancel: another run may have taken it over,
/// and then goes on with it; or it is at its end already.
fn is_ours_to_end(failure: &Failure) -> bool {
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
        return Err(interrupted_early());
    };
    if let Some(saved) = saved {
        announce_resume(args, saved, &ready);
    }
    let (defects, audit) = inspect_dataset(args, cluster, job, spec, &ready).await?;
    let board = Arc::new(Mutex::new(vec![ConsumerStats::default(); numbers(args).end as usize]));
    let instructions = ConsumerOptions {
        order: spec.pipeline.order,
        digest: !args.no_digest,
        step: args.step_ms.clone(),
        audit: audit.clone(),
        board: Arc::clone(&board),
    };
    let digests = saved.map(PositionFile::digests).transpose()?.unwrap_or_default();
    let seats = build_seats(args, job, &instructions, digests);
    let rows_before = saved.map_or(0, |saved| saved.rows);
    let checkpoints = args.position.as_deref().map(|path| Checkpoints { path, rows_before });
    let requested = Instant::now();
    let watch = consume::RunDisplay::new(&progress, &board, instructions.step.longest());
    let (mut seats, end) = consume::run(job, seats, checkpoints.as_ref(), watch, stop).await?;
    drop(progress);
    seats.iter_mut().for_each(RunConsumer::account_trailing);
    let place = if end == DeliveryEnd::Complete { None } else { job.position().await? };
    let status = if args.rank.is_some() && end != DeliveryEnd::Complete {
        for seat in &mut seats {
            seat.leave().await?;
        }
        job.status().await?
    } else {
        if end != DeliveryEnd::Complete {
            consume::abandon(job).await;
        }
        consume::wait_until_settled(job).await?
    };
    let audit = audit.map(|audit| report_audit(&audit, status.layout.as_ref(), place.as_ref()));
    Ok(DeliveredRows { seats, end, requested, audit, defects, status })
}

/// Seats for all consumers; each goes on from the digests that are its own.
fn build_seats(
    args: &RunArgs,
    job: &Job,
    instructions: &ConsumerOptions,
    digests: Digests,
) -> Vec<RunConsumer> {
    let session = entropy::session_id();
    let mut content = Some(digests.content);
    let seat = |index: u32| {
        let streams = digests.streams.iter().filter(|(stream, _)| *stream % args.consumers == index);
        let own = Digests {
            streams: streams.map(|(stream, digest)| (*stream, digest.clone())).collect(),
            content: content.take().unwrap_or_default(),
        };
        let share = args.limit.map(|limit| share(limit, args.consumers, index));
        RunConsumer::new(index, job.consumer(index, session), instructions.clone(), share, own)
    };
    numbers(args).map(seat).collect()
}

/// The consumers of this run.
fn numbers(args: &RunArgs) -> Range<u32> {
    args.rank.map_or(0..args.consumers, |rank| rank..rank + 1)
}

/// The part of `limit` that consumer `index` takes: parts differ by at most one row.
fn share(limit: u64, consumers: u32, index: u32) -> u64 {
    let consumers = u64::from(consumers);
    limit / consumers + u64::from(u64::from(index) < limit % consumers)
}

/// Warns of what is left out of the dataset, and starts the audit that was asked for.
async fn inspect_dataset(
    args: &RunArgs,
    cluster: &LocalCluster,
    job: &Job,
    spec: &JobSpec,
    ready: &JobStatus,
) -> Result<(DefectsReport, Option<SharedAudit>), Failure> {
    // A job that failed while it was prepared has no dataset; the first batch asked for tells why.
    let (Some(dataset), Some(layout)) = (&ready.dataset, &ready.layout) else {
        return Ok(Default::default());
    };
    if dataset.defects == 0 && !args.audit {
        return Ok(Default::default());
    }
    let manifest = cluster.coordinator.manifest(job.id()).await?;
    let defects = DefectsReport::of(&manifest);
    if let Some(warning) = defects.warning() {
        eprintln!("feedline: {warning}");
    }
    let audit = || Audit::new(layout.clone(), &manifest, &spec.pipeline, spec.start.as_ref());
    Ok((defects, args.audit.then(|| Arc::new(Mutex::new(audit())))))
}

fn report_audit(audit: &SharedAudit, layout: Option<&Layout>, place: Option<&Position>) -> AuditReport {
    let mut audit = audit.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(layout) = layout {
        audit.set_mix(&layout.mix);
    }
    audit.report(place)
}

fn announce_resume(args: &RunArgs, saved: &PositionFile, ready: &JobStatus) {
    let file = args.position.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let streams = || (0..).zip(&saved.position.streams);
    let at_end = |layout: &feedline_data::layout::Layout| {
        saved.position.open.is_empty() && streams().all(|(stream, place)| layout.is_end(stream, *place))
    };
    if ready.layout.as_ref().is_some_and(at_end) {
        eprintln!("feedline: {file} is at the end of the job: nothing is left; remove it to start again");
    } else if let Some(place) = saved.position.streams.iter().min() {
        eprintln!("feedline: resuming at epoch {}, row {} (from {file})", place.epoch, place.row);
    }
}

fn interrupted_early() -> Failure {
    Failure::Interrupted("interrupted before the first batch".to_owned())
}

/// Rows per second from the third second after the first batch on; `None` where there are none.
fn steady_rate(seats: &[RunConsumer]) -> Option<f64> {
    let warm = |seat: &RunConsumer| seat.warm_from.map(|(at, rows)| (at, seat.stats().rows - rows));
    let rows: u64 = seats.iter().filter_map(warm).map(|(_, rows)| rows).sum();
    let from = seats.iter().filter_map(warm).map(|(at, _)| at).min()?;
    let seconds = (seats.iter().filter_map(|seat| seat.last_batch).max()? - from).as_secs_f64();
    (seconds > 0.0).then(|| rows as f64 / seconds)
}

fn build_report(args: &RunArgs, job: String, delivery: &DeliveredRows, started: Instant) -> RunReport {
    let seats = &delivery.seats;
    let mut total = ConsumerStats::default();
    let mut skipped = SkippedRowsReport::default();
    for seat in seats {
        let stats = seat.stats();
        total.add(&stats);
        skipped.count += seat.skipped.count;
        skipped.first.extend_from_slice(&seat.skipped.first);
    }
    skipped.first.sort_by_key(|row| row.row);
    skipped.first.truncate(LISTED);
    let first = seats.iter().filter_map(|seat| seat.first_batch).min();
    let last = seats.iter().filter_map(|seat| seat.last_batch).max();
    let seconds = last.map_or(0.0, |last| (last - delivery.requested).as_secs_f64());
    let epochs = seats.iter().filter_map(|seat| seat.epochs.clone());
    let epochs = epochs.reduce(|a, b| *a.start().min(b.start())..=*a.end().max(b.end()));
    let slots = delivery.status.position.as_ref().map_or(args.consumers, |place| place.virtual_consumers);
    let digests = (!args.no_digest).then(|| consume::merge_digests(seats));
    RunReport {
        job,
        rows: total.rows,
        batches: total.batches,
        epochs: epochs.map_or(0, |epochs| epochs.end() - epochs.start() + 1),
        seconds,
        rows_per_s: if seconds > 0.0 { total.rows as f64 / seconds } else { 0.0 },
        steady_rows_per_s: steady_rate(seats),
        bytes: total.bytes,
        stall_seconds: total.stall_ns as f64 / 1e9,
        step_seconds: total.step_ns as f64 / 1e9,
        setup_seconds: (delivery.requested - started).as_secs_f64(),
        first_batch_seconds: first.map(|first| (first - started).as_secs_f64()),
        consumers: numbers(args).len() as u32,
        // Slots of an elastic job go from one rank to another, so no rank knows a slot's order alone.
        digest: digests.as_ref().filter(|_| !args.elastic).map(|digests| combine(digests, slots)),
        content_digest: digests.map(|digests| digests.content.to_hex()),
        audit: delivery.audit,
        skipped,
        defects: delivery.defects.clone(),
        operators: delivery.status.operators.iter().map(Into::into).collect(),
        store: (&delivery.status.store).into(),
        worker_cpu: delivery.status.worker_cpu.iter().map(|(_, cpu)| cpu.into()).collect(),
        peak_rss_bytes: PeakRss {
            client: feedline_worker::metrics::peak_rss_bytes(),
            coordinator: delivery.status.coordinator_peak_rss_bytes,
            workers: delivery.status.worker_peak_rss_bytes.iter().map(|(_, bytes)| *bytes).collect(),
        },
    }
}

/// One digest over all virtual consumers, those without batches included.
fn combine(digests: &Digests, slots: u32) -> String {
    let stream = |stream| digests.streams.get(&stream).cloned().unwrap_or_default();
    let streams: Vec<_> = (0..slots).map(stream).collect();
    digest::combine(&streams)
}

/// What the exit status says.
fn verdict(args: &RunArgs, report: &RunReport, end: DeliveryEnd) -> Result<(), Failure> {
    if let Some(audit) = report.audit.filter(|audit| !audit.is_exact()) {
        return Err(Failure::failed(format!(
            "the audit found {} rows missing, {} repeated and {} not expected; this is a defect of feedline, please report it",
            audit.missing, audit.repeated, audit.unexpected
        )));
    }
    match (end, &args.position) {
        (DeliveryEnd::Interrupted, None) if args.rank.is_some() => {
            eprintln!("feedline: left; the job goes on with the ranks that stay");
            Ok(())
        }
        (DeliveryEnd::Interrupted, None) => Err(Failure::Interrupted(
            "interrupted; give --position FILE to go on from there the next time".to_owned(),
        )),
        (DeliveryEnd::Interrupted, Some(path)) => {
            eprintln!(
                "feedline: interrupted; the next run with --position {} goes on from here",
                path.display()
            );
            Ok(())
        }
        (DeliveryEnd::Complete | DeliveryEnd::Limit, _) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_shared_evenly() {
        let shares: Vec<u64> = (0..3).map(|index| share(10, 3, index)).collect();
        assert_eq!(shares, [4, 3, 3]);
        assert_eq!(share(1, 2, 1), 0);
    }

    #[test]
    fn a_job_that_another_run_took_over_is_not_cancelled() {
        let superseded = ClientError::Superseded("taken over".to_owned());
        assert!(!is_ours_to_end(&superseded.into()));
        assert!(!is_ours_to_end(&ClientError::Cancelled.into()));
        assert!(is_ours_to_end(&ClientError::Closed.into()));
        assert!(is_ours_to_end(&Failure::failed("the position cannot be written")));
    }
}
