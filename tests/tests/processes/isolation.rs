//! Isolation of tenants: every kind of caller calls every method of every role.

mod calls;
mod raw;
mod scene;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use feedline_access::ticket::TicketIssuer;
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{Secret, now_s};
use feedline_data::ids::{JobId, SessionId};
use feedline_data::messages::{JobSpec, ServiceErrorKind};
use feedline_proto::CoordinatorService;
use feedline_proto::local::Transport;
use feedline_tests::root;
use serde_json::json;
use tonic::Code;

use self::Gets::{Denied, Nothing, Unknown, Yes};
use self::raw::field;
use self::scene::Scene;

/// Timeout of an answer.
const PATIENCE: Duration = Duration::from_secs(120);
/// A text that occurs only in the names and URLs of one tenant's job. An answer with this text discloses something of the job.
const MARK: &str = "bees";
/// An address without a coordinator.
const NOWHERE: &str = "http://127.0.0.1:1";

/// The caller. The job belongs to the tenant `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// May open jobs and receive rows of the tenant `a`.
    A,
    /// May only observe jobs of the tenant `b`.
    ObserverOfB,
    /// May run a worker.
    Worker,
    /// Has no token.
    Nobody,
    /// Has an expired token like that of `B`.
    Expired,
    /// May open jobs and receive rows of the tenant `b`.
    B,
    /// May add and remove coordinators.
    Admin,
    /// Is a coordinator.
    Coordinator,
}

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    /// The requested result.
    Yes,
    /// Permission denied.
    Denied,
    /// Not found, as for a job that never existed.
    Unknown,
    /// No message.
    Nothing,
    /// An error that is independent of the caller.
    Refused,
}

impl Gets {
    /// Whether the result equals the expected one.
    fn is(self, promised: Self) -> bool {
        self == promised || (promised == Nothing && self == Denied)
    }
}

