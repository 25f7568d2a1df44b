//! Tests of the permissions: each scope with each request.

use std::sync::Mutex;

use feedline_access::Secret;
use feedline_access::ticket::{TicketIssuer, TicketKey};
use feedline_access::token::Tokens;
use feedline_data::checkpoint::StepId;
use feedline_data::ids::JobId;
use feedline_data::ids::SessionId;
use feedline_data::manifest::Manifest;
use feedline_data::messages::PartitionedJob;
use feedline_data::pipeline::Pipeline;
use feedline_proto::MemberInfo;

use super::*;
use crate::tenant_view::tests::{consuming, working};

/// The names of received requests.
#[derive(Default)]
struct Recorder(Mutex<Vec<&'static str>>);

impl Recorder {
    /// Returns no replies: the tests check only whether a request is permitted.
    fn note<T>(&self, request: &'static str) -> Result<T, ServiceError> {
        self.0.lock().unwrap().push(request);
        Err(ServiceError::new(ServiceErrorKind::NotFound, "arrived"))
    }
}

#[async_trait]
impl CoordinatorService for Recorder {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        use {CoordinatorReply as Reply, CoordinatorRequest as Request};
        Ok(match request {
            Request::ListJobs {} => Reply::ListJobs(Vec::new()),
            Request::SyncWorker { .. } => Reply::SyncWorker(WorkerPlan::default()),
            Request::ListMembers {} => Reply::ListMembers(Vec::new()),
            Request::AddMember { .. } => Reply::AddMember(Vec::new()),
            Request::RemoveMember { .. } => Reply::RemoveMember(Vec::new()),
            Request::SyncMembers { .. } => Reply::SyncMembers(Vec::new()),
            Request::TransferLeader { .. } => Reply::TransferLeader(Vec::new()),
            Request::JoinJob { .. } => return Err(denied("no job is open")),
            other => return self.note(other.name()),
        })
    }
}

#[async_trait]
impl PeerService for Recorder {
    async fn introduce(&self, from: MemberInfo) -> Result<MemberInfo, ServiceError> {
        Ok(from)
    }

    async fn join(&self, _: MemberInfo) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn deliver(&self, _: MemberInfo, _: Vec<bytes::Bytes>) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn store_index(&self, _: &str, _: Arc<Manifest>, _: &[String]) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn load_index(&self, _: &str, _: &str) -> Result<Arc<Manifest>, ServiceError> {
        self.note("index")
    }
}

struct Bench {
    gate: Arc<TokenAuthenticator>,
    secret: Secret,
}

/// Returns the secret of a coordinator whose secret never changes.
fn fixed(secret: &Secret) -> Arc<ClusterSecret> {
    Arc::new(ClusterSecret::fixed(secret.clone()))
}

impl Bench {
    fn new() -> Self {
        let secret = Secret::new().unwrap();
        let recorder = Arc::new(Recorder::default());
        let gate = TokenAuthenticator::new(fixed(&secret), recorder.clone(), recorder);
        Self { gate, secret }
    }

    fn token(&self, scopes: &[Scope]) -> String {
        self.token_of(None, scopes)
    }

    fn token_of(&self, tenant: Option<&str>, scopes: &[Scope]) -> String {
        Tokens::new(&self.secret).issue(&Claims {
            holder: "ci".to_owned(),
            scopes: scopes.iter().copied().collect(),
            tenant: tenant.map(str::to_owned),
            expires_s: Some(now_s() + 60),
        })
    }

    fn coordinator(&self, token: Option<&str>) -> Result<Arc<dyn CoordinatorService>, ServiceError> {
        self.gate.authenticators().coordinator.authenticate(token)
    }
}

fn pipeline() -> Pipeline {
    let text = "name: a\nsource: { url: \"/data/*\", format: jsonl }\noperators: [ batch: { size: 4 } ]";
    Pipeline::from_yaml(text, "a.yaml").unwrap()
}

