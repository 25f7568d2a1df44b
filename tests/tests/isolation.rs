//! Who gets what of a tenant's job: every method that anything here answers, as callers of each kind call it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use feedline_access::ticket::TicketOffice;
use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{Bearer, Credentials, Secret, now_s};
use feedline_core::cluster::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobSpec, ProcessCpu, Refusal, RefusalKind, Revision,
    WorkerReport,
};
use feedline_core::ids::{JobId, SessionId, WorkerId};
use feedline_core::layout::SplitRef;
use feedline_core::pipeline::Pipeline;
use feedline_proto::local::Transport;
use feedline_proto::{CoordinatorService, FetchOpen, FetchRequest, Introduction, PROTOCOL_VERSION, grpc};
use feedline_tests::process::Role;
use feedline_tests::{Scratch, root};
use futures::{StreamExt, stream};
use serde_json::json;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status, Streaming};

use self::Gets::{Denied, Nothing, Unknown, Yes};

/// Far beyond what an answer takes.
const PATIENCE: Duration = Duration::from_secs(30);
/// Stands in the names and URLs of one tenant's job and nowhere else, so that whoever sees it sees something of that job.
const MARK: &str = "bees";
/// Where no coordinator listens.
const NOWHERE: &str = "http://127.0.0.1:1";

/// Who calls. The job is one of the tenant `b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// May open jobs and take rows, of the tenant `a`.
    A,
    /// May see jobs of the tenant `b` and nothing else.
    ObserverOfB,
    /// May be a worker.
    Worker,
    /// Has no token.
    Nobody,
    /// Had one like `B`, which has expired.
    Expired,
    /// May open jobs and take rows, of the tenant `b`.
    B,
    /// May add and remove coordinators.
    Admin,
    /// Is one.
    Coordinator,
}

/// What a caller gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gets {
    /// What was asked for.
    Yes,
    /// It is told that it may not.
    Denied,
    /// It is told that there is no such thing, as of what never was.
    Unknown,
    /// Not one message.
    Nothing,
    /// A refusal that has nothing to do with who asks.
    Refused,
}

impl Gets {
    /// Whether this is what was promised. Who is denied gets nothing.
    fn is(self, promised: Self) -> bool {
        self == promised || (promised == Nothing && self == Denied)
    }
}