/// A method, the results of the [`CALLERS`] in order, and a caller that receives a result, which proves that the request is valid.
struct Row(&'static str, [Gets; 4], Option<Who>);

/// The callers of each method in [`TABLE`].
const CALLERS: [Who; 4] = [Who::A, Who::ObserverOfB, Who::Worker, Who::Nobody];

/// The methods in the order of the calls: rows are fetched while the worker still stores them for the consumer, and the job is
/// cancelled last.
const TABLE: &[Row] = &[
    Row("feedline.v1.Coordinator/OpenJob", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Worker/Fetch", [Denied, Denied, Denied, Denied], Some(Who::B)),
    // Only a worker that computes the job has a ticket for it.
    Row("feedline.v1.Worker/Gather", [Denied, Denied, Denied, Denied], None),
    Row("feedline.v1.Coordinator/GetJobDetails", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetJobStatus", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetManifest", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/ListJobs", [Yes, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetCluster", [Yes, Yes, Denied, Denied], Some(Who::B)),
    // Every client of a worker may request the path of its sockets, which only the worker's user can open.
    Row("feedline.v1.LocalTransport/Locate", [Yes, Yes, Yes, Yes], Some(Who::Nobody)),
    Row("feedline.v1.Coordinator/SyncConsumer", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/SetWeights", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetPositions", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/SyncWorker", [Denied, Denied, Yes, Denied], Some(Who::Worker)),
    Row("feedline.v1.Peer/Introduce", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/Join", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/Deliver", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/HasIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/StoreIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/GetIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Members/ListMembers", [Yes, Yes, Yes, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/AddMember", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/RemoveMember", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/SyncMembers", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/TransferLeader", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("arrow.flight.protocol.FlightService/GetFlightInfo", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("arrow.flight.protocol.FlightService/GetSchema", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("arrow.flight.protocol.FlightService/DoGet", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    // These methods are not supported.
    Row("arrow.flight.protocol.FlightService/Handshake", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/ListFlights", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/PollFlightInfo", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoPut", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoExchange", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoAction", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/ListActions", [Nothing, Nothing, Nothing, Nothing], None),
    Row("feedline.v1.Coordinator/CancelJob", [Unknown, Denied, Denied, Denied], Some(Who::B)),
];

/// Returns the methods in the .proto files.
fn defined() -> BTreeSet<String> {
    let folder = root().join("proto/proto/feedline/v1");
    let mut methods = BTreeSet::new();
    for file in fs::read_dir(folder).expect("the files of messages are there") {
        let text = fs::read_to_string(file.expect("it can be listed").path()).expect("they are text");
        let mut service = None;
        for line in text.lines().map(str::trim) {
            if let Some(rest) = line.strip_prefix("service ") {
                service = rest.split([' ', '{']).next();
            }
            if let (Some(rest), Some(service)) = (line.strip_prefix("rpc "), service) {
                let name = rest.split(['(', ' ']).next().unwrap_or_default();
                methods.insert(format!("feedline.v1.{service}/{name}"));
            }
        }
    }
    methods
}

#[test]
fn the_table_contains_every_method() {
    let listed: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
    let own: BTreeSet<String> = listed
        .iter()
        .filter(|method| method.starts_with("feedline."))
        .map(|method| (*method).to_owned())
        .collect();
    assert_eq!(own, defined(), "add the new method to TABLE");
    assert!(own.contains("feedline.v1.Worker/Fetch"), "the files are read");
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), listed.len(), "TABLE has one row per method");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_returns_to_each_caller_only_the_permitted_result() {
    let scene = Scene::start().await;
    for Row(method, promised, has) in TABLE {
        let of_nobody = (Who::Expired, promised[3]);
        for (who, promised) in CALLERS.into_iter().zip(*promised).chain([of_nobody]) {
            let answer = scene.ask(method, who).await;
            assert!(answer.gets.is(promised), "{method} by {who:?}: {answer:?} and not {promised:?}");
            let is_stranger = matches!(who, Who::A | Who::Nobody | Who::Expired);
            assert!(!(is_stranger && answer.text.contains(MARK)), "{method} by {who:?} tells: {answer:?}");
        }
        let Some(has) = *has else { continue };
        let answer = scene.ask(method, has).await;
        // What only coordinators and administrators may do need not work here, but is not kept from them.
        let has_got = match has {
            Who::Admin | Who::Coordinator => !matches!(answer.gets, Denied | Nothing),
            // B's job reads one dataset, so it has no weights. Other tenants receive the error for an unknown job.
            _ if method.ends_with("/SetWeights") => answer.gets == Gets::Refused,
            _ => answer.gets == Yes,
        };
        assert!(has_got, "{method} by {has:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_name_of_another_tenants_job_opens_a_separate_job() {
    let scene = Scene::start().await;
    let (a, b) = (scene.coordinator(Who::A), scene.coordinator(Who::B));
    let spec = JobSpec { name: MARK.to_owned(), ..scene.spec("ants") };
    let own = a.open_job(spec).await.expect("names are those of a tenant");
    assert_ne!(own, scene.job);
    let listed = async |service: &Arc<dyn CoordinatorService>| -> BTreeSet<JobId> {
        service.list_jobs().await.expect("it may list").into_iter().map(|job| job.job).collect()
    };
    let seen = async |service: &Arc<dyn CoordinatorService>| -> BTreeSet<JobId> {
        service.cluster().await.expect("it may look").jobs.into_iter().map(|job| job.job).collect()
    };
    assert_eq!(listed(&a).await, BTreeSet::from([scene.job_of_a, own]));
    assert_eq!(listed(&b).await, BTreeSet::from([scene.job]));
    // The picture of the cluster is made anew each second.
    let deadline = Instant::now() + PATIENCE;
    while !(seen(&a).await.contains(&own) && seen(&b).await.contains(&scene.job)) {
        assert!(Instant::now() < deadline, "tenants do not see their own jobs");
    }
    assert_eq!(seen(&a).await, BTreeSet::from([scene.job_of_a, own]));
    assert_eq!(seen(&b).await, BTreeSet::from([scene.job]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_valid_for_its_job_and_its_lifetime_only() {
    let scene = Scene::start().await;
    let secret = scene.secret();
    // The same consumer and session as that of the good ticket, an hour ago.
    let expired = TicketIssuer::new(&secret).issue(scene.job, 0, SessionId(1), now_s() - 3_600);
    let other =
        TicketIssuer::new(&Secret::new().expect("random numbers")).issue(scene.job, 0, SessionId(1), now_s());
    let token = scene.tokens[&Who::B].clone();
    let cut = scene.ticket[..scene.ticket.len() - 2].to_owned();
    for way in [Transport::Tcp, Transport::Auto] {
        let (of_a, of_b) = ((scene.job_of_a, scene.split_of_a), (scene.job, scene.split));
        for (place, ticket) in [(of_a, &scene.ticket_of_a), (of_b, &scene.ticket)] {
            let frame = scene.fetch(place, ticket, way).await;
            assert!(frame.is_ok(), "{place:?} with its own ticket: {frame:?}");
        }
        for (place, ticket, why) in [
            (of_b, &scene.ticket_of_a, "for another job"),
            (of_a, &scene.ticket, "for another job"),
            (of_b, &expired, "expired"),
            (of_b, &other, "not valid in this cluster"),
            (of_b, &token, "not valid in this cluster"),
            (of_b, &cut, "not valid in this cluster"),
            (of_b, &String::new(), "has no ticket"),
        ] {
            let refusal = scene.fetch(place, ticket, way).await.expect_err(why);
            assert_eq!(refusal.kind, ServiceErrorKind::Denied, "{refusal}");
            assert!(refusal.message.contains(why), "{refusal}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flight_stream_ends_when_the_token_expires() {
    let scene = Scene::start().await;
    let service = scene.coordinator(Who::B);
    // More epochs than are read in the time.
    let spec = JobSpec { name: "endless".to_owned(), epochs: 1_000_000, ..scene.spec(MARK) };
    let job = service.open_job(spec).await.expect("it may open jobs");
    let deadline = Instant::now() + PATIENCE;
    while service.job_details(job).await.is_err() {
        assert!(Instant::now() < deadline, "the data is not indexed");
    }
    let end_s = now_s() + 20;
    let claims = Claims {
        holder: "ci".to_owned(),
        scopes: [Scope::Consume].into(),
        tenant: Some("b".to_owned()),
        expires_s: Some(end_s),
    };
    let token = Tokens::new(&scene.secret()).issue(&claims);
    let place = field(1, json!({ "job": job.0, "consumer": 0 }).to_string().as_bytes());
    let (url, method) = (scene.coordinator.url(), "arrow.flight.protocol.FlightService/DoGet");
    let mut messages = scene.call(&url, method, Some(&token), place).await.expect("the token is good");
    let read = async {
        let mut batches = 0;
        loop {
            match messages.message().await {
                Ok(message) => batches += u64::from(message.expect("there are many more").len() > 1),
                Err(status) => break (batches, status),
            }
        }
    };
    let (batches, status) = tokio::time::timeout(PATIENCE, read).await.expect("it ends by itself");
    assert!(batches > 1, "the schema and then batches, until: {status}");
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    assert!(status.message().contains("expired") && now_s() >= end_s, "{status}");
}
