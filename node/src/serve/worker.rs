//! `feedline worker`.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedline_proto::grpc;
use feedline_worker::RowCacheSettings;
use tokio::time::Instant;

use super::{GrpcServer, announce, stop_http, stop_worker};
use crate::access::ServerSecurity;
use crate::cli::{SwitchArg, WorkerArgs};
use crate::coordinator_contact::CoordinatorContact;
use crate::failure::{Failure, reason};
use crate::http::{self, Readiness};
use crate::listen;
use crate::local_workers::{self, LocalWorkerShare};
use crate::{environment, local_listener, signals, store_access};

/// How often the worker looks whether its coordinator answers.
const LOOK: Duration = Duration::from_secs(2);

/// How a worker is made safe on a network.
const WORKER_FIX: &str = "give --tls-cert, --tls-key and --tls-ca, which `feedline keys new` makes";

/// Runs a worker until a signal.
pub(crate) async fn run(args: WorkerArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    if let Some(folder) = &args.cache.cache_dir {
        check_cache_dir(folder)?;
    }
    let guard = ServerSecurity::new(&args.guard)?;
    let kept = args.cache.cache_store.as_deref().and_then(store_access::in_cache_store).into_iter();
    let kept = kept.chain(args.cache.cache_dir.iter().flat_map(|folder| store_access::in_cache_dir(folder)));
    let kept = kept.chain(args.own_file);
    // Who shows a token works for callers that may not read what its host has.
    let access = store_access::of_worker(&args.stores)?
        .with_retry_budget(args.store_retry_timeout)
        .local_by_prefix(guard.credentials.token.is_some())
        .without(store_access::own_files(&args.guard, &args.stores, kept));
    let bound = listen::bind(&args.listen, "--listen").await?;
    // A worker that shows who it is gives rows with tickets only, whatever its coordinator says.
    let asks_for_tickets = guard.credentials.token.is_some();
    guard.check(bound.address, asks_for_tickets, WORKER_FIX)?;
    let http = http::start(args.http.as_deref(), &guard, None).await?;
    let scheme = guard.scheme();
    let address = match (args.advertise, args.advertise_host) {
        (Some(url), _) => url,
        (None, Some(host)) => format!("{scheme}://{host}:{}", bound.address.port()),
        (None, None) => listen::url(&bound, scheme, &format!("--advertise {scheme}://HOST:PORT"))?,
    };
    let share = LocalWorkerShare {
        cores: args.cores.unwrap_or_else(environment::cores),
        nic_bytes_per_s: args.nic.unwrap_or_else(|| detected_nic(bound.address.ip())),
        memory_bytes: args.memory.unwrap_or_else(environment::default_memory_bytes),
        row_cache: args.cache.cache_dir.as_ref().map(|folder| {
            let cache = args.cache.rows(folder, 1, args.cache_dir_for_plans.is_on());
            RowCacheSettings { folder_bytes: args.cache_disk_together.unwrap_or(cache.folder_bytes), ..cache }
        }),
        store_cache: args.cache.store(),
        cache_dir: args.cache.cache_dir,
        most_fetches: args.room.max_fetches,
        functions: args.functions.settings(SwitchArg::of_functions(asks_for_tickets)),
        trace: args.trace.is_on(),
    };
    let urls = args.cluster.urls();
    let coordinators = urls.join(",");
    let coordinator = grpc::connect_coordinators(&urls, &guard.credentials)?;
    let entrance = local_listener::open(args.transport, share.memory_bytes)?;
    let worker = local_workers::start(address, share, access, (coordinator, asks_for_tickets))?;
    let mut server = GrpcServer::start_worker(bound.listener, guard.tls(), &worker, entrance);
    if let Some(http) = &http {
        http.set_ready(readiness(&worker.contact, &coordinators));
    }
    announce("worker", bound.address, http.as_ref())?;
    tokio::select! {
        () = stop.cancelled() => {}
        () = input_ends(), if args.while_input => {}
        () = watch(&worker.contact, &coordinators) => {}
        result = server.wait() => return result,
    }
    tracing::info!(grace_seconds = args.grace.as_secs_f64(), "draining");
    let deadline = Instant::now() + args.grace;
    worker.drain(args.grace).await;
    let stopped = stop_worker(server, worker, deadline).await;
    stop_http(http).await;
    stopped
}

/// The bandwidth of the fastest network card where others can reach this machine's `ip`; nothing crosses it where they
/// cannot.
fn detected_nic(ip: IpAddr) -> u64 {
    if ip.is_loopback() { 0 } else { environment::nic_bytes_per_s() }
}

/// Waits until whoever started this worker closes its input, or is gone.
async fn input_ends() {
    let (ended, end) = tokio::sync::oneshot::channel();
    // A thread of its own: a read of standard input cannot be given up, and would keep the runtime from ending.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
        let _ = ended.send(());
    });
    let _ = end.await;
}

/// A directory that cannot be used is told now, not when it is needed.
fn check_cache_dir(folder: &Path) -> Result<(), Failure> {
    let usable = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
    usable.map(|_| ()).map_err(|error| {
        let folder = folder.display();
        Failure::failed(format!(
            "cannot use the cache directory {folder}: {}; choose a --cache-dir that this user can write to",
            reason(&error)
        ))
    })
}

/// Ready means that the coordinator can send work.
pub(super) fn readiness(contact: &Arc<CoordinatorContact>, coordinator: &str) -> Readiness {
    let contact = Arc::clone(contact);
    let lost = format!("the coordinator at {coordinator} does not answer");
    Box::new(move || if contact.is_held() { Ok(()) } else { Err(format!("{lost}: {}", contact.reason())) })
}

/// Logs when the coordinator is lost and found. Never ends.
async fn watch(contact: &CoordinatorContact, coordinator: &str) {
    let mut held = true;
    let mut interval = tokio::time::interval_at(tokio::time::Instant::now() + LOOK, LOOK);
    loop {
        interval.tick().await;
        if contact.is_held() == held {
            continue;
        }
        held = !held;
        if held {
            tracing::info!(coordinator, "the coordinator answers");
        } else {
            let reason = contact.reason();
            tracing::warn!(
                coordinator,
                reason,
                "the coordinator does not answer; trying again until it does"
            );
        }
    }
}
