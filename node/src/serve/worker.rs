//! Runs `feedline worker`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use feedline_access::check_server_name;
use feedline_proto::grpc;
use feedline_worker::{RowCacheSettings, WorkerSettings};
use tokio::time::Instant;

use super::{GrpcServer, announce, stop_worker};
use crate::access::ServerSecurity;
use crate::cli::{SwitchArg, WorkerArgs};
use crate::coordinator_contact::CoordinatorContact;
use crate::disk_metrics::RoleDirectory;
use crate::failure::Failure;
use crate::http::{self, HttpAddresses, Readiness};
use crate::listen;
use crate::local_workers;
use crate::peer_workers::PeerConnections;
use crate::{environment, local_listener, signals, store_access};

/// Interval at which the worker checks whether the coordinator answers.
const CONTACT_INTERVAL: Duration = Duration::from_secs(2);

/// The flags that protect a worker on a network, for error messages.
const WORKER_FIX: &str =
    "pass --tls-cert, --tls-key and --tls-ca with the files that `feedline keys new` creates";

/// Runs a worker until a signal arrives.
pub(crate) async fn run(args: WorkerArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    if let Some(folder) = &args.cache.cache_dir {
        local_workers::check_cache_dir(folder)?;
    }
    let security = ServerSecurity::new(&args.server_access)?;
    let rows = args.cache.cache_store.as_deref().and_then(store_access::cache_store_files).into_iter();
    let cached = args.cache.cache_dir.iter().flat_map(|folder| store_access::cache_dir_files(folder));
    let blocks = args.cache.graph_dir.as_deref().map(feedline_worker::cached_rows_pattern);
    let stored = rows.chain(cached).chain(blocks).chain(args.own_file);
    // In a cluster with tokens, users must not read arbitrary files of the worker's host.
    let access = store_access::for_worker(&args.stores)?
        .with_local_by_prefix(security.credentials.token.is_some())
        .with_own_files(store_access::own_files(&args.server_access, &args.stores.reads, stored));
    let bound = listen::bind(&args.listen, "--listen").await?;
    // In a cluster with tokens, consumers need tickets, even before the first plan.
    let requires_tickets = security.credentials.token.is_some();
    security.check_listen_address(bound.address, requires_tickets, WORKER_FIX)?;
    let addresses = HttpAddresses { http: args.http.as_deref(), health: args.health.health.as_deref() };
    let mut http = http::start(addresses, &security, None).await?;
    let scheme = security.scheme();
    let address = match (args.advertise, args.advertise_host) {
        (Some(url), _) => url,
        (None, Some(host)) => format!("{scheme}://{host}:{}", bound.address.port()),
        (None, None) => listen::public_url(&bound, scheme, "--advertise-host HOST")?,
    };
    if let Some(name) = &args.tls_name {
        check_tls_name(name, &address, &security)?;
    }
    let memory_bytes = environment::memory_budget_bytes(args.memory)?;
    let settings = WorkerSettings {
        address,
        tls_name: args.tls_name,
        pool: args.pool.pool,
        machine: environment::cpu_model(),
        cores: args.cores.unwrap_or_else(environment::default_cores),
        nic_bytes_per_s: args.nic.unwrap_or_else(|| detected_nic(bound.address.ip())),
        memory_bytes,
        graph_memory_bytes: environment::graph_memory_bytes(args.graph_memory, memory_bytes)?,
        graph_disk: args.cache.graph_disk(args.cache.cache_dir.as_deref(), 1),
        row_cache: args.cache.cache_dir.as_ref().map(|folder| {
            let cache = args.cache.disk_cache(folder, 1, args.planner_uses_cache_dir.is_on());
            RowCacheSettings { folder_bytes: args.cache_disk_together.unwrap_or(cache.folder_bytes), ..cache }
        }),
        store_cache: args.cache.store_cache(),
        cache_dir: args.cache.cache_dir,
        access,
        requires_tickets,
        max_fetches: args.fetch_limit.max_fetches,
        functions: args.functions.settings(SwitchArg::default_for_functions(requires_tickets)),
        trace: args.trace.is_on(),
    };
    let disks = settings.cache_dir.iter().map(|path| RoleDirectory { name: "cache", path: path.clone() });
    http.watch_disks(disks.collect());
    let urls = args.cluster.urls();
    let coordinators = urls.join(",");
    let coordinator = grpc::connect_coordinators(&urls, &security.credentials)?;
    let local = local_listener::open(args.transport, settings.memory_bytes)?;
    let worker = local_workers::start(settings, coordinator)?;
    worker.running.set_peers(PeerConnections::new(security.credentials.clone()));
    let mut server = GrpcServer::start_worker(bound.listener, security.tls(), &worker, local);
    let health = worker.running.health();
    http.set_liveness(Box::new(move || health.check()));
    http.set_ready(readiness(&worker.contact, &coordinators));
    announce("worker", bound.address, &http)?;
    tokio::select! {
        () = stop.cancelled() => {}
        () = wait_for_input_end(), if args.while_input => {}
        failure = watch_contact(&worker.contact, &coordinators, args.upgrade_timeout) => return Err(failure),
        result = server.wait() => return result,
    }
    tracing::info!(grace_seconds = args.grace.as_secs_f64(), "draining");
    let deadline = Instant::now() + args.grace;
    worker.drain(args.grace).await;
    let stopped = stop_worker(server, worker, deadline).await;
    http.shutdown().await;
    stopped
}

