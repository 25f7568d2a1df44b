//! The scaler of a coordinator, and the server that KEDA asks for the number of workers.

use std::net::SocketAddr;
use std::sync::Arc;

use feedline_access::Credentials;
use feedline_coordinator::Scaler;
use feedline_kubernetes::KubernetesScaler;
use feedline_proto::{CoordinatorService, grpc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::GrpcServer;
use super::keda_scaler::KedaScaler;
use crate::access::ServerSecurity;
use crate::cli::{ScalerChoice, ScalingPlan, ServerAccessArgs};
use crate::failure::Failure;
use crate::leader_decisions::LeaderDecisions;
use crate::listen::{self, BoundListener};

/// The flags that protect the server for KEDA, for error messages. KEDA has a certificate, but no token.
const KEDA_FIX: &str = "pass --tls-cert, --tls-key and --tls-ca";

/// The scaler of a coordinator that has not started yet.
pub(super) struct CoordinatorScaler {
    /// The scaler, for the planner.
    pub(super) scaler: Arc<dyn Scaler>,
    keda: Option<KedaListener>,
}

struct KedaListener {
    bound: BoundListener,
    pools: Vec<String>,
    security: ServerSecurity,
}

/// The running server for KEDA.
pub(super) struct KedaServer {
    /// The address that it listens on.
    pub(super) address: SocketAddr,
    server: GrpcServer,
    /// Ends open streams.
    stop: CancellationToken,
    /// Reloads the certificates.
    _security: ServerSecurity,
}

impl CoordinatorScaler {
    /// Starts a scaler. For KEDA, also listens on the address for it.
    pub(super) async fn start(plan: &ScalingPlan, access: &ServerAccessArgs) -> Result<Self, Failure> {
        match &plan.scaler {
            ScalerChoice::Kubernetes(settings) => {
                let client = feedline_kubernetes::connect().await.map_err(Failure::failed)?;
                let scaler = KubernetesScaler::start(&client, settings.clone());
                Ok(Self { scaler: Arc::new(scaler), keda: None })
            }
            ScalerChoice::Keda { pools, listen } => {
                let security = ServerSecurity::for_certified_clients(access)?;
                let bound = listen::bind(listen, "--scaler-listen").await?;
                security.check_listen_address(bound.address, false, KEDA_FIX)?;
                let names = pools.iter().map(|pool| pool.pool.clone()).collect();
                let keda = Some(KedaListener { bound, pools: names, security });
                Ok(Self { scaler: Arc::new(KedaScaler::new(pools.clone())), keda })
            }
        }
    }

    /// Serves KEDA, if it is the scaler. `own` is the coordinator in this process, and `credentials` give access to the
    /// leader.
    pub(super) fn serve_keda(
        self,
        own: Arc<dyn CoordinatorService>,
        credentials: Credentials,
        protocol_version: u32,
    ) -> Option<KedaServer> {
        let KedaListener { bound, pools, security } = self.keda?;
        let decisions = LeaderDecisions::new(own, pools, move |url| {
            grpc::connect_coordinator_with_version(url, &credentials, protocol_version)
        });
        let stop = CancellationToken::new();
        let routes = grpc::external_scaler_routes(Arc::new(decisions), stop.clone());
        let server = GrpcServer::start(bound.listener, security.tls(), routes);
        Some(KedaServer { address: bound.address, server, stop, _security: security })
    }
}

impl KedaServer {
    /// Waits until the server ends, which happens only after a failure.
    pub(super) async fn wait(&mut self) -> Result<(), Failure> {
        self.server.wait().await
    }

    /// Stops the server within its grace time after the deadline.
    pub(super) async fn shutdown(self, deadline: Instant) -> Result<(), Failure> {
        self.stop.cancel();
        self.server.shutdown(deadline).await
    }
}