/// Whether each request is permitted, by name.
async fn let_through(service: &dyn CoordinatorService) -> Vec<(&'static str, bool)> {
    let job = JobId(1);
    let denied = |refusal: Option<ServiceError>| {
        refusal.is_some_and(|refusal| refusal.kind == ServiceErrorKind::Denied)
    };
    vec![
        ("open_job", !denied(service.open_job(JobSpec::new(pipeline())).await.err())),
        ("cancel_job", !denied(service.cancel_job(job).await.err())),
        ("set_weights", !denied(service.set_weights(job, vec![1.0]).await.err())),
        ("job_details", !denied(service.job_details(job).await.err())),
        ("job_status", !denied(service.job_status(job).await.err())),
        ("list_jobs", !denied(service.list_jobs().await.err())),
        ("cluster", !denied(service.cluster().await.err())),
        ("manifest", !denied(service.manifest(job).await.err())),
        ("sync_worker", !denied(service.sync_worker(working()).await.err())),
        ("members", !denied(service.members().await.err())),
        ("add_member", !denied(service.add_member("http://a:1").await.err())),
        ("remove_member", !denied(service.remove_member("http://a:1").await.err())),
        ("sync_members", !denied(service.sync_members(["http://a:1".to_owned()]).await.err())),
        ("transfer_leader", !denied(service.transfer_leader("1").await.err())),
        ("positions", !denied(service.positions(job, StepId::default()).await.err())),
        ("sync_consumer", !denied(service.sync_consumer(consuming(job)).await.err())),
    ]
}

#[tokio::test]
async fn a_token_permits_exactly_the_requests_of_its_scopes() {
    let seen = ["job_details", "job_status", "list_jobs", "manifest"];
    let expected: [(Scope, &[&str]); 6] = [
        (Scope::Submit, &["open_job", "cancel_job", "set_weights", "cluster"]),
        // The token may join open jobs, and no job is open.
        (Scope::Consume, &["sync_consumer", "positions"]),
        (Scope::Work, &["sync_worker"]),
        (Scope::Observe, &["cluster"]),
        (Scope::Admin, &["add_member", "remove_member", "sync_members", "transfer_leader"]),
        (Scope::Coordinate, &[]),
    ];
    let bench = Bench::new();
    for (scope, own) in expected {
        let sees = [Scope::Submit, Scope::Consume, Scope::Work, Scope::Observe].contains(&scope);
        let service = bench.coordinator(Some(&bench.token(&[scope]))).unwrap();
        for (request, passed) in let_through(service.as_ref()).await {
            let wanted = own.contains(&request) || request == "members" || (sees && seen.contains(&request));
            assert_eq!(passed, wanted, "{scope} at {request}");
        }
    }
}

#[tokio::test]
async fn requests_without_a_valid_token_are_denied() {
    let bench = Bench::new();
    let other = Bench::new().token(&Scope::GRANTABLE);
    let expired = Tokens::new(&bench.secret).issue(&Claims {
        holder: "ci".to_owned(),
        scopes: Scope::GRANTABLE.into(),
        tenant: None,
        expires_s: Some(1),
    });
    let authenticators = bench.gate.authenticators();
    for token in [None, Some(""), Some("hunter2"), Some(&*other), Some(&*expired)] {
        for refusal in [
            authenticators.coordinator.authenticate(token).map(|_| ()).unwrap_err(),
            authenticators.peer.authenticate(token).map(|_| ()).unwrap_err(),
        ] {
            assert_eq!(refusal.kind, ServiceErrorKind::Denied);
            assert!(!refusal.message.contains("hunter2"));
        }
    }
}

#[test]
fn only_workers_may_send_large_requests() {
    let bench = Bench::new();
    let coordinator = bench.gate.authenticators().coordinator;
    for scope in Scope::GRANTABLE {
        assert_eq!(
            coordinator.allows_large_messages(Some(&bench.token(&[scope]))),
            scope == Scope::Work,
            "{scope}"
        );
    }
    assert!(!coordinator.allows_large_messages(None));
}

#[test]
fn a_token_is_verified_once_until_it_expires() {
    let bench = Bench::new();
    let token = bench.token(&[Scope::Observe]);
    let [first, second] = [0, 1].map(|_| bench.coordinator(Some(&token)).unwrap());
    assert!(Arc::ptr_eq(&first, &second));
}

#[tokio::test]
async fn coordinators_and_administrators_have_separate_permissions() {
    let bench = Bench::new();
    let authenticators = bench.gate.authenticators();
    for scope in Scope::GRANTABLE {
        assert!(authenticators.peer.authenticate(Some(&bench.token(&[scope]))).is_err(), "{scope}");
        let members = authenticators.coordinator.authenticate(Some(&bench.token(&[scope]))).unwrap();
        assert!(members.members().await.is_ok(), "clients look for the one that leads");
        assert_eq!(members.add_member("http://a:1").await.is_ok(), scope == Scope::Admin, "{scope}");
        assert_eq!(members.remove_member("http://a:1").await.is_ok(), scope == Scope::Admin, "{scope}");
    }
    assert!(authenticators.peer.authenticate(Some(&bench.token(&[Scope::Coordinate]))).is_ok());
}

