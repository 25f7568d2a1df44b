//! Runs `feedline up`: a coordinator and workers in one process, which listen as separate processes do. With
//! --autoscale, each worker is a separate process.

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::ProtectedFiles;
use feedline_coordinator::{CoordinatorContext, CoordinatorSettings, RunningCoordinator, Scaler};
use feedline_proto::{CoordinatorService, PROTOCOL_VERSION};
use feedline_worker::{ObjectAccess, WorkerHealth, WorkerSettings};
use futures::future::{join_all, select_all, try_join_all};
use tokio::time::{Duration, Instant};

use super::coordinator::{COORDINATOR_FIX, disks};
use super::{FINAL_GRACE, GrpcServer, announce, coordinator_routes, stop_coordinator, stop_worker};
use crate::access::{ServerSecurity, worker_token};
use crate::cli::{LocalArgs, SwitchArg, UpArgs};
use crate::disk_metrics::RoleDirectory;
use crate::failure::{Failure, reason};
use crate::http::HttpAddresses;
use crate::listen::{self, BoundListener};
use crate::local_listener::TransportArg;
use crate::local_scaler::{LocalScaler, WorkerCommand};
use crate::local_workers::{self, LocalWorker};
use crate::peer_workers::PeerConnections;
use crate::reload::reload_secret;
use crate::{entropy, environment, http, local_listener, output, signals, store_access, worker_flags, yaml};

/// Runs all roles until a signal arrives.
pub(crate) async fn run(mut args: UpArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let default = SwitchArg::default_for_functions(args.secret.secret_file.is_some());
    args.local.functions.functions.get_or_insert(default);
    if let Some(folder) = &args.local.cache.cache_dir {
        local_workers::check_cache_dir(folder)?;
    }
    let security = ServerSecurity::new(&args.server_access)?;
    let secret = args.secret.load()?;
    let _reload = secret.clone().map(reload_secret);
    let bound = listen::bind(&args.listen, "--listen").await?;
    security.check_listen_address(bound.address, secret.is_some(), COORDINATOR_FIX)?;
    let scheme = security.scheme();
    let host = match &args.advertise {
        Some(host) => host.clone(),
        None => {
            listen::public_url(&bound, scheme, "--advertise HOST")?;
            listen::url_host(bound.address.ip())
        }
    };
    let access = store_access::for_worker(&args.local.stores)?
        .with_local_by_prefix(secret.is_some())
        .with_own_files(own_files(&args)?);
    let addresses = HttpAddresses { http: args.http.as_deref(), health: args.health.health.as_deref() };
    let mut http = http::start(addresses, &security, secret.as_ref()).await?;
    let scaler =
        args.autoscale.map(|bounds| local_scaler(&args, bounds, (&bound, &host), &access)).transpose()?;
    let scaler = scaler.map(|scaler| match &secret {
        Some(secret) => scaler.with_token(worker_token(Arc::clone(secret))),
        None => scaler,
    });
    let scaler = scaler.map(Arc::new);
    let planned_scaler = scaler.clone().map(|scaler| scaler as Arc<dyn Scaler>);
    let context = CoordinatorContext { scaler: planned_scaler, ..CoordinatorContext::default() };
    let settings = CoordinatorSettings {
        url: format!("{scheme}://{host}:{}", bound.address.port()),
        ..settings(&args, &access)?
    };
    let cache_dir = args.local.cache.cache_dir.clone().map_or_else(environment::cache_dir, Ok)?;
    let mut disks = disks(&settings);
    disks.push(RoleDirectory { name: "cache", path: cache_dir });
    http.watch_disks(disks);
    let mut coordinator = feedline_coordinator::start_in(settings, entropy::coordinator_start_id(), context)
        .await
        .map_err(Failure::failed)?;
    http.export_jobs(Some(&coordinator));
    let credentials = security.credentials.clone();
    let services = coordinator_routes(&coordinator, secret.as_ref(), credentials, PROTOCOL_VERSION);
    let mut nodes = Vec::new();
    for settings in local_workers::settings(&args.local, &access)?.into_iter().filter(|_| scaler.is_none()) {
        let settings = WorkerSettings { requires_tickets: secret.is_some(), ..settings };
        let coordinator = Arc::clone(&services.for_workers);
        let node = start_worker((&bound, &host), &security, settings, args.transport, coordinator).await?;
        nodes.push(node);
    }
    let mut server = GrpcServer::start(bound.listener, security.tls(), services.routes);
    let (health, workers) = (coordinator.health(), nodes.iter().map(|node| node.worker.running.health()));
    let workers: Vec<WorkerHealth> = workers.collect();
    http.set_liveness(Box::new(move || {
        health.check().and_then(|()| workers.iter().try_for_each(WorkerHealth::check))
    }));
    http.set_ready(Box::new(|| Ok(())));
    announce("coordinator", bound.address, &http)?;
    let lines: Vec<String> =
        nodes.iter().map(|node| format!("feedline worker listening on {}\n", node.address)).collect();
    output::print(&lines.concat())?;
    tokio::select! {
        () = stop.cancelled() => {}
        result = coordinator.wait() => return result.map_err(Failure::failed),
        result = server.wait() => return result,
        result = wait_for_any(&mut nodes) => return result,
    }
    tracing::info!(grace_seconds = args.grace.as_secs_f64(), "draining");
    let deadline = Instant::now() + args.grace;
    join_all(nodes.iter().map(|node| node.worker.drain(args.grace))).await;
    if let Some(scaler) = scaler {
        scaler.shutdown(deadline + FINAL_GRACE).await;
    }
    shutdown(nodes, server, coordinator, deadline).await?;
    http.shutdown().await;
    Ok(())
}

