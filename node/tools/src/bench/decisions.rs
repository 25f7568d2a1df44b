//! `feedline bench decisions`: measures how fast several coordinators commit decisions. The coordinators, with logs on
//! disk, and workers and consumers that process no data run in this process. They use gRPC on loopback.

mod coordinators;
mod load;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_access::Credentials;
use feedline_command::output::ReportFormat;
use feedline_command::{Failure, process_cpu_time};
use feedline_proto::grpc::REPORT_RETRY_AFTER;
use tokio::task::JoinSet;

use self::coordinators::CoordinatorGroup;
use self::load::{JobShape, Load};
use self::report::{DecisionsReport, LatencySpread};
use super::load_threads::{LoadThreads, load_cpu_time};
use crate::host::ToolHost;

/// Default number of streams per job.
const DEFAULT_STREAMS: u32 = 8;

/// Arguments of `feedline bench decisions`.
#[derive(Args, Debug, Clone)]
#[command(
    after_help = "Example:\n  feedline bench decisions --coordinators 3 --seconds 20 --dir /var/lib/feedline-bench"
)]
pub(super) struct DecisionsArgs {
    /// Number of coordinators.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=5))]
    coordinators: u32,
    /// Number of workers that report.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    workers: u32,
    /// Connections that the workers share.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    connections: u32,
    /// Time after which a coordinator answers a report that changes nothing; less than 900ms, the time after which a
    /// client retries at another coordinator.
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = parse_heartbeat)]
    heartbeat: Duration,
    /// Number of jobs; 0 measures the workers' reports alone.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=1_000))]
    jobs: u32,
    /// Consumers of each job.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    consumers: u32,
    /// Streams (virtual consumers) of each job, at least one per consumer [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    streams: Option<u32>,
    /// Maximum number of splits per second, summed over all consumers [default: unlimited].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pace: Option<u32>,
    /// Seconds to measure.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Directory for the raft logs, on the disk to measure [default: a temporary directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Format of the report; json prints one object on one line.
    #[arg(long, alias = "format", value_enum, value_name = "FORMAT", default_value_t)]
    report: ReportFormat,
}

/// Parses a heartbeat interval, which must be shorter than the timeout for a report.
fn parse_heartbeat(text: &str) -> Result<Duration, String> {
    let heartbeat = feedline_command::size::parse_duration(text)?;
    if heartbeat < REPORT_RETRY_AFTER {
        return Ok(heartbeat);
    }
    Err(format!(
        "invalid heartbeat `{text}`: expected less than {} ms, after which clients retry at another coordinator, such as 800ms",
        REPORT_RETRY_AFTER.as_millis()
    ))
}

/// Runs the benchmark and prints its report.
pub(super) async fn run(args: DecisionsArgs, host: &dyn ToolHost) -> Result<(), Failure> {
    let scratch = match &args.dir {
        Some(folder) => tempfile::tempdir_in(folder),
        None => tempfile::tempdir(),
    };
    let scratch = scratch
        .map_err(|error| Failure::failed(format!("cannot create a directory for the logs: {error}")))?;
    let addresses = vec!["127.0.0.1:0".to_owned(); args.coordinators as usize];
    let group = CoordinatorGroup::start(&addresses, scratch.path(), args.heartbeat, host).await?;
    let shape = JobShape {
        consumers: args.consumers,
        streams: args.streams.unwrap_or(DEFAULT_STREAMS).max(args.consumers),
    };
    let consumers = args.jobs * args.consumers;
    let pace = args.pace.map(|pace| f64::from(pace) / f64::from(consumers.max(1)));
    let load = Arc::new(Load::new(pace, shape));
    let threads = LoadThreads::start(host.cores())?;
    let mut tasks = start_load(&args, &load, &threads, &group.urls).await?;
    load.wait_for_consumers(consumers).await;
    load.reset_counters();
    let (started, cpu_before, load_cpu_before) = (Instant::now(), process_cpu_time(), load_cpu_time());
    let prober = host.connect(&group.urls, &Credentials::default()).await?;
    let time = Duration::from_secs(args.seconds);
    let latencies = match args.jobs {
        0 => {
            tokio::time::sleep(time).await;
            Vec::new()
        }
        _ => load.measure_latencies(prober.as_ref(), time).await?,
    };
    let seconds = started.elapsed().as_secs_f64();
    let (grants, reports) = load.counters();
    let (cpu, load_cpu) = (process_cpu_time() - cpu_before, load_cpu_time().saturating_sub(load_cpu_before));
    let coordinator_cpu_s = cpu.saturating_sub(load_cpu).as_secs_f64();
    tasks.shutdown().await;
    let urls = group.urls.clone();
    group.stop();
    let restart_s = coordinators::measure_restart(&urls, scratch.path(), args.heartbeat, host).await?;
    let report = DecisionsReport {
        coordinators: args.coordinators,
        workers: args.workers,
        jobs: args.jobs,
        consumers: shape.consumers,
        streams: shape.streams,
        seconds,
        grants_per_s: grants as f64 / seconds,
        reports_per_s: reports as f64 / seconds,
        commit_ms: LatencySpread::of(latencies),
        coordinator_cores: coordinator_cpu_s / seconds,
        coordinator_us_per_report: coordinator_cpu_s * 1e6 / reports.max(1) as f64,
        load_cores: load_cpu.as_secs_f64() / seconds,
        granted: load.total_grants(),
        log_bytes: coordinators::largest_log_bytes(scratch.path())?,
        restart_s,
    };
    args.report.print(&report, DecisionsReport::to_text)
}

/// Starts the workers and the consumers on the load threads.
async fn start_load(
    args: &DecisionsArgs,
    load: &Arc<Load>,
    threads: &LoadThreads,
    urls: &[String],
) -> Result<JoinSet<()>, Failure> {
    let mut tasks = JoinSet::new();
    for job in 0..args.jobs {
        // The consumers of a job share a connection, because the benchmark measures the coordinators' work.
        let coordinator = threads.connect(urls).await?;
        for consumer in 0..args.consumers {
            let consume = Arc::clone(load).run_consumer(Arc::clone(&coordinator), job, consumer);
            tasks.spawn_on(consume, threads.handle());
        }
    }
    let mut connections = Vec::new();
    for _ in 0..args.connections {
        connections.push(threads.connect(urls).await?);
    }
    for (worker, coordinator) in (0..args.workers).zip(connections.iter().cycle()) {
        tasks.spawn_on(Arc::clone(load).run_worker(Arc::clone(coordinator), worker), threads.handle());
    }
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_must_be_shorter_than_the_timeout_of_a_report() {
        assert_eq!(parse_heartbeat("800ms"), Ok(Duration::from_millis(800)));
        assert!(parse_heartbeat("fast").is_err());
        for long in ["900ms", "1s", "1h"] {
            let error = parse_heartbeat(long).unwrap_err();
            assert!(error.contains("less than 900 ms") && error.contains("such as 800ms"), "{error}");
        }
    }
}
