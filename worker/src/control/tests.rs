//! Tests of panics in the control loop and while a job is loaded.

use async_trait::async_trait;
use feedline_data::layout::SplitRef;
use feedline_data::messages::Lease;
use feedline_proto::services::{FetchOpen, FetchRequest, Frame};
use feedline_proto::{CoordinatorReply, CoordinatorRequest};
use futures::{StreamExt, stream};

use super::*;
use crate::process::ProcessClock;
use crate::worker::{RunningWorker, start};
use crate::{DEFAULT_MAX_FETCHES, ObjectAccess};

const JOB: JobId = JobId(7);
const SPLIT: SplitRef = SplitRef { epoch: 0, ordinal: 0, stream: 0 };
/// Timeout of a condition. It is long enough for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A coordinator that leases one split.
struct PanickingCoordinator {
    /// Whether the report panics, otherwise the request for the job.
    panics_in_reports: bool,
}

#[async_trait]
impl CoordinatorService for PanickingCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request {
            CoordinatorRequest::SyncWorker { .. } if self.panics_in_reports => panic!("a panic in a report"),
            CoordinatorRequest::SyncWorker { report } => {
                let lease = Lease { job: JOB, split: SPLIT, start_offset: 0, lost_workers: 0 };
                let revision = Revision { incarnation: 1, number: 1 };
                if report.plan_revision == revision {
                    sleep(Duration::from_millis(10)).await;
                }
                let plan =
                    WorkerPlan { revision, leases: vec![lease], lease_ms: 3_000, ..WorkerPlan::default() };
                Ok(CoordinatorReply::SyncWorker(plan))
            }
            _ => panic!("a panic while a job is loaded"),
        }
    }
}

fn start_worker(panics_in_reports: bool) -> RunningWorker {
    let settings = WorkerSettings {
        address: "local:0".to_owned(),
        tls_name: None,
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 1,
        memory_bytes: 1 << 20,
        graph_memory_bytes: 1 << 20,
        graph_disk: None,
        access: ObjectAccess::default(),
        cache_dir: None,
        row_cache: None,
        store_cache: None,
        max_fetches: DEFAULT_MAX_FETCHES,
        requires_tickets: false,
        functions: None,
        trace: false,
    };
    let coordinator = Arc::new(PanickingCoordinator { panics_in_reports });
    start(WorkerId(1), settings, ProcessClock::new(), coordinator).expect("threads start")
}

#[tokio::test]
async fn a_panic_while_a_job_is_loaded_fails_the_job_and_not_the_worker() {
    let worker = start_worker(false);
    let open = FetchOpen {
        job: JOB,
        split: SPLIT,
        start_offset: 0,
        credit_bytes: 1,
        ticket: String::new(),
        cached_features: Vec::new(),
    };
    let message = async {
        loop {
            let requests = stream::iter([FetchRequest::Open(open.clone())]).chain(stream::pending());
            // The lease may not have arrived yet.
            let Ok(mut frames) = worker.service().fetch(requests.boxed()).await else { continue };
            if let Some(Ok(Frame::Failed(message))) = frames.next().await {
                return message;
            }
        }
    };
    let message = timeout(PATIENCE, message).await.expect("the job fails");
    assert_eq!(message, "the worker panicked while it loaded the job: please report this bug");
    assert_eq!(worker.health().check(), Ok(()));
    worker.shutdown().await;
}

#[tokio::test]
async fn a_worker_without_its_control_loop_is_not_healthy() {
    let worker = start_worker(true);
    let health = worker.health();
    let wait = async {
        while health.check().is_ok() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("the control loop has panicked");
    let message = health.check().expect_err("it has ended");
    assert_eq!(
        message,
        "the control loop of the worker has ended after an internal error; restart the process"
    );
    worker.shutdown().await;
    assert_eq!(health.check(), Ok(()), "a stopped worker is not at fault");
}
