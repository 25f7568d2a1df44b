//! Runs `feedline coordinator`.

use std::sync::Arc;

use feedline_coordinator::{
    CoordinatorContext, CoordinatorSettings, GrpcPeers, PeerDirectory, RunningCoordinator,
};
use hyper::Uri;
use tokio::time::Instant;

use super::scaling::{CoordinatorScaler, KedaServer};
use super::{GrpcServer, announce, coordinator_routes, stop_coordinator};
use crate::access::{ServerSecurity, coordinator_token, observer_token};
use crate::cli::{CoordinatorArgs, ScalingPlan};
use crate::disk_metrics::RoleDirectory;
use crate::failure::Failure;
use crate::http::{HttpAddresses, Readiness};
use crate::reload::reload_secret;
use crate::{entropy, http, listen, output, signals, store_access, yaml};

/// The flags that protect a coordinator on a network, for error messages.
pub(super) const COORDINATOR_FIX: &str =
    "pass --tls-cert, --tls-key, --tls-ca and --secret-file with the files that `feedline keys new` creates";

/// Runs a coordinator until a signal arrives.
pub(crate) async fn run(args: CoordinatorArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let scaling = args.scaling.plan()?;
    let security = ServerSecurity::new(&args.server_access)?;
    let secret = args.secret.load()?;
    let _reload = secret.clone().map(reload_secret);
    let bound = listen::bind(&args.listen, "--listen").await?;
    security.check_listen_address(bound.address, secret.is_some(), COORDINATOR_FIX)?;
    let addresses = HttpAddresses { http: args.http.as_deref(), health: args.health.health.as_deref() };
    let mut http = http::start(addresses, &security, secret.as_ref()).await?;
    let scheme = security.scheme();
    let url = match &args.advertise {
        Some(url) => url.clone(),
        None if args.peers.is_empty() => format!("{scheme}://{}", bound.address),
        None => listen::public_url(&bound, scheme, &format!("--advertise {scheme}://HOST:PORT"))?,
    };
    if !args.peers.is_empty() && !args.peers.contains(&url) {
        return Err(Failure::invalid_usage(format!(
            "--peers does not contain this coordinator, {url}: list all coordinators, and pass --advertise with the URL of this coordinator"
        )));
    }
    warn_of_even_number(args.peers.len());
    check_own_certificate(&url, !args.peers.is_empty(), &security)?;
    let (settings, grace, protocol_version) =
        (settings(&args, url, scaling.as_ref())?, args.shutdown.grace, args.protocol_version);
    let disks = disks(&settings);
    let scaler = match &scaling {
        Some(plan) => Some(CoordinatorScaler::start(plan, &args.server_access).await?),
        None => None,
    };
    let mut credentials = security.credentials.clone();
    let mut observer = credentials.clone();
    if let Some(secret) = &secret {
        credentials.token = Some(Arc::new(coordinator_token(Arc::clone(secret))));
        observer.token = Some(Arc::new(observer_token(Arc::clone(secret))));
        tracing::info!(secret = secret.fingerprint(), "clients need tokens that this secret signed");
    }
    let peers = GrpcPeers { credentials: credentials.clone(), protocol_version };
    let peers = Some(Arc::new(peers) as Arc<dyn PeerDirectory>);
    let context =
        CoordinatorContext { peers, scaler: scaler.as_ref().map(|scaler| Arc::clone(&scaler.scaler)) };
    let mut coordinator = feedline_coordinator::start_in(settings, entropy::coordinator_start_id(), context)
        .await
        .map_err(Failure::failed)?;
    http.watch_disks(disks);
    http.export_jobs(Some(&coordinator));
    let services = coordinator_routes(&coordinator, secret.as_ref(), credentials, protocol_version);
    let mut server = GrpcServer::start(bound.listener, security.tls(), services.routes);
    let mut keda =
        scaler.and_then(|scaler| scaler.serve_keda(coordinator.service(), observer, protocol_version));
    let health = coordinator.health();
    http.set_liveness(Box::new(move || health.check()));
    // A coordinator has started even if it waits for a leader, or to join a cluster.
    http.set_ready(readiness(&coordinator));
    announce("coordinator", bound.address, &http)?;
    if let Some(keda) = &keda {
        output::print(&format!("feedline coordinator scaler on {}\n", keda.address))?;
    }
    tokio::select! {
        () = stop.cancelled() => {}
        result = coordinator.wait() => return result.map_err(Failure::failed),
        result = server.wait() => return result,
        result = wait_for_keda(keda.as_mut()) => return result,
    }
    tracing::info!("stopping");
    let deadline = Instant::now() + grace;
    // Stop the coordinator before the server, so that it can transfer leadership.
    stop_coordinator(coordinator, deadline).await?;
    // The last responses may still be in transit.
    server.shutdown(deadline).await?;
    if let Some(keda) = keda {
        keda.shutdown(deadline).await?;
    }
    http.shutdown().await;
    Ok(())
}

