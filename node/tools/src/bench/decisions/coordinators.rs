//! The coordinators that `feedline bench decisions` measures: starts and restarts them, and measures the size of their
//! logs.

use std::path::Path;
use std::time::{Duration, Instant};

use feedline_access::Credentials;
use feedline_command::Failure;
use feedline_coordinator::{CoordinatorSettings, RunningCoordinator};
use feedline_proto::authenticator::Authenticators;
use feedline_proto::grpc;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::host::ToolHost;

/// Timeout for a restart.
const RESTART_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two attempts to reach restarted coordinators.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Coordinators of one cluster that run in this process.
pub(super) struct CoordinatorGroup {
    pub(super) urls: Vec<String>,
    /// Dropping a coordinator stops it.
    _running: Vec<RunningCoordinator>,
    stop: CancellationToken,
}

impl CoordinatorGroup {
    /// Starts a coordinator on each address. Their logs are in `folder`.
    pub(super) async fn start(
        addresses: &[String],
        folder: &Path,
        heartbeat: Duration,
        host: &dyn ToolHost,
    ) -> Result<Self, Failure> {
        let mut listeners = Vec::new();
        for address in addresses {
            listeners.push(TcpListener::bind(address).await.map_err(Failure::failed)?);
        }
        let urls = listeners.iter().map(|it| it.local_addr().map(|address| format!("http://{address}")));
        let urls: Vec<String> = urls.collect::<Result<_, _>>().map_err(Failure::failed)?;
        let stop = CancellationToken::new();
        let mut running = Vec::new();
        for (number, (listener, url)) in listeners.into_iter().zip(&urls).enumerate() {
            let folder = folder.join(number.to_string());
            let mut settings = CoordinatorSettings::durable(folder.join("log"), folder.join("index"));
            settings.url.clone_from(url);
            if addresses.len() > 1 {
                settings.peers.clone_from(&urls);
            }
            settings.plan_interval_ms = 0;
            settings.cluster.auto_cache = false;
            settings.cluster.hold_ms = heartbeat.as_millis().max(1) as u64;
            // Session ids increase, so each start of a coordinator has a larger start id than the previous start.
            let coordinator = feedline_coordinator::start(settings, host.next_session().0)
                .await
                .map_err(Failure::failed)?;
            let routes = grpc::member_routes(Authenticators::allow_all(
                coordinator.service(),
                coordinator.peer_service(),
            ));
            let stopped = stop.clone();
            let deadline = async move {
                stopped.cancelled().await;
                tokio::time::Instant::now()
            };
            tokio::spawn(grpc::serve(listener, routes, deadline));
            running.push(coordinator);
        }
        Ok(Self { urls, _running: running, stop })
    }

    /// Stops the servers and drops the coordinators, as if their processes were killed.
    pub(super) fn stop(self) {
        self.stop.cancel();
    }
}

/// Restarts all coordinators at the same addresses, and returns the seconds until one answers.
pub(super) async fn measure_restart(
    urls: &[String],
    folder: &Path,
    heartbeat: Duration,
    host: &dyn ToolHost,
) -> Result<f64, Failure> {
    let addresses: Vec<String> = urls.iter().map(|url| url.replace("http://", "")).collect();
    let started = Instant::now();
    let group = loop {
        match CoordinatorGroup::start(&addresses, folder, heartbeat, host).await {
            Ok(group) => break group,
            // The previous coordinators may not have released their ports and files yet.
            Err(error) if started.elapsed() > RESTART_TIMEOUT => return Err(error),
            Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
        }
    };
    let coordinator = host.connect(&group.urls, &Credentials::default()).await?;
    while let Err(error) = coordinator.list_jobs().await {
        if started.elapsed() > RESTART_TIMEOUT {
            return Err(Failure::failed(error));
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    let seconds = started.elapsed().as_secs_f64();
    group.stop();
    Ok(seconds)
}

/// Returns the size of the largest log in `folder`.
pub(super) fn largest_log_bytes(folder: &Path) -> Result<u64, Failure> {
    let mut largest = 0;
    for coordinator in std::fs::read_dir(folder).map_err(Failure::failed)? {
        let log = coordinator.map_err(Failure::failed)?.path().join("log").join("records.log");
        largest = largest.max(std::fs::metadata(log).map_err(Failure::failed)?.len());
    }
    Ok(largest)
}