#[tokio::test]
async fn a_token_of_a_tenant_does_not_permit_cluster_requests() {
    let bench = Bench::new();
    let authenticators = bench.gate.authenticators();
    for scope in Scope::CLUSTER_WIDE {
        let token = bench.token_of(Some("a"), &[Scope::Submit, scope]);
        for refusal in [
            authenticators.coordinator.authenticate(Some(&token)).map(|_| ()).unwrap_err(),
            authenticators.peer.authenticate(Some(&token)).map(|_| ()).unwrap_err(),
        ] {
            assert_eq!(refusal.kind, ServiceErrorKind::Denied, "{scope}");
            assert!(refusal.message.contains("applies to the whole cluster"), "{refusal}");
        }
    }
}

#[tokio::test]
async fn workers_receive_the_key_that_verifies_tickets() {
    let bench = Bench::new();
    let service = bench.coordinator(Some(&bench.token(&[Scope::Work]))).unwrap();
    let key = TicketKey::from_bytes(service.sync_worker(working()).await.unwrap().ticket_key);
    let ticket = TicketIssuer::new(&bench.secret).issue(JobId(1), 0, SessionId(1), now_s());
    assert!(key.check(Some(&ticket), JobId(1), now_s()).is_ok());
    let plan = bench.gate.for_workers().sync_worker(working()).await.unwrap();
    assert_eq!(plan.ticket_key, key.as_bytes(), "those in the same process too");
}

#[test]
fn workers_receive_a_ticket_for_each_job_that_they_compute_together() {
    let bench = Bench::new();
    let holder = "a worker".to_owned();
    let claims = Claims { holder, scopes: [Scope::Work].into(), tenant: None, expires_s: None };
    let view = bench.gate.view(Arc::new(claims));
    let job = |job| PartitionedJob { job: JobId(job), workers: Vec::new(), ticket: String::new() };
    let plan = WorkerPlan { partitioned_jobs: vec![job(1), job(2)], ..WorkerPlan::default() };
    let plan = view.with_tickets(plan);
    let key = TicketKey::from_bytes(plan.ticket_key);
    for PartitionedJob { job, ticket, .. } in &plan.partitioned_jobs {
        assert!(key.check_gather(ticket, *job, now_s()).is_ok());
        assert!(key.check_gather(ticket, JobId(3 - job.0), now_s()).is_err(), "a ticket is for one job");
        assert!(key.check(Some(ticket), *job, now_s()).is_err(), "it does not allow fetches");
    }
}

#[tokio::test]
async fn a_replaced_secret_stays_valid_for_tokens_and_tickets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let [old, new, other] = [0, 1, 2].map(|_| Secret::new().unwrap());
    std::fs::write(&file, old.text()).unwrap();
    let secret = Arc::new(ClusterSecret::load(file.clone()).unwrap());
    let recorder = Arc::new(Recorder::default());
    let gate = TokenAuthenticator::new(Arc::clone(&secret), recorder.clone(), recorder);
    let authenticate = |secret: &Secret| {
        let claims = Claims {
            holder: "ci".to_owned(),
            scopes: [Scope::Work].into(),
            tenant: None,
            expires_s: Some(now_s() + 60),
        };
        gate.authenticators().coordinator.authenticate(Some(&Tokens::new(secret).issue(&claims)))
    };
    let connected = authenticate(&old).unwrap();
    assert!(authenticate(&new).is_err());
    std::fs::write(&file, new.text()).unwrap();
    assert_eq!(secret.reload(), Ok(true));
    assert!(authenticate(&old).is_ok() && authenticate(&new).is_ok() && authenticate(&other).is_err());
    // A connected worker receives the keys of both secrets with its next plan.
    let key = TicketKey::from_bytes(connected.sync_worker(working()).await.unwrap().ticket_key);
    for (secret, is_valid) in [(&old, true), (&new, true), (&other, false)] {
        let ticket = TicketIssuer::new(secret).issue(JobId(1), 0, SessionId(1), now_s());
        assert_eq!(key.check(Some(&ticket), JobId(1), now_s()).is_ok(), is_valid);
    }
    // An invalid file changes nothing.
    std::fs::write(&file, "not a secret").unwrap();
    assert!(secret.reload().is_err());
    assert!(authenticate(&old).is_ok() && authenticate(&new).is_ok());
}

