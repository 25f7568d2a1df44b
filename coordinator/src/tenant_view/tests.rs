//! Tests of each request for a job of the own tenant, a job of another tenant, and an unknown job.

use std::sync::atomic::{AtomicU32, Ordering};

use feedline_data::ids::{SessionId, WorkerId};
use feedline_data::messages::{ConsumerReport, ConsumerStats, JobState, ProcessCpu, Revision, WorkerReport};
use feedline_data::pipeline::{Pipeline, Source};
use tempfile::TempDir;

use super::*;
use crate::{CoordinatorSettings, RunningCoordinator, start};

/// A coordinator with one job of tenant `a` and one of tenant `b`, with the same name.
struct Bench {
    coordinator: RunningCoordinator,
    a: Arc<dyn CoordinatorService>,
    b: Arc<dyn CoordinatorService>,
    jobs: [JobId; 2],
    _folder: TempDir,
}

fn spec() -> JobSpec {
    let pipeline = Pipeline::builder("p").source(Source::text("data/*")).batch(4).build().unwrap();
    JobSpec { name: "train".to_owned(), tenant: "somebody".to_owned(), ..JobSpec::new(pipeline) }
}

pub(crate) fn consuming(job: JobId) -> ConsumerReport {
    ConsumerReport {
        job,
        consumer: 0,
        session: SessionId(1),
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

pub(crate) fn working() -> WorkerReport {
    WorkerReport {
        worker: WorkerId(1),
        address: "http://w1".to_owned(),
        tls_name: None,
        pool: String::new(),
        machine: String::new(),
        nic_bytes_per_s: 0,
        cores: 1,
        memory_bytes: 1,
        plan_revision: Revision::default(),
        computed: Vec::new(),
        memory_full: false,
        draining: false,
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

impl Bench {
    async fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let coordinator = start(CoordinatorSettings::in_memory(folder.path()), 1).await.unwrap();
        let view = |tenant: &str| -> Arc<dyn CoordinatorService> {
            Arc::new(TenantView::new(coordinator.service(), tenant))
        };
        let (a, b) = (view("a"), view("b"));
        let jobs = [a.open_job(spec()).await.unwrap(), b.open_job(spec()).await.unwrap()];
        Self { a, b, jobs, _folder: folder, coordinator }
    }

    /// The replies to all requests of tenant `a` for a job.
    async fn refusals(&self, job: JobId) -> Vec<ServiceError> {
        let a = &self.a;
        vec![
            a.cancel_job(job).await.unwrap_err(),
            a.job_details(job).await.unwrap_err(),
            a.job_status(job).await.unwrap_err(),
            a.manifest(job).await.unwrap_err(),
            a.sync_consumer(consuming(job)).await.unwrap_err(),
        ]
    }
}

/// Returns the error without the job id.
fn form(refusal: &ServiceError, job: JobId) -> ServiceError {
    ServiceError { message: refusal.message.replace(&format!("job {job} "), "job ID "), ..refusal.clone() }
}

#[tokio::test]
async fn tenants_join_their_own_jobs_of_equal_names() {
    let bench = Bench::new().await;
    let [of_a, of_b] = bench.jobs;
    assert_ne!(of_a, of_b);
    assert_eq!(bench.a.open_job(spec()).await, Ok(of_a), "whatever tenant the spec names");
    assert_eq!(bench.b.open_job(spec()).await, Ok(of_b));
    let all = bench.coordinator.service().list_jobs().await.unwrap();
    let tenants: Vec<&str> = all.iter().map(|job| job.tenant.as_str()).collect();
    assert_eq!(tenants, ["a", "b"]);
}

#[tokio::test]
async fn a_job_of_another_tenant_gets_the_replies_of_an_unknown_job() {
    let bench = Bench::new().await;
    let (foreign, never) = (bench.jobs[1], JobId(1 << 40));
    let of_foreign = bench.refusals(foreign).await;
    let of_never = bench.refusals(never).await;
    for (foreign_refusal, never_refusal) in of_foreign.iter().zip(&of_never) {
        assert_eq!(foreign_refusal.kind, ServiceErrorKind::NotFound);
        assert_eq!(form(foreign_refusal, foreign), form(never_refusal, never));
    }
    // The coordinator itself returns the same message.
    let service = bench.coordinator.service();
    let said = service.job_status(never).await.unwrap_err();
    assert!(of_never.iter().all(|refusal| *refusal == said), "{of_never:?}");
    // The same after a request of the owner, and after the end of the job.
    bench.b.job_status(foreign).await.unwrap();
    bench.b.cancel_job(foreign).await.unwrap();
    assert_eq!(bench.refusals(foreign).await, of_foreign);
    assert_eq!(bench.b.job_status(foreign).await.unwrap().state, JobState::Cancelled, "by its owner only");
}

#[tokio::test]
async fn a_job_of_the_tenant_gets_its_replies() {
    let bench = Bench::new().await;
    let (a, own) = (&bench.a, bench.jobs[0]);
    // The job is preparing, which is a different error from an unknown job.
    assert_eq!(a.job_details(own).await.unwrap_err().kind, ServiceErrorKind::Unavailable);
    assert_eq!(a.manifest(own).await.unwrap_err().kind, ServiceErrorKind::Unavailable);
    let plan = a.sync_consumer(consuming(own)).await.unwrap();
    assert!(matches!(plan.state, JobState::Preparing { .. }), "{plan:?}");
    assert_eq!(a.job_status(own).await.unwrap().tenant, "a");
    a.cancel_job(own).await.unwrap();
    let listed = a.list_jobs().await.unwrap();
    assert_eq!(
        listed.iter().map(|job| (job.job, &job.state)).collect::<Vec<_>>(),
        [(own, &JobState::Cancelled)]
    );
}

#[tokio::test]
async fn the_cluster_view_contains_only_own_jobs() {
    let bench = Bench::new().await;
    bench.coordinator.service().sync_worker(working()).await.unwrap();
    let view = bench.b.cluster().await.unwrap();
    assert_eq!(view.jobs.iter().map(|job| job.job).collect::<Vec<_>>(), [bench.jobs[1]]);
    assert_eq!((view.workers.len(), view.reasons.len()), (0, 0), "none works for it");
    let nobody: Arc<dyn CoordinatorService> = Arc::new(TenantView::new(bench.coordinator.service(), "c"));
    assert_eq!(nobody.cluster().await.unwrap().jobs, []);
    assert_eq!(nobody.list_jobs().await.unwrap(), []);
}

#[tokio::test]
async fn a_tenant_cannot_report_as_a_worker() {
    let bench = Bench::new().await;
    let refusal = bench.a.sync_worker(working()).await.unwrap_err();
    assert_eq!(refusal.kind, ServiceErrorKind::Invalid);
    assert_eq!(refusal.message, "workers cannot use a tenant's token; start workers with a worker token");
}

/// Counts the lookups of the tenants of jobs.
struct Counted {
    inner: Arc<dyn CoordinatorService>,
    looks: AtomicU32,
}

#[async_trait]
impl CoordinatorService for Counted {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        if matches!(request, CoordinatorRequest::GetJobStatus { .. }) {
            self.looks.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.call(request).await
    }
}

#[tokio::test]
async fn the_tenant_of_a_job_is_looked_up_once() {
    let bench = Bench::new().await;
    let inner = bench.coordinator.service();
    let counted = Arc::new(Counted { inner, looks: AtomicU32::new(0) });
    let view: Arc<dyn CoordinatorService> =
        Arc::new(TenantView::new(Arc::clone(&counted) as Arc<dyn CoordinatorService>, "a"));
    let [own, foreign] = bench.jobs;
    for _ in 0..3 {
        view.sync_consumer(consuming(own)).await.unwrap();
    }
    assert_eq!(counted.looks.load(Ordering::Relaxed), 1);
    for _ in 0..3 {
        view.sync_consumer(consuming(foreign)).await.unwrap_err();
    }
    assert_eq!(counted.looks.load(Ordering::Relaxed), 4, "as for a job that never was");
}