/// Waits until the server of a worker in this process ends, or forever without a worker.
async fn wait_for_any(nodes: &mut [WorkerNode]) -> Result<(), Failure> {
    if nodes.is_empty() {
        return std::future::pending().await;
    }
    select_all(nodes.iter_mut().map(|node| Box::pin(node.server.wait()))).await.0
}

/// Creates a scaler. `bounds` are the smallest and the largest number of workers. Each worker receives an equal share of
/// the resources for the largest number.
fn local_scaler(
    args: &UpArgs,
    bounds: (u32, u32),
    (bound, host): (&BoundListener, &str),
    access: &ObjectAccess,
) -> Result<LocalScaler, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::failed(format!("cannot find the path of this program: {}", reason(&error)))
    })?;
    let local = LocalArgs { workers: bounds.1, ..args.local.clone() };
    let settings = local_workers::settings(&local, access)?.pop().expect("there is at least one worker");
    let scheme = if args.server_access.access.tls_cert.is_some() { "https" } else { "http" };
    let command = WorkerCommand {
        program,
        coordinator: format!("{scheme}://{host}:{}", bound.address.port()),
        listen: SocketAddr::new(bound.address.ip(), 0).to_string(),
        advertise: args.advertise.clone(),
        settings,
        grace: process_grace(args.grace),
        token: None,
        own_files: own_files(args)?,
        forwarded: worker_flags::forwarded(&args.given),
    };
    Ok(LocalScaler::new(command, bounds))
}

/// Returns the grace period of a worker process. It is shorter than `grace`, so that workers exit before the
/// coordinator and no connection is closed too early.
pub(super) fn process_grace(grace: Duration) -> Duration {
    grace.saturating_sub(2 * FINAL_GRACE).max(grace / 2)
}

/// A listening worker.
struct WorkerNode {
    address: SocketAddr,
    worker: LocalWorker,
    server: GrpcServer,
}

/// Starts a worker on a free port of the coordinator's host.
async fn start_worker(
    (coordinator, host): (&BoundListener, &str),
    security: &ServerSecurity,
    settings: WorkerSettings,
    transport: TransportArg,
    service: Arc<dyn CoordinatorService>,
) -> Result<WorkerNode, Failure> {
    let bound = listen::bind(&SocketAddr::new(coordinator.address.ip(), 0).to_string(), "--listen").await?;
    let address = format!("{}://{host}:{}", security.scheme(), bound.address.port());
    let local = local_listener::open(transport, settings.memory_bytes)?;
    let worker = local_workers::start(WorkerSettings { address, ..settings }, service)?;
    worker.running.set_peers(PeerConnections::new(security.credentials.clone()));
    let server = GrpcServer::start_worker(bound.listener, security.tls(), &worker, local);
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
    let mut settings = storage_settings(args)?;
    settings.reads = access.reads().clone();
    settings.own_files = access.own_files().clone();
    settings.cluster.auto_cache = args.auto_cache.auto_cache.is_on();
    settings.grace_ms = args.grace.as_millis() as u64;
    settings.shrink_after_ms = args.shrink_after.as_millis() as u64;
    if let Some(file) = &args.planner {
        settings.plan = yaml::planner_settings(file)?;
    }
    args.tenants.apply(&args.limits, &mut settings)?;
    Ok(settings)
}

/// Returns the files of all roles. No pipeline may read them.
fn own_files(args: &UpArgs) -> Result<ProtectedFiles, Failure> {
    let cache_dir = args.local.cache.cache_dir.clone().map_or_else(environment::cache_dir, Ok)?;
    let files = [&args.secret.secret_file, &args.tenants.tenants].into_iter().flatten().cloned();
    let stored = storage_settings(args)?
        .protected_paths()
        .into_iter()
        .chain(store_access::cache_dir_files(&cache_dir));
    let rows = args.local.cache.cache_store.as_deref().and_then(store_access::cache_store_files);
    let blocks = args.local.cache.graph_dir.as_deref().map(feedline_worker::cached_rows_pattern);
    Ok(store_access::own_files(
        &args.server_access,
        &args.local.stores.reads,
        files.chain(stored).chain(rows).chain(blocks),
    ))
}

/// Returns the settings of the coordinator, with the directories of the log and of the indexes.
fn storage_settings(args: &UpArgs) -> Result<CoordinatorSettings, Failure> {
    let index_dir = args.local.index_dir.clone();
    Ok(match (&args.data_dir, index_dir) {
        (Some(folder), Some(index_dir)) => CoordinatorSettings::durable(folder, index_dir),
        (Some(folder), None) => CoordinatorSettings::durable(folder, folder.join("index")),
        (None, Some(index_dir)) => CoordinatorSettings::in_memory(index_dir),
        (None, None) => CoordinatorSettings::in_memory(environment::cache_dir()?.join("index")),
    })
}
