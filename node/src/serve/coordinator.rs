//! `feedline coordinator`.

use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};

use super::{GrpcServer, announce, coordinator_routes, stop_http};
use crate::cli::CoordinatorArgs;
use crate::failure::Failure;
use crate::http::Readiness;
use crate::{entropy, http, listen, signals, yaml};

/// Runs a coordinator until a signal.
pub(crate) async fn run(args: CoordinatorArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let bound = listen::bind(&args.listen, "--listen").await?;
    let http = http::start(args.http.as_deref()).await?;
    let url = match &args.advertise {
        Some(url) => url.clone(),
        None if args.peers.is_empty() => format!("http://{}", bound.address),
        None => listen::url(&bound, "--advertise http://HOST:PORT")?,
    };
    if !args.peers.is_empty() && !args.peers.contains(&url) {
        return Err(Failure::wrong_use(format!(
            "--peers does not name this coordinator, {url}: name all coordinators there, and say with --advertise by which of the addresses the others reach this one"
        )));
    }
    let settings = settings(&args, url)?;
    let mut coordinator =
        feedline_coordinator::start(settings, entropy::coordinator_life()).await.map_err(Failure::failed)?;
    let mut server = GrpcServer::start(bound.listener, coordinator_routes(&coordinator));
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
    // First, while the others can still reach it, so that one of them leads before it is gone.
    coordinator.shutdown().await.map_err(Failure::failed)?;
    server.shutdown().await?;
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
    if let Some(file) = &args.planner {
        settings.plan = yaml::planner_settings(file)?;
    }
    Ok(settings)
}