/// Checks that consumers can verify the certificate of this worker with `name`.
fn check_tls_name(name: &str, address: &str, security: &ServerSecurity) -> Result<(), Failure> {
    if !address.starts_with("https://") {
        return Err(Failure::invalid_usage(format!(
            "--tls-name has no effect with the address {address}: pass --tls-cert and --tls-key, or remove --tls-name"
        )));
    }
    // Without a certificate, a proxy terminates TLS for this worker.
    let checked = security.tls().map_or_else(|| check_server_name(name), |tls| tls.check_own_name(name));
    checked.map_err(|reason| Failure::invalid_usage(format!("cannot use --tls-name {name}: {reason}")))
}

/// Returns the bandwidth of the fastest network card, or 0 if the worker listens on a loopback address.
fn detected_nic(ip: IpAddr) -> u64 {
    if ip.is_loopback() { 0 } else { environment::nic_bytes_per_s() }
}

/// Waits until standard input closes, because the parent process closed it or exited.
async fn wait_for_input_end() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    // A separate thread, because a pending read of standard input would block the end of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = sender.send(());
    });
    let _ = receiver.await;
}

/// Returns the readiness check: the coordinator answers.
pub(super) fn readiness(contact: &Arc<CoordinatorContact>, coordinator: &str) -> Readiness {
    let contact = Arc::clone(contact);
    let problem = format!("the coordinator at {coordinator} is not responding");
    Box::new(move || {
        if contact.is_connected() { Ok(()) } else { Err(format!("{problem}: {}", contact.last_error())) }
    })
}

/// Logs whenever the coordinator stops or resumes answering. Returns after the coordinators have rejected the protocol
/// version for `upgrade_timeout`.
async fn watch_contact(
    contact: &CoordinatorContact,
    coordinator: &str,
    upgrade_timeout: Duration,
) -> Failure {
    let mut was_connected = true;
    let mut interval =
        tokio::time::interval_at(tokio::time::Instant::now() + CONTACT_INTERVAL, CONTACT_INTERVAL);
    loop {
        interval.tick().await;
        if let Some(error) = contact.version_mismatch(upgrade_timeout) {
            let seconds = upgrade_timeout.as_secs();
            return Failure::failed(format!("{error}; the worker stopped retrying after {seconds} s"));
        }
        if contact.is_connected() == was_connected {
            continue;
        }
        was_connected = !was_connected;
        if was_connected {
            tracing::info!(coordinator, "the coordinator is responding again");
        } else {
            let reason = contact.last_error();
            tracing::warn!(coordinator, reason, "the coordinator is not responding; retrying");
        }
    }
}
