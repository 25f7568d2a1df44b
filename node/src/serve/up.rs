//! `feedline up`: a coordinator and workers in one process, listening as they would in several; with --autoscale the
//! workers are processes of their own.

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::OwnFiles;
use feedline_coordinator::{CoordinatorContext, CoordinatorSettings, RunningCoordinator, Scaler};
use feedline_planner::plan::ScaleSettings;
use feedline_proto::CoordinatorService;
use feedline_worker::ObjectAccess;
use futures::future::{join_all, select_all, try_join_all};
use tokio::time::{Duration, Instant};

use super::coordinator::COORDINATOR_FIX;
use super::{GrpcServer, LAST_ANSWERS, announce, served, stop_coordinator, stop_http, stop_worker};
use crate::access::{ServerSecurity, read_secret, worker_token};
use crate::cli::{LocalArgs, SwitchArg, UpArgs};
use crate::failure::{Failure, reason};
use crate::listen::{self, BoundListener};
use crate::local_listener::TransportArg;
use crate::local_scaler::{LocalScaler, WorkerCommand};
use crate::local_workers::{self, LocalWorker, LocalWorkerShare, shares};
use crate::logging::LogFormat;
use crate::{entropy, environment, http, local_listener, output, signals, store_access, yaml};

/// Runs all roles until a signal.
pub(crate) async fn run(mut args: UpArgs, log: LogFormat) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let usual = SwitchArg::of_functions(args.secret.secret_file.is_some());
    args.local.functions.functions.get_or_insert(usual);
    let guard = ServerSecurity::new(&args.guard)?;
    let secret = args.secret.secret_file.as_deref().map(read_secret).transpose()?;
    let bound = listen::bind(&args.listen, "--listen").await?;
    guard.check(bound.address, secret.is_some(), COORDINATOR_FIX)?;
    let scheme = guard.scheme();
    let host = match &args.advertise {
        Some(host) => host.clone(),
        None => {
            listen::url(&bound, scheme, "--advertise HOST")?;
            bracketed(bound.address)
        }
    };
    let access = store_access::of_worker(&args.local.stores)?
        .local_by_prefix(secret.is_some())
        .without(own_files(&args)?);
    let http = http::start(args.http.as_deref(), &guard, secret.as_ref()).await?;
    let scaler =
        args.autoscale.map(|(_, most)| local_scaler(&args, most, (&bound, &host), log)).transpose()?;
    let scaler = scaler.map(|scaler| match &secret {
        Some(secret) => scaler.with_token(&worker_token(secret)),
        None => scaler,
    });
    let scaler = scaler.map(Arc::new);
    let told = scaler.clone().map(|scaler| scaler as Arc<dyn Scaler>);
    let surroundings = CoordinatorContext { scaler: told, ..CoordinatorContext::default() };
    let settings = CoordinatorSettings {
        url: format!("{scheme}://{host}:{}", bound.address.port()),
        ..settings(&args, &access)?
    };
    let mut coordinator = feedline_coordinator::start_in(settings, entropy::coordinator_life(), surroundings)
        .await
        .map_err(Failure::failed)?;
    let served = served(&coordinator, secret.as_ref(), guard.credentials.clone());
    let mut nodes = Vec::new();
    for share in shares(&args.local)?.into_iter().filter(|_| scaler.is_none()) {
        let service = (Arc::clone(&served.for_workers), secret.is_some());
        let with = (access.clone(), args.transport);
        nodes.push(start_worker((&bound, &host), &guard, share, with, service).await?);
    }
    let mut server = GrpcServer::start(bound.listener, guard.tls(), served.routes);
    if let Some(http) = &http {
        http.set_ready(Box::new(|| Ok(())));
    }
    announce("coordinator", bound.address, http.as_ref())?;
    let lines: Vec<String> =
        nodes.iter().map(|node| format!("feedline worker listening on {}\n", node.address)).collect();
    output::print(&lines.concat())?;
    tokio::select! {
        () = stop.cancelled() => {}
        result = coordinator.wait() => return result.map_err(Failure::failed),
        result = server.wait() => return result,
        result = any_ends(&mut nodes) => return result,
    }
    tracing::info!(grace_seconds = args.grace.as_secs_f64(), "draining");
    let deadline = Instant::now() + args.grace;
    join_all(nodes.iter().map(|node| node.worker.drain(args.grace))).await;
    if let Some(scaler) = scaler {
        scaler.shutdown(deadline + LAST_ANSWERS).await;
    }
    shutdown(nodes, server, coordinator, deadline).await?;
    stop_http(http).await;
    Ok(())
}

/// Waits until the server of a worker in this process ends; for ever where there is none.
async fn any_ends(nodes: &mut [WorkerNode]) -> Result<(), Failure> {
    if nodes.is_empty() {
        return std::future::pending().await;
    }
    select_all(nodes.iter_mut().map(|node| Box::pin(node.server.wait()))).await.0
}

