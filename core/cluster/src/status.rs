//! Builds the details of a job for workers, and the status of jobs for users.

use feedline_data::ids::JobId;
use feedline_data::manifest::DatasetSummary;
use feedline_data::messages::{
    ConsumerStats, JobDetails, JobState, JobStatus, OperatorStats, ServiceError, ServiceErrorKind,
    StoreStats, index_key,
};

use crate::initial_cache::initial_cache_decision;
use crate::state::job::TrackedJob;
use crate::state::preparation::{Preparation, PreparationProgress};
use crate::{Cluster, Reply};

impl Cluster {
    pub(crate) fn job_state(&self, job: &TrackedJob) -> JobState {
        if let Some(state) = &job.end_state {
            return state.clone();
        }
        if job.layout.is_some() {
            return JobState::Running;
        }
        let progress = self.preparations.get(&job.id).map(Preparation::progress).unwrap_or_default();
        let PreparationProgress { indexed, shards, read_bytes, total_bytes } = progress;
        JobState::Preparing { indexed, shards, read_bytes, total_bytes, workers: self.live_workers() }
    }

    fn live_workers(&self) -> u32 {
        self.workers.values().filter(|worker| worker.has_reported).count() as u32
    }

    pub(crate) fn details(&self, id: JobId) -> Reply {
        let Some(job) = self.jobs.get(&id) else { return Reply::Rejected(ServiceError::unknown_job(id)) };
        let (Some(layout), Some(dataset)) = (&job.layout, &job.dataset) else {
            let message = format!("job {id} is still preparing; retry");
            return Reply::Rejected(ServiceError::new(ServiceErrorKind::Unavailable, message));
        };
        if job.dropped_pipeline.is_some() {
            let message = format!(
                "job {id} has ended, and its pipeline is too large to be stored after the end; open the job again"
            );
            return Reply::Rejected(ServiceError::new(ServiceErrorKind::NotFound, message));
        }
        Reply::Details(Box::new(JobDetails {
            job: id,
            pipeline: job.spec.pipeline.clone(),
            layout: layout.clone(),
            source_key: index_key(&job.spec.tenant, &job.spec.pipeline.listed_source(), &dataset.fingerprint),
            dataset: dataset.without_ranges(),
            audit: job.spec.audit,
            cache: self
                .settings
                .auto_cache
                .then(|| {
                    let quota = self.settings.tenants.quota_of(&job.spec.tenant);
                    initial_cache_decision(&job.spec.pipeline, dataset, job.passes_left(), quota)
                })
                .flatten(),
            reads: self.settings.tenants.reads_of(&job.spec.tenant).clone(),
        }))
    }

    pub(crate) fn status(&self, id: Option<JobId>) -> Reply {
        match id {
            None => Reply::Status(self.jobs.values().map(|job| self.job_status(job)).collect()),
            Some(id) => match self.jobs.get(&id) {
                Some(job) => Reply::Status(vec![self.job_status(job)]),
                None => Reply::Rejected(ServiceError::unknown_job(id)),
            },
        }
    }

    /// Renews a job without consumers, whose client polls the status.
    pub(crate) fn keep_index_job(&mut self, id: Option<JobId>) {
        let now = self.now;
        let job = id.and_then(|id| self.jobs.get_mut(&id));
        if let Some(job) = job.filter(|job| job.spec.index_only) {
            job.last_seen = now;
        }
    }

    fn job_status(&self, job: &TrackedJob) -> JobStatus {
        let mut operators: Vec<OperatorStats> = Vec::new();
        let mut store = StoreStats::default();
        for stats in job.worker_stats.values() {
            store.add(&stats.store);
            for (place, operator) in stats.operators.iter().enumerate() {
                match operators.get_mut(place) {
                    Some(sum) => sum.add(operator),
                    None => operators.push(operator.clone()),
                }
            }
        }
        let mut delivered = ConsumerStats::default();
        for consumer in job.consumers.values() {
            delivered.add(&consumer.earlier_stats);
            consumer.stats.values().for_each(|stats| delivered.add(stats));
        }
        let listing_error = job.growth.as_ref().and_then(|growth| growth.source_error.clone());
        let first_record = job.first_record.reason().filter(|_| !job.is_ended()).map(str::to_owned);
        JobStatus {
            job: job.id,
            tenant: job.spec.tenant.clone(),
            name: job.spec.name.clone(),
            state: self.job_state(job),
            epochs: job.spec.epochs,
            consumers: job.spec.consumers,
            dataset: job.dataset.as_ref().map(DatasetSummary::without_ranges),
            layout: job.layout.clone(),
            position: job.position(),
            operators,
            store,
            worker_cpu: job.worker_stats.iter().map(|(worker, stats)| (*worker, stats.cpu)).collect(),
            delivered,
            worker_peak_rss_bytes: job
                .worker_stats
                .iter()
                .map(|(worker, stats)| (*worker, stats.peak_rss_bytes))
                .collect(),
            coordinator_peak_rss_bytes: 0,
            workers: self.live_workers(),
            settled: job.unsettled_workers.is_empty(),
            slot_owners: job.slots.owners().collect(),
            source_error: listing_error.or(first_record).or_else(|| self.graph_wait(job)),
        }
    }
}