#[tokio::test]
async fn a_token_of_a_tenant_permits_only_its_jobs() {
    let folder = tempfile::tempdir().unwrap();
    let settings = crate::CoordinatorSettings::in_memory(folder.path());
    let coordinator = crate::start(settings, 1).await.unwrap();
    let secret = Secret::new().unwrap();
    let peer = coordinator.peer_service();
    let gate = TokenAuthenticator::new(fixed(&secret), coordinator.service(), peer);
    let bench = Bench { gate, secret };
    let scopes = [Scope::Submit, Scope::Consume, Scope::Observe];
    let of = |tenant| bench.coordinator(Some(&bench.token_of(tenant, &scopes))).unwrap();
    let (a, b, all) = (of(Some("a")), of(Some("b")), of(None));
    let spec = JobSpec::new(pipeline());
    let [of_a, of_b] = [a.open_job(spec.clone()).await.unwrap(), b.open_job(spec.clone()).await.unwrap()];
    assert_ne!(of_a, of_b);
    let listed = async |service: &Arc<dyn CoordinatorService>| {
        service.list_jobs().await.unwrap().into_iter().map(|job| job.job).collect::<Vec<_>>()
    };
    assert_eq!(
        (listed(&a).await, listed(&b).await, listed(&all).await),
        (vec![of_a], vec![of_b], vec![of_a, of_b])
    );
    let foreign = consuming(of_a);
    let refusals = [
        b.cancel_job(of_a).await.unwrap_err(),
        b.job_details(of_a).await.unwrap_err(),
        b.job_status(of_a).await.unwrap_err(),
        b.manifest(of_a).await.unwrap_err(),
        b.sync_consumer(foreign.clone()).await.unwrap_err(),
    ];
    assert!(refusals.iter().all(|refusal| refusal.kind == ServiceErrorKind::NotFound), "{refusals:?}");
    assert!(b.sync_worker(working()).await.is_err());
    // A consumer joins open jobs of its own tenant only.
    let consumer =
        |tenant| bench.coordinator(Some(&bench.token_of(Some(tenant), &[Scope::Consume]))).unwrap();
    assert_eq!(consumer("a").open_job(spec.clone()).await, Ok(of_a));
    assert_eq!(consumer("c").open_job(spec).await.unwrap_err().kind, ServiceErrorKind::Denied);
    // The ticket contains the job and the session of the request.
    let asks = (foreign.consumer, foreign.session);
    let plan = a.sync_consumer(foreign).await.unwrap();
    let key = TicketIssuer::new(&bench.secret).public_key();
    let ticket = key.check(Some(&plan.ticket), of_a, now_s()).unwrap();
    assert_eq!((ticket.consumer, ticket.session), asks);
    assert!(key.check(Some(&plan.ticket), of_b, now_s()).is_err());
    coordinator.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_token_without_a_tenant_opens_and_joins_jobs_without_a_tenant() {
    let folder = tempfile::tempdir().unwrap();
    let coordinator = crate::start(crate::CoordinatorSettings::in_memory(folder.path()), 1).await.unwrap();
    let secret = Secret::new().unwrap();
    let peer = coordinator.peer_service();
    let gate = TokenAuthenticator::new(fixed(&secret), coordinator.service(), peer);
    let bench = Bench { gate, secret };
    let of = |tenant, scopes: &[Scope]| bench.coordinator(Some(&bench.token_of(tenant, scopes))).unwrap();
    let foreign = JobSpec { tenant: "a".to_owned(), ..JobSpec::new(pipeline()) };
    let of_a = of(Some("a"), &[Scope::Submit]).open_job(foreign.clone()).await.unwrap();
    // An open job of another tenant with this name is not joined, and no job of that tenant is opened.
    let consumer = of(None, &[Scope::Consume]);
    let refusal = consumer.open_job(foreign.clone()).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Denied);
    assert_eq!(refusal.message, "the token of `ci` may only join open jobs, and job `a` is not open");
    let submitter = of(None, &[Scope::Submit]);
    let own = submitter.open_job(foreign.clone()).await.unwrap();
    assert_ne!(own, of_a);
    assert_eq!(coordinator.service().job_status(own).await.unwrap().tenant, "");
    assert_eq!(consumer.open_job(foreign.clone()).await, Ok(own));
    assert_eq!(submitter.join_job(foreign.clone()).await, Ok(own));
    // A job that ends in the meantime is not opened again.
    submitter.cancel_job(own).await.unwrap();
    assert_eq!(consumer.open_job(foreign.clone()).await.unwrap_err().kind, ServiceErrorKind::Denied);
    assert_eq!(coordinator.service().list_jobs().await.unwrap().len(), 2);
    let admin = of(None, &[Scope::Submit, Scope::Admin]);
    assert_eq!(admin.open_job(foreign).await, Ok(of_a), "who administers says whose it is");
    coordinator.shutdown().await.unwrap();
}
