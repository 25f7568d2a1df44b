//! `feedline coordinator`.

use std::sync::Arc;

use feedline_coordinator::{
    CoordinatorContext, CoordinatorSettings, GrpcPeers, PeerDirectory, RunningCoordinator,
};
use tokio::time::Instant;

use super::{GrpcServer, announce, served, stop_coordinator, stop_http};
use crate::access::{ServerSecurity, coordinator_token, read_secret};
use crate::cli::CoordinatorArgs;
use crate::failure::Failure;
use crate::http::Readiness;
use crate::{entropy, http, listen, signals, store_access, yaml};

/// How a coordinator is made safe on a network.
pub(super) const COORDINATOR_FIX: &str =
    "give --tls-cert, --tls-key and --tls-ca, and --secret-file, which `feedline keys new` makes";

/// Runs a coordinator until a signal.
pub(crate) async fn run(args: CoordinatorArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let guard = ServerSecurity::new(&args.guard)?;
    let secret = args.secret.secret_file.as_deref().map(read_secret).transpose()?;
    let bound = listen::bind(&args.listen, "--listen").await?;
    guard.check(bound.address, secret.is_some(), COORDINATOR_FIX)?;
    let http = http::start(args.http.as_deref(), &guard, secret.as_ref()).await?;
    let scheme = guard.scheme();
    let url = match &args.advertise {
        Some(url) => url.clone(),
        None if args.peers.is_empty() => format!("{scheme}://{}", bound.address),
        None => listen::url(&bound, scheme, &format!("--advertise {scheme}://HOST:PORT"))?,
    };
    if !args.peers.is_empty() && !args.peers.contains(&url) {
        return Err(Failure::wrong_use(format!(
            "--peers does not name this coordinator, {url}: name all coordinators there, and say with --advertise by which of the addresses the others reach this one"
        )));
    }
    let (settings, grace) = (settings(&args, url)?, args.end.grace);
    let mut credentials = guard.credentials.clone();
    if let Some(secret) = &secret {
        credentials.token = Some(Arc::new(coordinator_token(secret)));
        tracing::info!(secret = secret.fingerprint(), "tokens of the cluster with this secret are asked for");
    }
    let peers = Some(Arc::new(GrpcPeers { credentials: credentials.clone() }) as Arc<dyn PeerDirectory>);
    let surroundings = CoordinatorContext { peers, ..CoordinatorContext::default() };
    let mut coordinator = feedline_coordinator::start_in(settings, entropy::coordinator_life(), surroundings)
        .await
        .map_err(Failure::failed)?;
    let served = served(&coordinator, secret.as_ref(), credentials);
    let mut server = GrpcServer::start(bound.listener, guard.tls(), served.routes);
    if let Some(http) = &http {
        http.set_ready(readiness(&coordinator));
    }
    announce("coordinator", bound.address, http.as_ref())?;
    tokio::select! {
        () = stop.cancelled() => {}
        result = coordinator.wait() => return result.map_err(Failure::failed),
        result = server.wait() => return result,
    }
    tracing::info!("stopping");
    let deadline = Instant::now() + grace;
    // First, while the others can still reach it, so that one of them leads before it is gone.
    stop_coordinator(coordinator, deadline).await?;
    // What was answered may still be on its way.
    server.shutdown(deadline).await?;
    stop_http(http).await;
    Ok(())
}

/// Ready means that a leader is known.
fn readiness(coordinator: &RunningCoordinator) -> Readiness {
    let standing = coordinator.standing();
    Box::new(move || {
        let known = *standing.borrow();
        known.map(|_| ()).ok_or_else(|| "the coordinators have not chosen one that leads".to_owned())
    })
}

fn settings(args: &CoordinatorArgs, url: String) -> Result<CoordinatorSettings, Failure> {
    let index_dir = args.index_dir.clone().unwrap_or_else(|| args.data_dir.join("index"));
    let mut settings = CoordinatorSettings::durable(&args.data_dir, index_dir);
    settings.cluster.worker_lease_ms = args.worker_lease.as_millis().max(1) as u64;
    settings.peers.clone_from(&args.peers);
    settings.url = url;
    settings.cluster.auto_cache = args.auto_cache.is_on();
    settings.grace_ms = args.end.grace.as_millis() as u64;
    settings.reads = store_access::of_coordinator(&args.stores)?;
    settings.reads.local_by_prefix = args.secret.secret_file.is_some();
    let files = [&args.secret.secret_file, &args.tenants.tenants].into_iter().flatten().cloned();
    let kept = settings.kept_files();
    settings.own_files = store_access::own_files(&args.guard, &args.stores, files.chain(kept));
    if let Some(file) = &args.planner {
        settings.plan = yaml::planner_settings(file)?;
    }
    args.tenants.set(&args.limits, &mut settings)?;
    Ok(settings)
}
