//! Arrow Flight on a cluster with a secret and tenants: who has no token learns nothing, and who has one no more than its
//! tenant may know.

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightDescriptor, Ticket};
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_coordinator::CoordinatorSettings;
use feedline_data::ids::JobId;
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request};

use super::*;

const PIPELINE: &str =
    "name: a\nsource: { url: \"/data/*\", format: jsonl }\noperators: [ batch: { size: 4 } ]";

/// What a tenant may be allowed.
const TENANTS: [Scope; 3] = [Scope::Submit, Scope::Consume, Scope::Observe];

struct Cluster {
    secret: Secret,
    coordinator: RunningCoordinator,
    server: GrpcServer,
    flights: FlightServiceClient<Channel>,
    _folder: TempDir,
}

impl Cluster {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = Secret::new().unwrap();
        let settings = CoordinatorSettings::in_memory(folder.path());
        let coordinator = feedline_coordinator::start(settings, 1).await.unwrap();
        let routes = served(&coordinator, Some(&secret), Credentials::default()).routes;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let server = GrpcServer::start(listener, None, routes);
        let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
        Self { secret, coordinator, server, flights: FlightServiceClient::new(channel), _folder: folder }
    }

    fn token(&self, tenant: &str, scopes: &[Scope], expires_s: Option<u64>) -> String {
        Tokens::new(&self.secret).make(&Claims {
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

    /// How the batches of a job's first consumer are refused.
    async fn read(&mut self, job: JobId, token: Option<&str>) -> Code {
        let ticket = Ticket::new(format!("{{\"job\":{},\"consumer\":0}}", job.0));
        self.flights.do_get(with(token, ticket)).await.unwrap_err().code()
    }

    async fn stop(self) {
        self.coordinator.shutdown().await.unwrap();
        self.server.shutdown(Instant::now()).await.unwrap();
    }
}

fn with<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

#[tokio::test]
async fn a_flight_is_for_whoever_has_a_token_of_its_tenant() {
    let mut cluster = Cluster::start().await;
    let job = cluster.open("a").await;
    let [a, b] = ["a", "b"].map(|tenant| cluster.token(tenant, &TENANTS, None));
    let expired = cluster.token("a", &TENANTS, Some(1));
    for token in [None, Some("hunter2"), Some(&*expired)] {
        assert_eq!(cluster.read(job, token).await, Code::PermissionDenied, "{token:?}");
        let descriptor = FlightDescriptor::new_cmd(PIPELINE);
        let status = cluster.flights.get_flight_info(with(token, descriptor)).await.unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{token:?}");
    }
    assert_eq!(cluster.read(job, Some(&b)).await, Code::NotFound, "it is another tenant's");
    // Nobody has indexed its data, so there is nothing to read yet; and that is told.
    assert_eq!(cluster.read(job, Some(&a)).await, Code::Unavailable);
    let consumer = cluster.token("a", &[Scope::Consume], None);
    let descriptor = FlightDescriptor::new_cmd(PIPELINE);
    let status = cluster.flights.get_flight_info(with(Some(&consumer), descriptor)).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "it may join jobs and not open them");
    cluster.stop().await;
}

#[test]
fn worker_processes_end_before_whoever_started_them() {
    for (grace_ms, expected_ms) in [(0, 0), (1_000, 500), (4_000, 2_000), (10_000, 8_000), (600_000, 598_000)]
    {
        let grace = Duration::from_millis(grace_ms);
        let given = up::process_grace(grace);
        assert_eq!(given, Duration::from_millis(expected_ms));
        // A worker may take as long for last answers as `up` waits after its own grace time.
        assert!(grace.is_zero() || given + LAST_ANSWERS < grace + LAST_ANSWERS);
    }
}

#[tokio::test]
async fn a_ticket_of_a_flight_is_small() {
    let mut cluster = Cluster::start().await;
    let token = cluster.token("a", &TENANTS, None);
    let ticket = Ticket::new(vec![b'x'; 65 << 10]);
    let status = cluster.flights.do_get(with(Some(&token), ticket)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status}");
    cluster.stop().await;
}