/// Logs a warning for an even number of coordinators.
fn warn_of_even_number(coordinators: usize) {
    if coordinators > 0 && coordinators.is_multiple_of(2) {
        tracing::warn!(
            coordinators,
            "an even number of coordinators survives as many failures as one coordinator fewer: list 1, 3 or 5 in --peers"
        );
    }
}

/// Waits until the server for KEDA ends, or forever without this server.
async fn wait_for_keda(keda: Option<&mut KedaServer>) -> Result<(), Failure> {
    match keda {
        Some(keda) => keda.wait().await,
        None => std::future::pending().await,
    }
}

/// Checks that others can verify the certificate of this coordinator at its URL. Coordinators with peers connect to each
/// other at these URLs. A proxy with another certificate may be in front of a single coordinator.
fn check_own_certificate(url: &str, has_peers: bool, security: &ServerSecurity) -> Result<(), Failure> {
    let Some(tls) = security.tls().filter(|_| url.starts_with("https://")) else { return Ok(()) };
    let uri: Option<Uri> = url.parse().ok();
    let Some(host) = uri.as_ref().and_then(Uri::host) else { return Ok(()) };
    match tls.check_own_name(host.trim_start_matches('[').trim_end_matches(']')) {
        Err(problem) if has_peers => {
            Err(Failure::invalid_usage(format!("cannot use --advertise {url}: {problem}")))
        }
        Err(problem) => {
            tracing::warn!(url, "clients can verify this coordinator only through a proxy: {problem}");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Returns the readiness check: the coordinators have elected a leader.
fn readiness(coordinator: &RunningCoordinator) -> Readiness {
    let leadership = coordinator.leader();
    Box::new(move || {
        let leader = *leadership.borrow();
        leader.map(|_| ()).ok_or_else(|| "the coordinators have not elected a leader".to_owned())
    })
}

/// Returns the directories in which a coordinator stores its log and the indexes.
pub(super) fn disks(settings: &CoordinatorSettings) -> Vec<RoleDirectory> {
    let data = settings.data_dir.iter().map(|path| RoleDirectory { name: "data", path: path.clone() });
    data.chain([RoleDirectory { name: "index", path: settings.index_dir.clone() }]).collect()
}

fn settings(
    args: &CoordinatorArgs,
    url: String,
    scaling: Option<&ScalingPlan>,
) -> Result<CoordinatorSettings, Failure> {
    let index_dir = args.index_dir.clone().unwrap_or_else(|| args.data_dir.join("index"));
    let mut settings = CoordinatorSettings::durable(&args.data_dir, index_dir);
    settings.cluster.worker_lease_ms = args.worker_lease.as_millis().max(1) as u64;
    settings.peers.clone_from(&args.peers);
    settings.url = url;
    settings.cluster.auto_cache = args.auto_cache.auto_cache.is_on();
    settings.grace_ms = args.shutdown.grace.as_millis() as u64;
    settings.reads = store_access::for_coordinator(&args.stores)?;
    settings.reads.local_by_prefix = args.secret.secret_file.is_some();
    let files = [&args.secret.secret_file, &args.tenants.tenants].into_iter().flatten().cloned();
    let stored = settings.protected_paths();
    settings.own_files = store_access::own_files(&args.server_access, &args.stores, files.chain(stored));
    if let Some(file) = &args.planner {
        settings.plan = yaml::planner_settings(file)?;
    }
    if let Some(plan) = scaling {
        settings.shrink_after_ms = plan.shrink_after.as_millis() as u64;
    }
    args.tenants.apply(&args.limits, &mut settings)?;
    Ok(settings)
}
