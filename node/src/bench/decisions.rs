//! `feedline bench decisions`: how fast coordinators decide together. Coordinators with logs on disk, workers and consumers
//! that compute and deliver nothing, all in this process, over gRPC on loopback.

mod load;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_proto::grpc;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::load::Load;
use crate::cli::ReportFormat;
use crate::failure::Failure;
use crate::process_metrics::cpu_time;
use crate::{cluster, entropy, output};

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
    /// Jobs, each with one consumer.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    jobs: u32,
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

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    coordinators: u32,
    workers: u32,
    jobs: u32,
    seconds: f64,
    /// Splits leased to workers.
    grants_per_s: f64,
    /// Reports of workers and consumers that were answered.
    reports_per_s: f64,
    /// Time from a request that is decided on to its answer, kept by a majority, under this load.
    commit_ms: Spread,
    /// Seconds of CPU time of everything here, coordinators, workers and consumers, per second.
    cores: f64,
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
    let (urls, running) = start(&args, scratch.path(), &stop).await?;
    let mut tasks = JoinSet::new();
    let load = Arc::new(Load::default());
    for job in 0..args.jobs {
        let coordinator = cluster::connect(&urls).await?;
        tasks.spawn(Arc::clone(&load).consume(coordinator, job));
    }
    // Many on one connection, as they would be few on each of many.
    let shared = cluster::connect(&urls).await?;
    for worker in 0..args.workers {
        tasks.spawn(Arc::clone(&load).work(Arc::clone(&shared), worker));
    }
    load.begun(args.jobs).await;
    load.begin();
    let (started, cpu) = (Instant::now(), cpu_time());
    let prober = cluster::connect(&urls).await?;
    let latencies = load.probe(prober.as_ref(), Duration::from_secs(args.seconds)).await?;
    let seconds = started.elapsed().as_secs_f64();
    let (grants, reports) = load.counts();
    let report = Report {
        coordinators: args.coordinators,
        workers: args.workers,
        jobs: args.jobs,
        seconds,
        grants_per_s: grants as f64 / seconds,
        reports_per_s: reports as f64 / seconds,
        commit_ms: spread(latencies),
        cores: (cpu_time() - cpu).as_secs_f64() / seconds,
    };
    tasks.shutdown().await;
    stop.cancel();
    drop(running);
    Ok(output::print(&match args.report {
        ReportFormat::Text => report.text(),
        ReportFormat::Json => serde_json::to_string(&report).map_err(Failure::failed)? + "\n",
    })?)
}

async fn start(
    args: &DecisionsArgs,
    folder: &std::path::Path,
    stop: &CancellationToken,
) -> Result<(Vec<String>, Vec<RunningCoordinator>), Failure> {
    let mut listeners = Vec::new();
    for _ in 0..args.coordinators {
        listeners.push(TcpListener::bind("127.0.0.1:0").await.map_err(Failure::failed)?);
    }
    let urls = listeners.iter().map(|it| it.local_addr().map(|address| format!("http://{address}")));
    let urls: Vec<String> = urls.collect::<Result<_, _>>().map_err(Failure::failed)?;
    let mut running = Vec::new();
    for (number, (listener, url)) in listeners.into_iter().zip(&urls).enumerate() {
        let folder = folder.join(number.to_string());
        let mut settings = CoordinatorSettings::durable(folder.join("log"), folder.join("index"));
        settings.url.clone_from(url);
        if args.coordinators > 1 {
            settings.peers.clone_from(&urls);
        }
        settings.plan_interval_ms = 0;
        settings.cluster.auto_cache = false;
        let coordinator = feedline_coordinator::start(settings, entropy::coordinator_life())
            .await
            .map_err(Failure::failed)?;
        let routes = grpc::member_routes(
            coordinator.service(),
            coordinator.peer_service(),
            coordinator.members_service(),
        );
        tokio::spawn(grpc::serve(listener, routes, stop.clone().cancelled_owned()));
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
        let Self { coordinators, workers, jobs, seconds, grants_per_s, reports_per_s, commit_ms, cores } =
            self;
        let Spread { median, p99, worst, count } = commit_ms;
        format!(
            "{coordinators} coordinators, {workers} workers, {jobs} jobs, {seconds:.1} s\n\
             grants   {grants_per_s:.0}/s\n\
             reports  {reports_per_s:.0}/s\n\
             commit   median {median:.2} ms, 99 % {p99:.2} ms, worst {worst:.2} ms, of {count}\n\
             CPU      {cores:.2} cores, workers and consumers among them\n"
        )
    }
}