/// Workers as processes, each with its part of the resources for `most`.
fn local_scaler(
    args: &UpArgs,
    most: u32,
    (bound, host): (&BoundListener, &str),
    log: LogFormat,
) -> Result<LocalScaler, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("this program cannot find itself: {}", reason(&error))))?;
    let local = LocalArgs { workers: most, ..args.local.clone() };
    let share = shares(&local)?.pop().expect("there is at least one");
    let scheme = if args.guard.access.tls_cert.is_some() { "https" } else { "http" };
    Ok(LocalScaler::new(WorkerCommand {
        program,
        coordinator: format!("{scheme}://{host}:{}", bound.address.port()),
        listen: SocketAddr::new(bound.address.ip(), 0).to_string(),
        advertise: args.advertise.clone(),
        share,
        grace: process_grace(args.grace),
        log,
        transport: args.transport,
        guard: args.guard.clone(),
        token: None,
        stores: args.local.stores.clone(),
        own_files: own_files(args)?,
    }))
}

/// Time that a worker process has to serve what it holds: with last answers it has ended before `grace` and the coordinator
/// have, so that none is cut that would have ended by itself.
pub(super) fn process_grace(grace: Duration) -> Duration {
    grace.saturating_sub(2 * LAST_ANSWERS).max(grace / 2)
}

/// A worker that listens.
struct WorkerNode {
    address: SocketAddr,
    worker: LocalWorker,
    server: GrpcServer,
}

/// Starts a worker on a free port of the coordinator's host.
async fn start_worker(
    (coordinator, host): (&BoundListener, &str),
    guard: &ServerSecurity,
    share: LocalWorkerShare,
    (access, transport): (ObjectAccess, TransportArg),
    service: (Arc<dyn CoordinatorService>, bool),
) -> Result<WorkerNode, Failure> {
    let bound = listen::bind(&SocketAddr::new(coordinator.address.ip(), 0).to_string(), "--listen").await?;
    let url = format!("{}://{host}:{}", guard.scheme(), bound.address.port());
    let entrance = local_listener::open(transport, share.memory_bytes)?;
    let worker = local_workers::start(url, share, access, service)?;
    let server = GrpcServer::start_worker(bound.listener, guard.tls(), &worker, entrance);
    Ok(WorkerNode { address: bound.address, worker, server })
}

async fn shutdown(
    nodes: Vec<WorkerNode>,
    server: GrpcServer,
    coordinator: RunningCoordinator,
    deadline: Instant,
) -> Result<(), Failure> {
    let stop = |node: WorkerNode| stop_worker(node.server, node.worker, deadline);
    try_join_all(nodes.into_iter().map(stop)).await?;
    stop_coordinator(coordinator, deadline).await?;
    server.shutdown(deadline).await
}

fn settings(args: &UpArgs, access: &ObjectAccess) -> Result<CoordinatorSettings, Failure> {
    let mut settings = place(args)?;
    settings.reads = access.reads().clone();
    settings.own_files = access.own_files().clone();
    settings.cluster.auto_cache = args.local.auto_cache.is_on();
    settings.grace_ms = args.grace.as_millis() as u64;
    if let Some((min_workers, max_workers)) = args.autoscale {
        let shrink_after_ms = args.shrink_after.as_millis() as u64;
        settings.scale = ScaleSettings { min_workers, max_workers, shrink_after_ms };
    }
    if let Some(file) = &args.planner {
        settings.plan = yaml::planner_settings(file)?;
    }
    args.tenants.set(&args.limits, &mut settings)?;
    Ok(settings)
}

/// Files of all its roles that no pipeline reads.
fn own_files(args: &UpArgs) -> Result<OwnFiles, Failure> {
    let cache_dir = args.local.cache.cache_dir.clone().map_or_else(environment::cache_dir, Ok)?;
    let files = [&args.secret.secret_file, &args.tenants.tenants].into_iter().flatten().cloned();
    let kept = place(args)?.kept_files().into_iter().chain(store_access::in_cache_dir(&cache_dir));
    let rows = args.local.cache.cache_store.as_deref().and_then(store_access::in_cache_store);
    Ok(store_access::own_files(&args.guard, &args.local.stores, files.chain(kept).chain(rows)))
}

fn place(args: &UpArgs) -> Result<CoordinatorSettings, Failure> {
    let index_dir = args.local.index_dir.clone();
    Ok(match (&args.data_dir, index_dir) {
        (Some(folder), Some(index_dir)) => CoordinatorSettings::durable(folder, index_dir),
        (Some(folder), None) => CoordinatorSettings::durable(folder, folder.join("index")),
        (None, Some(index_dir)) => CoordinatorSettings::in_memory(index_dir),
        (None, None) => CoordinatorSettings::in_memory(environment::cache_dir()?.join("index")),
    })
}

/// The host as it stands in a URL.
fn bracketed(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}
