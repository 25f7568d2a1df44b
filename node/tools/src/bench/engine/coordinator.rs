//! A coordinator for one worker and one job that only grants leases. Each stream always has the same number of leases.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use feedline_data::ids::{JobId, TaskId};
use feedline_data::layout::{Layout, SplitRef};
use feedline_data::manifest::{Manifest, Shard, ShardRef};
use feedline_data::messages::{
    JobDetails, Lease, Revision, ServiceError, ServiceErrorKind, Task, TaskOutput, TaskResult, WorkerPlan,
    WorkerReport,
};
use feedline_data::pipeline::{Pipeline, Source};
use feedline_data::tenants::TenantReads;
use feedline_proto::services::{CoordinatorReply, CoordinatorRequest, CoordinatorService};
use tokio::sync::Notify;

/// The only job.
pub(super) const JOB: JobId = JobId(1);
/// Rows per batch.
pub(super) const BATCH_ROWS: u32 = 64;
/// Number of rows of the dataset.
const DATASET_ROWS: u64 = 100_000;
/// Passes over the dataset per epoch. The number allows splits of 1,024 rows, and at least eight splits per stream.
const PASSES: u32 = 600;
/// Number of epochs of the job. It is so large that the job outlasts the benchmark.
const EPOCHS: u32 = 1_000_000;
/// Number of leases per stream: one for the split being fetched, and one for the next split.
const LEASES_PER_STREAM: u64 = 2;
/// Minimum interval between two plans. One plan contains all changes since the previous plan.
const PLAN_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which the coordinator answers a report if the plan is unchanged.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Writes the dataset of the benchmark.
pub(super) fn write_rows(path: &Path) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    (0..DATASET_ROWS).try_for_each(|row| writeln!(file, "row {row:010}"))?;
    file.flush()
}

/// Makes the worker list and index the dataset, and then grants leases.
pub(super) struct LeaseCoordinator {
    pipeline: Pipeline,
    streams: u32,
    state: Mutex<LeaseGrants>,
    /// Notified when the plan has changed.
    changed: Notify,
    /// Notified when the dataset is indexed.
    indexed: Notify,
}

#[derive(Default)]
struct LeaseGrants {
    revision: u64,
    shards: Vec<ShardRef>,
    job: Option<(JobDetails, Arc<Manifest>)>,
    leases: BTreeSet<SplitRef>,
}

impl LeaseCoordinator {
    pub(super) fn new(text: &Path, streams: u32) -> Self {
        let pipeline = Pipeline::builder("bench-engine")
            .source(Source::text(text.display().to_string()))
            .repeat(PASSES)
            .batch(BATCH_ROWS)
            .build()
            .expect("the pipeline is valid");
        let state = LeaseGrants { revision: 1, ..LeaseGrants::default() };
        Self { pipeline, streams, state: Mutex::new(state), changed: Notify::new(), indexed: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, LeaseGrants> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn wait_until_indexed(&self) {
        let indexed = self.indexed.notified();
        tokio::pin!(indexed);
        indexed.as_mut().enable();
        if self.lock().job.is_none() {
            indexed.await;
        }
    }

    /// Replaces the lease of a fetched split with a lease of a later split of the same stream. Returns the next split
    /// of the stream.
    pub(super) fn finish(&self, split: SplitRef) -> Option<SplitRef> {
        let mut state = self.lock();
        let layout = state.job.as_ref().map(|(details, _)| details.layout.clone())?;
        let next = layout.next_split(split);
        state.leases.remove(&split);
        state.leases.extend(next.and_then(|next| layout.next_split(next)));
        state.revision += 1;
        drop(state);
        self.changed.notify_one();
        next
    }

    async fn sync(&self, report: WorkerReport) -> Result<WorkerPlan, ServiceError> {
        for result in report.tasks {
            self.on_task(result)?;
        }
        let is_current = self.lock().revision == report.plan_revision.number;
        if is_current && tokio::time::timeout(HEARTBEAT, self.changed.notified()).await.is_ok() {
            tokio::time::sleep(PLAN_INTERVAL).await;
        }
        Ok(self.plan())
    }

    fn on_task(&self, result: TaskResult) -> Result<(), ServiceError> {
        let output = result.outcome.map_err(internal)?;
        let mut state = self.lock();
        match output {
            TaskOutput::Listed(shards) if state.shards.is_empty() => state.shards = shards,
            TaskOutput::Indexed(indexes) if state.job.is_none() => {
                let shards = state.shards.iter().cloned().zip(indexes);
                let shards = shards
                    .map(|(object, indexed)| Shard { object, index: indexed.index, digest: indexed.digest })
                    .collect();
                let manifest = Manifest::build(shards).map_err(internal)?;
                state.job = Some((self.details(&manifest), Arc::new(manifest)));
                for stream in 0..self.streams {
                    let splits = (0..LEASES_PER_STREAM).map(|ordinal| SplitRef { epoch: 0, ordinal, stream });
                    state.leases.extend(splits);
                }
                self.indexed.notify_waiters();
            }
            TaskOutput::Listed(_) | TaskOutput::Indexed(_) | TaskOutput::Unavailable(_) => return Ok(()),
        }
        state.revision += 1;
        Ok(())
    }

    fn details(&self, manifest: &Manifest) -> JobDetails {
        let dataset = manifest.summary();
        JobDetails {
            job: JOB,
            pipeline: self.pipeline.clone(),
            layout: Layout::new(&self.pipeline, &dataset, EPOCHS, self.streams),
            source_key: String::new(),
            dataset,
            audit: false,
            cache: None,
            reads: TenantReads::default(),
        }
    }

    fn plan(&self) -> WorkerPlan {
        let state = self.lock();
        let task = |id, shards| Task {
            id: TaskId(id),
            source: self.pipeline.source.clone(),
            shards,
            reads: TenantReads::default(),
            lists_growth: false,
        };
        let tasks = match (&state.job, state.shards.as_slice()) {
            (Some(_), _) => Vec::new(),
            (None, []) => vec![task(1, None)],
            (None, shards) => vec![task(2, Some(shards.to_vec()))],
        };
        let lease = |split: &SplitRef| Lease { job: JOB, split: *split, start_offset: 0, lost_workers: 0 };
        WorkerPlan {
            revision: Revision { incarnation: 1, number: state.revision },
            leases: state.leases.iter().map(lease).collect(),
            tasks,
            lease_ms: 60_000,
            ..WorkerPlan::default()
        }
    }

    fn job(&self) -> Result<(JobDetails, Arc<Manifest>), ServiceError> {
        self.lock().job.clone().ok_or_else(|| internal("the dataset is not indexed"))
    }
}

pub(super) fn internal(message: impl Into<String>) -> ServiceError {
    ServiceError::new(ServiceErrorKind::Invalid, message)
}

#[async_trait]
impl CoordinatorService for LeaseCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        match request {
            CoordinatorRequest::SyncWorker { report } => {
                Ok(CoordinatorReply::SyncWorker(self.sync(*report).await?))
            }
            CoordinatorRequest::GetJobDetails { .. } => Ok(CoordinatorReply::GetJobDetails(self.job()?.0)),
            CoordinatorRequest::GetManifest { .. } => Ok(CoordinatorReply::GetManifest(self.job()?.1)),
            _ => Err(internal("the coordinator of this benchmark does not support the request")),
        }
    }
}
