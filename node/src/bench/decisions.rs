//! `feedline bench decisions`: how fast coordinators decide together. Coordinators with logs on disk, workers and consumers
//! that compute and deliver nothing, all in this process, over gRPC on loopback.

mod load;
mod threads;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_access::Credentials;
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_proto::authenticator::Authenticators;
use feedline_proto::grpc::{self, REPORT_PATIENCE};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::load::{JobShape, Load};
use self::threads::{LoadThreads, load_cpu_time};
use crate::cli::ReportFormat;
use crate::failure::Failure;
use crate::process_metrics::cpu_time;
use crate::{cluster, entropy, output};

/// Longest that coordinators may take to start again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Streams of a job where nobody says.
const USUAL_STREAMS: u32 = 8;
/// Pause before they are asked again.
const RETRY: Duration = Duration::from_millis(20);

/// What `feedline bench decisions` is asked for.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Example:\n  feedline bench decisions --coordinators 3 --seconds 20 --dir /var/lib/feedline-bench"
)]
pub(crate) struct DecisionsArgs {
    /// Coordinators that decide together.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=5))]
    coordinators: u32,
    /// Workers that report.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// Connections that the workers share.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Time after which a report that changes nothing is answered, and the next one sent; less than 900ms, after which
    /// whoever reports asks another coordinator.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_heartbeat)]
    heartbeat: Duration,
    /// Jobs; 0 leaves the workers' reports.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    jobs: u32,
    /// Consumers of each job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    consumers: u32,
    /// Streams (virtual consumers) of each job, at least one for each consumer [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    streams: Option<u32>,
    /// Splits that consumers take per second, all of them together, where it is less than they can.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pace: Option<u32>,
    /// Seconds that are measured.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Directory for the logs, on the disk to be measured [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// How the report looks; json ends standard output with one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// A time for which reports may be held without being taken for lost.
fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    let heartbeat = crate::size::parse_duration(text)?;
    if heartbeat < REPORT_PATIENCE {
        return Ok(heartbeat);
    }
    Err(format!(
        "a report that is not answered within {} ms goes to another coordinator, so that none would count; give less, such as 800ms",
        REPORT_PATIENCE.as_millis()
    ))
}

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    coordinators: u32,
    workers: u32,
    jobs: u32,
    consumers: u32,
    streams: u32,
    seconds: f64,
    /// Splits leased to workers.
    grants_per_s: f64,
    /// Reports of workers and consumers that were answered.
    reports_per_s: f64,
    /// Time from a request that is decided on to its answer, kept by a majority, under this load.
    commit_ms: Spread,
    /// Seconds of CPU time of all coordinators, their ends of connections among it, per second.
    coordinator_cores: f64,
    /// CPU time of the coordinators for each report, in microseconds.
    coordinator_us_per_report: f64,
    /// The same of workers and consumers, which yield to them.
    load_cores: f64,
    /// Splits leased since the start; all but the last few were delivered.
    granted: u64,
    /// Size of the largest of the logs then.
    log_bytes: u64,
    /// Seconds from the start of all coordinators, whose processes had gone at once, until one of them answers.
    restart_s: f64,
}

#[derive(Debug, Serialize)]
struct Spread {
    median: f64,
    p99: f64,
    worst: f64,
    count: usize,
}