/// A method; what [`TOLD`] get of it in turn; and who gets something, so that the others are not refused for another reason.
struct Row(&'static str, [Gets; 4], Option<Who>);

/// Those whom each row tells of.
const TOLD: [Who; 4] = [Who::A, Who::ObserverOfB, Who::Worker, Who::Nobody];

/// In the order in which they are called: rows are fetched while the worker still holds them for the consumer, and the job is
/// cancelled last.
const TABLE: &[Row] = &[
    Row("feedline.v1.Coordinator/OpenJob", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Worker/Fetch", [Denied, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetJobDetails", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetJobStatus", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetManifest", [Unknown, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/ListJobs", [Yes, Yes, Yes, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/GetCluster", [Yes, Yes, Denied, Denied], Some(Who::B)),
    // Who reaches a worker may ask where its sockets are; they lie where only the worker's user can go.
    Row("feedline.v1.Entrance/Locate", [Yes, Yes, Yes, Yes], Some(Who::Nobody)),
    Row("feedline.v1.Coordinator/SyncConsumer", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    Row("feedline.v1.Coordinator/SyncWorker", [Denied, Denied, Yes, Denied], Some(Who::Worker)),
    Row("feedline.v1.Peer/Introduce", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/Deliver", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/HasIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/KeepIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Peer/GetIndex", [Denied, Denied, Denied, Denied], Some(Who::Coordinator)),
    Row("feedline.v1.Members/ListMembers", [Yes, Yes, Yes, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/AddMember", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("feedline.v1.Members/RemoveMember", [Denied, Denied, Denied, Denied], Some(Who::Admin)),
    Row("arrow.flight.protocol.FlightService/GetFlightInfo", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("arrow.flight.protocol.FlightService/GetSchema", [Yes, Denied, Denied, Denied], Some(Who::B)),
    Row("arrow.flight.protocol.FlightService/DoGet", [Unknown, Denied, Denied, Denied], Some(Who::B)),
    // These are not offered.
    Row("arrow.flight.protocol.FlightService/Handshake", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/ListFlights", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/PollFlightInfo", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoPut", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoExchange", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/DoAction", [Nothing, Nothing, Nothing, Nothing], None),
    Row("arrow.flight.protocol.FlightService/ListActions", [Nothing, Nothing, Nothing, Nothing], None),
    Row("feedline.v1.Coordinator/CancelJob", [Unknown, Denied, Denied, Denied], Some(Who::B)),
];

/// What the files of messages define.
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
fn the_table_has_every_method() {
    let told: Vec<&str> = TABLE.iter().map(|row| row.0).collect();
    let own: BTreeSet<String> = told
        .iter()
        .filter(|method| method.starts_with("feedline."))
        .map(|method| (*method).to_owned())
        .collect();
    assert_eq!(own, defined(), "say in TABLE who gets what of a new method");
    assert!(own.contains("feedline.v1.Worker/Fetch"), "the files are read");
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "one row for each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_method_gives_each_caller_what_is_promised_and_nothing_else() {
    let scene = Scene::start().await;
    for Row(method, promised, has) in TABLE {
        let of_nobody = (Who::Expired, promised[3]);
        for (who, promised) in TOLD.into_iter().zip(*promised).chain([of_nobody]) {
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
            _ => answer.gets == Yes,
        };
        assert!(has_got, "{method} by {has:?}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_name_of_another_tenants_job_leads_to_a_job_of_ones_own() {
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
async fn a_ticket_opens_its_own_job_and_for_its_own_time_only() {
    let scene = Scene::start().await;
    let secret = scene.secret();
    // The same consumer and session as that of the good ticket, an hour ago.
    let expired = TicketOffice::new(&secret).make(scene.job, 0, SessionId(1), now_s() - 3_600);
    let other =
        TicketOffice::new(&Secret::new().expect("random numbers")).make(scene.job, 0, SessionId(1), now_s());
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
            (of_b, &other, "none of this cluster's"),
            (of_b, &token, "none of this cluster's"),
            (of_b, &cut, "none of this cluster's"),
            (of_b, &String::new(), "with a ticket of their job only"),
        ] {
            let refusal = scene.fetch(place, ticket, way).await.expect_err(why);
            assert_eq!(refusal.kind, RefusalKind::Denied, "{refusal}");
            assert!(refusal.message.contains(why), "{refusal}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_come_by_flight_until_the_token_expires() {
    let scene = Scene::start().await;
    let service = scene.coordinator(Who::B);
    // More epochs than are read in the time.
    let spec = JobSpec { name: "endless".to_owned(), epochs: 1_000_000, ..scene.spec(MARK) };
    let job = service.open_job(spec).await.expect("it may open jobs");
    let deadline = Instant::now() + PATIENCE;
    while service.job_details(job).await.is_err() {
        assert!(Instant::now() < deadline, "the data is not indexed");
    }
    let end_s = now_s() + 4;
    let claims = Claims {
        holder: "ci".to_owned(),
        scopes: [Scope::Consume].into(),
        tenant: Some("b".to_owned()),
        expires_s: Some(end_s),
    };
    let token = Tokens::new(&scene.secret()).make(&claims);
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

/// What a caller heard.
#[derive(Debug)]
struct Answer {
    gets: Gets,
    text: String,
}

impl<T: Debug> From<Result<T, Refusal>> for Answer {
    fn from(answer: Result<T, Refusal>) -> Self {
        match answer {
            Ok(value) => Self { gets: Yes, text: format!("{value:?}") },
            Err(refusal) => {
                let gets = match refusal.kind {
                    RefusalKind::Denied => Denied,
                    RefusalKind::NotFound => Unknown,
                    _ => Gets::Refused,
                };
                Self { gets, text: refusal.message }
            }
        }
    }
}

/// A coordinator and a worker that ask who comes, and a job of each of two tenants. Without TLS, which is tested elsewhere, and
/// which would hide what is asked behind it.
struct Scene {
    scratch: Scratch,
    coordinator: Role,
    worker: Role,
    tokens: BTreeMap<Who, String>,
    /// The job of `b`, a split of it that the worker holds, and the ticket of its consumer.
    job: JobId,
    split: SplitRef,
    ticket: String,
    job_of_a: JobId,
    split_of_a: SplitRef,
    ticket_of_a: String,
}

impl Scene {
    async fn start() -> Self {
        let scratch = Scratch::new();
        for name in ["ants", MARK] {
            scratch.make_data("table", name, &["--format", "jsonl", "--rows", "3000", "--shards", "3"]);
        }
        let made = scratch.call(&["keys", "new", "keys"]);
        assert_eq!(made.status, 0, "{}", made.stderr);
        let (data, secret) = (scratch.file("data"), scratch.file("keys/secret"));
        let [ants, marked] = ["ants", MARK].map(|name| scratch.file(name));
        let read = ["--allow-url", &ants, "--allow-url", &marked];
        let arguments =
            ["coordinator", "--listen", "127.0.0.1:0", "--data-dir", &data, "--secret-file", &secret];
        let coordinator = Role::start(&[&arguments[..], &read].concat(), &[]);
        let (url, token) = (coordinator.url(), scratch.file("keys/worker.token"));
        let arguments = [
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--coordinator",
            &url,
            "--token-file",
            &token,
            "--cores",
            "1",
            "--memory",
            "256MiB",
        ];
        let worker = Role::start(&[&arguments[..], &read].concat(), &[]);
        let tokens = tokens(&scratch);
        let mut scene = Self {
            scratch,
            coordinator,
            worker,
            tokens,
            job: JobId(0),
            split: NO_SPLIT,
            ticket: String::new(),
            job_of_a: JobId(0),
            split_of_a: NO_SPLIT,
            ticket_of_a: String::new(),
        };
        (scene.job, scene.split, scene.ticket) = scene.consume(Who::B, MARK).await;
        (scene.job_of_a, scene.split_of_a, scene.ticket_of_a) = scene.consume(Who::A, "ants").await;
        scene
    }

    fn secret(&self) -> Secret {
        let text = fs::read_to_string(self.scratch.file("keys/secret")).expect("it was made");
        Secret::parse(&text).expect("it is one")
    }

    fn credentials(&self, who: Who) -> Credentials {
        let token = self.tokens.get(&who).map(|token| Arc::new(Bearer::fixed(token)));
        Credentials { tls: None, token }
    }

    fn coordinator(&self, who: Who) -> Arc<dyn CoordinatorService> {
        grpc::connect_coordinator(&self.coordinator.url(), &self.credentials(who)).expect("it has an address")
    }

    fn pipeline_text(&self, data: &str) -> String {
        let folder = self.scratch.file(data);
        format!(
            "name: {data}\nsource: {{ url: \"{folder}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]"
        )
    }

    fn spec(&self, data: &str) -> JobSpec {
        JobSpec::new(Pipeline::from_yaml(&self.pipeline_text(data), "the test").expect("it is one"))
    }

    /// Opens a job and waits until a worker has rows for its consumer.
    async fn consume(&self, who: Who, data: &str) -> (JobId, SplitRef, String) {
        let coordinator = self.coordinator(who);
        let deadline = Instant::now() + PATIENCE;
        let job = coordinator.open_job(self.spec(data)).await.expect("it may open jobs");
        let mut seen = Revision::default();
        loop {
            let report = ConsumerReport { seen, ..consumer_report(job, 1) };
            let plan: ConsumerPlan = coordinator.sync_consumer(report).await.expect("it may take rows");
            if let Some(held) = plan.splits.iter().find(|split| !split.workers.is_empty()) {
                return (job, held.split, plan.ticket);
            }
            assert!(Instant::now() < deadline, "no worker has a split of {data}: {plan:?}");
            seen = plan.revision;
        }
    }

    /// Calls a method about the job of `b`, or as whoever it is would.
    async fn ask(&self, method: &str, who: Who) -> Answer {
        let (service, name) = method.rsplit_once('/').expect("methods have a service");
        match service.rsplit('.').next() {
            Some("Coordinator") => self.ask_coordinator(name, who).await,
            Some("Peer") => self.ask_peer(name, who).await,
            Some("Members") => self.ask_members(name, who).await,
            Some("Worker") => self.ask_worker(who).await,
            Some("Entrance") => self.send(&self.worker.url(), method, who, Vec::new()).await,
            Some("FlightService") => self.ask_flight(method, name, who).await,
            _ => panic!("say how {method} is called"),
        }
    }

    async fn ask_coordinator(&self, name: &str, who: Who) -> Answer {
        let (service, job) = (self.coordinator(who), self.job);
        let own = if matches!(who, Who::B | Who::ObserverOfB) { MARK } else { "ants" };
        match name {
            "OpenJob" => service.open_job(self.spec(own)).await.into(),
            "CancelJob" => service.cancel_job(job).await.into(),
            "GetJobDetails" => service.job_details(job).await.into(),
            "GetJobStatus" => service.job_status(job).await.into(),
            "ListJobs" => service.list_jobs().await.into(),
            "GetCluster" => service.cluster().await.into(),
            "GetManifest" => service.manifest(job).await.into(),
            "SyncWorker" => service.sync_worker(leaving_worker()).await.into(),
            "SyncConsumer" => service.sync_consumer(consumer_report(job, 2)).await.into(),
            _ => panic!("say how {name} is called"),
        }
    }

    async fn ask_peer(&self, name: &str, who: Who) -> Answer {
        let url = self.coordinator.url();
        let peer = grpc::connect_peer(&url, &self.credentials(who)).expect("it has an address");
        let (key, fingerprint) = ("00", "none");
        let method = format!("feedline.v1.Peer/{name}");
        match name {
            "Introduce" => peer.introduce(Introduction { id: 7, has_state: false }).await.into(),
            "Deliver" => peer.deliver(Vec::new()).await.into(),
            "GetIndex" => peer.index(key, fingerprint).await.into(),
            "HasIndex" => {
                let index = [field(1, key.as_bytes()), field(2, fingerprint.as_bytes())].concat();
                self.send(&url, &method, who, index).await
            }
            "KeepIndex" => self.send(&url, &method, who, field(1, key.as_bytes())).await,
            _ => panic!("say how {name} is called"),
        }
    }

    async fn ask_members(&self, name: &str, who: Who) -> Answer {
        let members = grpc::connect_members(&self.coordinator.url(), &self.credentials(who));
        let members = members.expect("it has an address");
        match name {
            "ListMembers" => members.members().await.into(),
            "AddMember" => members.add_member(NOWHERE).await.into(),
            "RemoveMember" => members.remove_member(NOWHERE).await.into(),
            _ => panic!("say how {name} is called"),
        }
    }

    /// Asks for rows with whatever the caller has: its ticket, or its token.
    async fn ask_worker(&self, who: Who) -> Answer {
        let shown = match who {
            Who::A => self.ticket_of_a.clone(),
            Who::B => self.ticket.clone(),
            _ => self.tokens.get(&who).cloned().unwrap_or_default(),
        };
        self.fetch((self.job, self.split), &shown, Transport::Tcp).await.into()
    }

    async fn ask_flight(&self, method: &str, name: &str, who: Who) -> Answer {
        let message = match name {
            "GetFlightInfo" | "GetSchema" => {
                let command = json!({ "pipeline": self.pipeline_text("ants"), "job": "wasps" }).to_string();
                // A descriptor of the kind CMD.
                [vec![0x08, 2], field(2, command.as_bytes())].concat()
            }
            "DoGet" => {
                let place = json!({ "job": self.job.0, "consumer": 0 }).to_string();
                field(1, place.as_bytes())
            }
            _ => Vec::new(),
        };
        self.send(&self.coordinator.url(), method, who, message).await
    }

    /// The first frame of a split.
    async fn fetch(
        &self,
        (job, split): (JobId, SplitRef),
        ticket: &str,
        way: Transport,
    ) -> Result<String, Refusal> {
        let worker = grpc::connect_worker_by(&self.worker.url(), &Credentials::default(), way, |_, _| {})?;
        let open = FetchOpen { job, split, from: 0, credit_bytes: 1 << 20, ticket: ticket.to_owned() };
        let requests = stream::once(async { FetchRequest::Open(open) }).boxed();
        let mut frames = worker.fetch(requests).await?;
        let first = tokio::time::timeout(PATIENCE, frames.next()).await.expect("it answers");
        first.unwrap_or_else(|| panic!("a split has rows, by {way:?}")).map(|frame| format!("{frame:?}"))
    }

    /// Sends one message as it is.
    async fn call(
        &self,
        url: &str,
        method: &str,
        token: Option<&String>,
        message: Vec<u8>,
    ) -> Result<Streaming<Vec<u8>>, Status> {
        let endpoint = Endpoint::from_shared(url.to_owned()).expect("it is an address").timeout(PATIENCE);
        let mut client = Grpc::new(endpoint.connect_lazy());
        client.ready().await.expect("it listens");
        let mut request = Request::new(stream::once(async { message }));
        request.metadata_mut().insert("feedline-protocol", PROTOCOL_VERSION.into());
        if let Some(token) = token {
            let shown = format!("Bearer {token}").parse().expect("tokens are fit for headers");
            request.metadata_mut().insert("authorization", shown);
        }
        let path = format!("/{method}").parse().expect("methods make paths");
        client.streaming(request, path, Raw).await.map(Response::into_inner)
    }

    /// Sends one message as it is, and reads at most two of the answer.
    async fn send(&self, url: &str, method: &str, who: Who, message: Vec<u8>) -> Answer {
        let mut heard: Vec<Vec<u8>> = Vec::new();
        let refused = match self.call(url, method, self.tokens.get(&who), message).await {
            Err(status) => Some(status),
            Ok(mut messages) => loop {
                match messages.message().await {
                    Ok(Some(message)) => heard.push(message),
                    Ok(None) => break None,
                    Err(status) => break Some(status),
                }
                if heard.len() == 2 {
                    break None;
                }
            },
        };
        let text = String::from_utf8_lossy(&heard.concat()).into_owned();
        match refused {
            None if heard.is_empty() => Answer { gets: Nothing, text },
            None => Answer { gets: Yes, text },
            Some(status) => Answer { gets: of_status(&status), text: text + status.message() },
        }
    }
}

fn of_status(status: &Status) -> Gets {
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => Denied,
        // What a consumer inside the coordinator was told.
        Code::FailedPrecondition if status.message().contains("does not allow") => Denied,
        Code::NotFound => Unknown,
        Code::Unimplemented => Nothing,
        _ => Gets::Refused,
    }
}

/// Before there is one.
const NO_SPLIT: SplitRef = SplitRef { epoch: 0, ordinal: 0, stream: 0 };

/// Tokens of all who have one.
fn tokens(scratch: &Scratch) -> BTreeMap<Who, String> {
    let secret = scratch.file("keys/secret");
    let token = |flags: &[&str]| {
        let mut arguments = vec!["keys", "token", "--secret-file", &secret];
        arguments.extend(flags);
        let made = scratch.call(&arguments);
        assert_eq!(made.status, 0, "{}", made.stderr);
        made.stdout.trim().to_owned()
    };
    let text = fs::read_to_string(&secret).expect("it was made");
    let coordinator = Claims {
        holder: "another coordinator".to_owned(),
        scopes: [Scope::Coordinate].into(),
        tenant: None,
        expires_s: Some(now_s() + 600),
    };
    BTreeMap::from([
        (Who::A, token(&["--scope", "submit,consume", "--tenant", "a"])),
        (Who::ObserverOfB, token(&["--scope", "observe", "--tenant", "b"])),
        (Who::Worker, token(&["--scope", "work"])),
        (Who::Expired, token(&["--scope", "submit,consume", "--tenant", "b", "--expires", "0s"])),
        (Who::B, token(&["--scope", "submit,consume", "--tenant", "b"])),
        (Who::Admin, token(&["--scope", "admin"])),
        // The command line gives nobody one.
        (Who::Coordinator, Tokens::new(&Secret::parse(&text).expect("it is one")).make(&coordinator)),
    ])
}

fn consumer_report(job: JobId, session: u64) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer: 0,
        session: SessionId(session),
        seen: Revision::default(),
        positions: Vec::new(),
        open: Vec::new(),
        wants: 2,
        unreachable: Vec::new(),
        failed: None,
        stats: ConsumerStats::default(),
    }
}

/// A worker that is about to end, so that nothing is given to it.
fn leaving_worker() -> WorkerReport {
    WorkerReport {
        worker: WorkerId(987_654),
        address: NOWHERE.to_owned(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 1,
        memory_bytes: 1 << 20,
        seen: Revision::default(),
        computed: Vec::new(),
        memory_full: true,
        draining: true,
        tasks: Vec::new(),
        elapsed_ns: 0,
        cpu: ProcessCpu::default(),
        stats: Vec::new(),
        caches: Vec::new(),
    }
}

/// A field of bytes in protobuf.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![(number << 3) | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        field.push(length as u8 | 0x80);
        length >>= 7;
    }
    field.push(length as u8);
    field.extend_from_slice(bytes);
    field
}

/// Messages as they are.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; from.remaining()];
        from.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
