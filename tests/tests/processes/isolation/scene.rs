//! A coordinator, a worker and a job of each of two tenants, and the tokens of all who have one.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use feedline_access::token::{Claims, Scope, Tokens};
use feedline_access::{BearerToken, Credentials, Secret, now_s};
use feedline_data::ids::{JobId, SessionId, WorkerId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{
    ConsumerPlan, ConsumerReport, ConsumerStats, JobSpec, ProcessCpu, Revision, WorkerReport,
};
use feedline_data::pipeline::Pipeline;
use feedline_proto::{CoordinatorService, grpc};
use feedline_tests::Scratch;
use feedline_tests::process::Role;

use super::{MARK, NOWHERE, PATIENCE, Who};

/// A coordinator and a worker that ask who comes, and a job of each of two tenants. Without TLS, which is tested elsewhere, and
/// which would hide what is asked behind it.
pub(crate) struct Scene {
    pub(crate) scratch: Scratch,
    pub(crate) coordinator: Role,
    pub(crate) worker: Role,
    pub(crate) tokens: BTreeMap<Who, String>,
    /// The job of `b`, a split of it that the worker holds, and the ticket of its consumer.
    pub(crate) job: JobId,
    pub(crate) split: SplitRef,
    pub(crate) ticket: String,
    pub(crate) job_of_a: JobId,
    pub(crate) split_of_a: SplitRef,
    pub(crate) ticket_of_a: String,
}

impl Scene {
    pub(crate) async fn start() -> Self {
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

    pub(crate) fn secret(&self) -> Secret {
        let text = fs::read_to_string(self.scratch.file("keys/secret")).expect("it was made");
        Secret::parse(&text).expect("it is one")
    }

    pub(crate) fn credentials(&self, who: Who) -> Credentials {
        let token = self.tokens.get(&who).map(|token| Arc::new(BearerToken::fixed(token)));
        Credentials { tls: None, token }
    }

    pub(crate) fn coordinator(&self, who: Who) -> Arc<dyn CoordinatorService> {
        grpc::connect_coordinator(&self.coordinator.url(), &self.credentials(who)).expect("it has an address")
    }

    pub(crate) fn pipeline_text(&self, data: &str) -> String {
        let folder = self.scratch.file(data);
        format!(
            "name: {data}\nsource: {{ url: \"{folder}/*\", format: jsonl }}\noperators: [ batch: {{ size: 16 }} ]"
        )
    }

    pub(crate) fn spec(&self, data: &str) -> JobSpec {
        JobSpec::new(Pipeline::from_yaml(&self.pipeline_text(data), "the test").expect("it is one"))
    }

    /// Opens a job and waits until a worker has rows for its consumer.
    async fn consume(&self, who: Who, data: &str) -> (JobId, SplitRef, String) {
        let coordinator = self.coordinator(who);
        let deadline = Instant::now() + PATIENCE;
        let job = coordinator.open_job(self.spec(data)).await.expect("it may open jobs");
        let mut seen = Revision::default();
        loop {
            let report = ConsumerReport { plan_revision: seen, ..consumer_report(job, 1) };
            let plan: ConsumerPlan = coordinator.sync_consumer(report).await.expect("it may take rows");
            if let Some(held) = plan.splits.iter().find(|split| !split.workers.is_empty()) {
                return (job, held.split, plan.ticket);
            }
            assert!(Instant::now() < deadline, "no worker has a split of {data}: {plan:?}");
            seen = plan.revision;
        }
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
        (Who::Coordinator, Tokens::new(&Secret::parse(&text).expect("it is one")).issue(&coordinator)),
    ])
}

pub(crate) fn consumer_report(job: JobId, session: u64) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer: 0,
        session: SessionId(session),
        plan_revision: Revision::default(),
        positions: Vec::new(),
        open_splits: Vec::new(),
        wanted_splits: 2,
        unreachable: Vec::new(),
        batch_error: None,
        stats: ConsumerStats::default(),
        slots: Default::default(),
        history: Default::default(),
        known_growth: feedline_data::growth::KnownGrowth::default(),
    }
}

/// A worker that is about to end, so that nothing is given to it.
pub(crate) fn leaving_worker() -> WorkerReport {
    WorkerReport {
        worker: WorkerId(987_654),
        address: NOWHERE.to_owned(),
        tls_name: None,
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 1,
        memory_bytes: 1 << 20,
        plan_revision: Revision::default(),
        computed: Vec::new(),
        memory_full: true,
        draining: true,
        tasks: Vec::new(),
        task_progress: Vec::new(),
        elapsed_ns: 0,
        cpu: ProcessCpu::default(),
        stats: Vec::new(),
        caches: Vec::new(),
        memory: Vec::new(),
        stores: Vec::new(),
        graphs: None,
    }
}
