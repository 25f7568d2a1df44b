//! `feedline coordinator`.

use feedline_coordinator::CoordinatorSettings;

use super::{GrpcServer, announce, coordinator_routes, stop_http};
use crate::cli::CoordinatorArgs;
use crate::failure::Failure;
use crate::{entropy, http, listen, signals};

/// Runs a coordinator until a signal.
pub(crate) async fn run(args: CoordinatorArgs) -> Result<(), Failure> {
    let stop = signals::watch()?;
    let bound = listen::bind(&args.listen, "--listen").await?;
    let http = http::start(args.http.as_deref()).await?;
    let mut coordinator = feedline_coordinator::start(settings(&args), entropy::coordinator_life())
        .await
        .map_err(Failure::failed)?;
    let mut server = GrpcServer::start(bound.listener, coordinator_routes(coordinator.service()));
    if let Some(http) = &http {
        http.set_ready(Box::new(|| Ok(())));
    }
    announce("coordinator", bound.address, http.as_ref())?;
    tokio::select! {
        () = stop.cancelled() => {}
        result = coordinator.wait() => return result.map_err(Failure::failed),
        result = server.wait() => return result,
    }
    tracing::info!("stopping");
    server.shutdown().await?;
    coordinator.shutdown().await.map_err(Failure::failed)?;
    stop_http(http).await;
    Ok(())
}

fn settings(args: &CoordinatorArgs) -> CoordinatorSettings {
    let index_dir = args.index_dir.clone().unwrap_or_else(|| args.data_dir.join("index"));
    let mut settings = CoordinatorSettings::durable(&args.data_dir, index_dir);
    settings.cluster.worker_lease_ms = args.worker_lease.as_millis().max(1) as u64;
    settings.cluster.auto_cache = args.auto_cache.is_on();
    settings
}