/// Measures, and prints a report.
pub(crate) async fn run(args: DecisionsArgs) -> Result<(), Failure> {
    let scratch = match &args.dir {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let scratch = scratch
        .map_err(|error| Failure::failed(format!("no directory for the logs can be made: {error}")))?;
    let stop = CancellationToken::new();
    let anywhere = vec!["127.0.0.1:0".to_owned(); args.coordinators as usize];
    let (urls, running) = start(&anywhere, scratch.path(), args.heartbeat, &stop).await?;
    let threads = LoadThreads::start()?;
    let mut tasks = JoinSet::new();
    let shape = JobShape {
        consumers: args.consumers,
        streams: args.streams.unwrap_or(USUAL_STREAMS).max(args.consumers),
    };
    let consumers = args.jobs * args.consumers;
    let pace = args.pace.map(|pace| f64::from(pace) / f64::from(consumers.max(1)));
    let load = Arc::new(Load::new(pace, shape));
    for job in 0..args.jobs {
        // The consumers of a job share a connection: what is measured is the coordinators' work.
        let coordinator = threads.connect(&urls).await?;
        for consumer in 0..args.consumers {
            let consume = Arc::clone(&load).consume(Arc::clone(&coordinator), job, consumer);
            tasks.spawn_on(consume, threads.handle());
        }
    }
    let mut shared = Vec::new();
    for _ in 0..args.connections {
        shared.push(threads.connect(&urls).await?);
    }
    for (worker, coordinator) in (0..args.workers).zip(shared.iter().cycle()) {
        tasks.spawn_on(Arc::clone(&load).work(Arc::clone(coordinator), worker), threads.handle());
    }
    load.begun(consumers).await;
    load.begin();
    let (started, cpu, load_cpu) = (Instant::now(), cpu_time(), load_cpu_time());
    let prober = cluster::connect(&urls, &Credentials::default()).await?;
    let time = Duration::from_secs(args.seconds);
    let latencies = match args.jobs {
        0 => {
            tokio::time::sleep(time).await;
            Vec::new()
        }
        _ => load.probe(prober.as_ref(), time).await?,
    };
    let seconds = started.elapsed().as_secs_f64();
    let (grants, reports) = load.counts();
    let (cpu, load_cpu) = (cpu_time() - cpu, load_cpu_time().saturating_sub(load_cpu));
    tasks.shutdown().await;
    stop.cancel();
    drop(running);
    let restart_s = restart(&urls, scratch.path(), args.heartbeat).await?;
    let report = Report {
        coordinators: args.coordinators,
        workers: args.workers,
        jobs: args.jobs,
        consumers: shape.consumers,
        streams: shape.streams,
        seconds,
        grants_per_s: grants as f64 / seconds,
        reports_per_s: reports as f64 / seconds,
        commit_ms: spread(latencies),
        coordinator_cores: cpu.saturating_sub(load_cpu).as_secs_f64() / seconds,
        coordinator_us_per_report: cpu.saturating_sub(load_cpu).as_secs_f64() * 1e6 / reports.max(1) as f64,
        load_cores: load_cpu.as_secs_f64() / seconds,
        granted: load.granted(),
        log_bytes: log_bytes(scratch.path())?,
        restart_s,
    };
    Ok(output::print(&match args.report {
        ReportFormat::Text => report.text(),
        ReportFormat::Json => serde_json::to_string(&report).map_err(Failure::failed)? + "\n",
    })?)
}

/// Starts all coordinators again where they were, and waits for one of them to answer. Seconds that it took.
async fn restart(urls: &[String], folder: &Path, heartbeat: Duration) -> Result<f64, Failure> {
    let stop = CancellationToken::new();
    let addresses: Vec<String> = urls.iter().map(|url| url.replace("http://", "")).collect();
    let started = Instant::now();
    let (urls, running) = loop {
        match start(&addresses, folder, heartbeat, &stop).await {
            Ok(started) => break started,
            // Those before may not have let go of their ports and files yet.
            Err(error) if started.elapsed() > PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    };
    let coordinator = cluster::connect(&urls, &Credentials::default()).await?;
    while let Err(refusal) = coordinator.list_jobs().await {
        if started.elapsed() > PATIENCE {
            return Err(Failure::failed(refusal));
        }
        tokio::time::sleep(RETRY).await;
    }
    let took = started.elapsed().as_secs_f64();
    stop.cancel();
    drop(running);
    Ok(took)
}

fn log_bytes(folder: &Path) -> Result<u64, Failure> {
    let mut largest = 0;
    for coordinator in std::fs::read_dir(folder).map_err(Failure::failed)? {
        let log = coordinator.map_err(Failure::failed)?.path().join("log").join("records.log");
        largest = largest.max(std::fs::metadata(log).map_err(Failure::failed)?.len());
    }
    Ok(largest)
}

async fn start(
    addresses: &[String],
    folder: &Path,
    heartbeat: Duration,
    stop: &CancellationToken,
) -> Result<(Vec<String>, Vec<RunningCoordinator>), Failure> {
    let mut listeners = Vec::new();
    for address in addresses {
        listeners.push(TcpListener::bind(address).await.map_err(Failure::failed)?);
    }
    let urls = listeners.iter().map(|it| it.local_addr().map(|address| format!("http://{address}")));
    let urls: Vec<String> = urls.collect::<Result<_, _>>().map_err(Failure::failed)?;
    let mut running = Vec::new();
    for (number, (listener, url)) in listeners.into_iter().zip(&urls).enumerate() {
        let folder = folder.join(number.to_string());
        let mut settings = CoordinatorSettings::durable(folder.join("log"), folder.join("index"));
        settings.url.clone_from(url);
        if addresses.len() > 1 {
            settings.peers.clone_from(&urls);
        }
        settings.plan_interval_ms = 0;
        settings.cluster.auto_cache = false;
        settings.cluster.hold_ms = heartbeat.as_millis().max(1) as u64;
        let coordinator = feedline_coordinator::start(settings, entropy::coordinator_life())
            .await
            .map_err(Failure::failed)?;
        let routes =
            grpc::member_routes(Authenticators::open(coordinator.service(), coordinator.peer_service()));
        let stopped = stop.clone();
        let ended = async move {
            stopped.cancelled().await;
            tokio::time::Instant::now()
        };
        tokio::spawn(grpc::serve(listener, routes, ended));
        running.push(coordinator);
    }
    Ok((urls, running))
}

fn spread(mut times: Vec<Duration>) -> Spread {
    times.sort_unstable();
    let ms = |part: f64| {
        let place = ((times.len() as f64 * part) as usize).min(times.len().saturating_sub(1));
        times.get(place).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    Spread { median: ms(0.5), p99: ms(0.99), worst: ms(1.0), count: times.len() }
}

impl Report {
    fn text(&self) -> String {
        let Self { coordinators, workers, jobs, seconds, grants_per_s, reports_per_s, .. } = self;
        let Self { commit_ms, coordinator_cores, load_cores, granted, log_bytes, restart_s, .. } = self;
        let Spread { median, p99, worst, count } = commit_ms;
        let commit = match count {
            0 => "not measured without jobs".to_owned(),
            _ => format!("median {median:.2} ms, 99 % {p99:.2} ms, worst {worst:.2} ms, of {count}"),
        };
        format!(
            "{coordinators} coordinators, {workers} workers, {jobs} jobs, {seconds:.1} s\n\
             grants   {grants_per_s:.0}/s\n\
             reports  {reports_per_s:.0}/s\n\
             commit   {commit}\n\
             CPU      {coordinator_cores:.2} cores for the coordinators, {load_cores:.2} for workers and consumers\n\
             restart  {restart_s:.2} s after {granted} splits, with a log of {log_bytes} bytes\n"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_is_shorter_than_reports_are_waited_for() {
        assert_eq!(parse_heartbeat("800ms"), Ok(Duration::from_millis(800)));
        assert!(parse_heartbeat("fast").is_err());
        for long in ["900ms", "1s", "1h"] {
            let said = parse_heartbeat(long).unwrap_err();
            assert!(said.contains("not answered within 900 ms") && said.contains("such as 800ms"), "{said}");
        }
    }
}
