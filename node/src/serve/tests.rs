//! Tests of Arrow Flight on a cluster with tokens and tenants, and of grace periods.

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightDescriptor, Ticket};
use feedline_access::Secret;
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_coordinator::CoordinatorSettings;
use feedline_data::ids::JobId;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use feedline_proto::PROTOCOL_VERSION;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::*;

const PIPELINE: &str =
    "name: a\nsource: { url: \"/data/*\", format: jsonl }\noperators: [ batch: { size: 4 } ]";

/// All scopes of a tenant's token.
const TENANT_SCOPES: [Scope; 3] = [Scope::Submit, Scope::Consume, Scope::Observe];

struct FlightCluster {
    secret: Secret,
    coordinator: RunningCoordinator,
    server: GrpcServer,
    flights: FlightServiceClient<Channel>,
    _folder: TempDir,
}

impl FlightCluster {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::new().unwrap();
        let settings = CoordinatorSettings::in_memory(folder.path());
        let coordinator = feedline_coordinator::start(settings, 1).await.unwrap();
        let fixed = Arc::new(ClusterSecret::fixed(secret.clone()));
        let credentials = Credentials::default();
        let routes = coordinator_routes(&coordinator, Some(&fixed), credentials, PROTOCOL_VERSION).routes;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = GrpcServer::start(listener, None, routes);
        let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
        Self { secret, coordinator, server, flights: FlightServiceClient::new(channel), _folder: folder }
    }

    fn token(&self, tenant: &str, scopes: &[Scope], expires_s: Option<u64>) -> String {
        Tokens::new(&self.secret).issue(&Claims {
            holder: "ci".to_owned(),
            scopes: scopes.iter().copied().collect(),
            tenant: Some(tenant.to_owned()),
            expires_s,
        })
    }

    async fn open(&self, tenant: &str) -> JobId {
        let pipeline = Pipeline::from_yaml(PIPELINE, "a.yaml").unwrap();
        let spec = JobSpec { tenant: tenant.to_owned(), ..JobSpec::new(pipeline) };
        self.coordinator.service().open_job(spec).await.unwrap()
    }

    /// Returns the status of a request for the batches of a job's first consumer.
    async fn read_status(&mut self, job: JobId, token: Option<&str>) -> Code {
        let ticket = Ticket::new(format!("{{\"job\":{},\"consumer\":0}}", job.0));
        self.flights.do_get(with_token(token, ticket)).await.unwrap_err().code()
    }

    async fn stop(self) {
        self.coordinator.shutdown().await.unwrap();
        self.server.shutdown(Instant::now()).await.unwrap();
    }
}

fn with_token<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_flight_requires_a_token_of_its_tenant() {
    let mut cluster = FlightCluster::start().await;
    let job = cluster.open("a").await;
    let [a, b] = ["a", "b"].map(|tenant| cluster.token(tenant, &TENANT_SCOPES, None));
    let expired = cluster.token("a", &TENANT_SCOPES, Some(1));
    for token in [None, Some("hunter2"), Some(&*expired)] {
        assert_eq!(cluster.read_status(job, token).await, Code::PermissionDenied, "{token:?}");
        let descriptor = FlightDescriptor::new_cmd(PIPELINE);
        let status = cluster.flights.get_flight_info(with_token(token, descriptor)).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{token:?}");
    }
    assert_eq!(cluster.read_status(job, Some(&b)).await, Code::NotFound, "the job belongs to another tenant");
    // The dataset is not indexed yet.
    assert_eq!(cluster.read_status(job, Some(&a)).await, Code::Unavailable);
    let consumer = cluster.token("a", &[Scope::Consume], None);
    let descriptor = FlightDescriptor::new_cmd(PIPELINE);
    let status = cluster.flights.get_flight_info(with_token(Some(&consumer), descriptor)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "the token may join jobs but not open them");
    cluster.stop().await;
}

#[test]
fn worker_processes_exit_before_their_parent() {
    for (grace_ms, expected_ms) in [(0, 0), (1_000, 500), (4_000, 2_000), (10_000, 8_000), (600_000, 598_000)]
    {
        let grace = Duration::from_millis(grace_ms);
        let worker_grace = up::process_grace(grace);
        assert_eq!(worker_grace, Duration::from_millis(expected_ms));
        // A worker and `up` both wait for the final grace after their grace periods.
        assert!(grace.is_zero() || worker_grace + FINAL_GRACE < grace + FINAL_GRACE);
    }
}

#[tokio::test]
async fn a_large_flight_ticket_is_rejected() {
    let mut cluster = FlightCluster::start().await;
    let token = cluster.token("a", &TENANT_SCOPES, None);
    let ticket = Ticket::new(vec![b'x'; 65 << 10]);
    let status = cluster.flights.do_get(with_token(Some(&token), ticket)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    cluster.stop().await;
}
