//! The metrics of the coordinator in one table, and the state behind its gauges.

use std::collections::BTreeMap;

use feedline_cluster::records::Record;
use feedline_common::metric_table::{self, ABSENT, MetricDescription};
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::{JobState, ServiceErrorKind};
use feedline_proto::CoordinatorRequest;
use feedline_raft::MemberView;
use metrics::{Unit, counter, gauge};

pub(crate) const JOBS: &str = "feedline_coordinator_jobs";
pub(crate) const WORKERS: &str = "feedline_coordinator_workers";
pub(crate) const LOG_APPEND_SECONDS: &str = "feedline_coordinator_log_append_seconds";
pub(crate) const LOG_BYTES: &str = "feedline_coordinator_log_bytes";
pub(crate) const RECORDS_TOTAL: &str = "feedline_coordinator_records_total";
pub(crate) const LEASES_GRANTED_TOTAL: &str = "feedline_coordinator_leases_granted_total";
pub(crate) const LOST_WORKERS_TOTAL: &str = "feedline_coordinator_lost_workers_total";
pub(crate) const QUEUED_REQUESTS: &str = "feedline_coordinator_queued_requests";
pub(crate) const REQUESTS_TOTAL: &str = "feedline_coordinator_requests_total";
pub(crate) const REFUSALS_TOTAL: &str = "feedline_coordinator_refusals_total";
pub(crate) const FED_FRACTION: &str = "feedline_coordinator_fed_fraction";
pub(crate) const WANTED_WORKERS: &str = "feedline_coordinator_wanted_workers";
pub(crate) const SCALED_WORKERS: &str = "feedline_coordinator_scaled_workers";
pub(crate) const POOL_WANTED_WORKERS: &str = "feedline_coordinator_pool_wanted_workers";
pub(crate) const LIVE_WORKERS: &str = "feedline_coordinator_live_workers";
pub(crate) const LEADS: &str = "feedline_coordinator_leads";
pub(crate) const TERM: &str = "feedline_coordinator_term";
pub(crate) const TENANT_JOBS: &str = "feedline_coordinator_tenant_jobs";
pub(crate) const VOTERS: &str = "feedline_coordinator_voters";
pub(crate) const REACHABLE_VOTERS: &str = "feedline_coordinator_reachable_voters";
pub(crate) const TENANT_STALL_FRACTION: &str = "feedline_coordinator_tenant_stall_fraction";
pub(crate) const TENANT_CORES: &str = "feedline_coordinator_tenant_cores";
pub(crate) const WORKER_CORES: &str = "feedline_coordinator_worker_cores";
pub(crate) const WORKER_USED_CORES: &str = "feedline_coordinator_worker_used_cores";
pub(crate) const JOB_CONSUMERS: &str = "feedline_coordinator_job_consumers";
pub(crate) const JOB_ROWS: &str = "feedline_coordinator_job_rows_per_second";
pub(crate) const JOB_BATCHES: &str = "feedline_coordinator_job_batches_per_second";
pub(crate) const JOB_DEMAND: &str = "feedline_coordinator_job_demand_rows_per_second";
pub(crate) const JOB_PLANNED_ROWS: &str = "feedline_coordinator_job_planned_rows_per_second";
pub(crate) const JOB_FED_FRACTION: &str = "feedline_coordinator_job_fed_fraction";
pub(crate) const JOB_STALL_FRACTION: &str = "feedline_coordinator_job_stall_fraction";
pub(crate) const JOB_CORES: &str = "feedline_coordinator_job_cores";
pub(crate) const JOB_USED_CORES: &str = "feedline_coordinator_job_used_cores";
pub(crate) const JOB_LAG_ROWS: &str = "feedline_coordinator_job_lag_rows";
pub(crate) const JOB_FRESHNESS: &str = "feedline_coordinator_job_freshness_seconds";
pub(crate) const JOB_PASSES_LEFT: &str = "feedline_coordinator_job_passes_left";
pub(crate) const JOB_STORE_BYTES: &str = "feedline_coordinator_job_store_bytes_per_second";
pub(crate) const JOB_CACHE_BYTES: &str = "feedline_coordinator_job_cache_bytes_per_second";
pub(crate) const JOB_BOTTLENECK: &str = "feedline_coordinator_job_bottleneck";
pub(crate) const JOB_OPERATOR_BUSY: &str = "feedline_coordinator_job_operator_busy";
pub(crate) const JOB_OPERATOR_QUEUE_BYTES: &str = "feedline_coordinator_job_operator_queue_bytes";
pub(crate) const PLAN_SECONDS: &str = "feedline_coordinator_plan_seconds";

/// Every metric of the coordinator.
pub const METRICS: &[MetricDescription] = &[
    metric_table::gauge(
        JOBS,
        Unit::Count,
        "Jobs by `state`: preparing, running, completed, failed, cancelled; only on the leader",
    ),
    metric_table::gauge(
        WORKERS,
        Unit::Count,
        "Workers that reported within the lease time; only on the leader",
    ),
    metric_table::histogram(LOG_APPEND_SECONDS, Unit::Seconds, "Duration of a durable write to the raft log"),
    metric_table::gauge(LOG_BYTES, Unit::Bytes, "Size of the raft log"),
    metric_table::counter(
        RECORDS_TOTAL,
        Unit::Count,
        "Records that this coordinator has proposed as the leader",
    ),
    metric_table::counter(
        LEASES_GRANTED_TOTAL,
        Unit::Count,
        "Splits leased to workers, including duplicate leases of late splits",
    ),
    metric_table::counter(
        LOST_WORKERS_TOTAL,
        Unit::Count,
        "Workers that were lost before they had computed a split of a job, counted once per job",
    ),
    metric_table::gauge(QUEUED_REQUESTS, Unit::Count, "Requests in the driver queue"),
    metric_table::counter(REQUESTS_TOTAL, Unit::Count, "Requests by `kind`")
        .with_label("kind", CoordinatorRequest::NAMES),
    metric_table::counter(REFUSALS_TOTAL, Unit::Count, "Rejected requests by error `kind`")
        .with_label("kind", REFUSAL_LABELS),
    metric_table::gauge(
        FED_FRACTION,
        Unit::Count,
        "Lowest ratio of planned rate to consumer rate across all jobs; 1 without jobs; only on the leader",
    ),
    metric_table::gauge(
        WANTED_WORKERS,
        Unit::Count,
        "Number of workers at which only the consumers and the store limit the jobs; while it is unknown, the present number, or the last exported number if it is larger; only on the leader",
    ),
    metric_table::gauge(
        SCALED_WORKERS,
        Unit::Count,
        "Workers requested from the scaler by `pool`, which is `default` for workers without a pool; only on a leader with a scaler",
    ),
    metric_table::gauge(
        POOL_WANTED_WORKERS,
        Unit::Count,
        "Workers that all jobs need, by `pool`, which may exceed the maximum of the pool; the present number while it is unknown; only on a leader with a scaler",
    ),
    metric_table::gauge(
        LIVE_WORKERS,
        Unit::Count,
        "Workers that reported within the lease time and do not drain, by `pool`; only on a leader with a scaler",
    ),
    metric_table::gauge(LEADS, Unit::Count, "1 on the leader, 0 on followers"),
    metric_table::gauge(TERM, Unit::Count, "Current raft term"),
    metric_table::gauge(TENANT_JOBS, Unit::Count, "Running jobs by `tenant`; only on the leader"),
    metric_table::gauge(
        TENANT_CORES,
        Unit::Count,
        "Planned cores by `tenant`, summed over all jobs; only on the leader",
    ),
    metric_table::gauge(
        TENANT_STALL_FRACTION,
        Unit::Count,
        "Largest recent fraction of time that the consumers of a job waited for batches, by `tenant`; only on the leader",
    ),
    metric_table::gauge(VOTERS, Unit::Count, "Coordinators that vote in elections; only on the leader"),
    metric_table::gauge(
        REACHABLE_VOTERS,
        Unit::Count,
        "Voters from which the leader has recently received a message, including itself; only on the leader",
    ),
    metric_table::gauge(
        WORKER_CORES,
        Unit::Count,
        "Cores of the workers that are not draining; only on the leader",
    ),
    metric_table::gauge(
        WORKER_USED_CORES,
        Unit::Count,
        "CPU seconds per second that the workers spend on jobs; only on the leader",
    ),
    metric_table::gauge(JOB_CONSUMERS, Unit::Count, "Consumers of a running job; only on the leader"),
    metric_table::gauge(
        JOB_ROWS,
        Unit::Count,
        "Rows per second delivered to the consumers of a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_BATCHES,
        Unit::Count,
        "Batches per second delivered to the consumers of a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_DEMAND,
        Unit::Count,
        "Rows per second that the consumers of a job could process; only on the leader",
    ),
    metric_table::gauge(
        JOB_PLANNED_ROWS,
        Unit::Count,
        "Rows per second that the plan predicts for a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_FED_FRACTION,
        Unit::Count,
        "Delivered rate of a job divided by its demand, at most 1; only on the leader",
    ),
    metric_table::gauge(
        JOB_STALL_FRACTION,
        Unit::Count,
        "Fraction of time that the consumers of a job waited for batches; only on the leader",
    ),
    metric_table::gauge(JOB_CORES, Unit::Count, "Cores that the plan allocates to a job; only on the leader"),
    metric_table::gauge(
        JOB_USED_CORES,
        Unit::Count,
        "CPU seconds per second that the workers spend on a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_PASSES_LEFT,
        Unit::Count,
        "Remaining passes of a job over its dataset; only on the leader",
    ),
    metric_table::gauge(
        JOB_LAG_ROWS,
        Unit::Count,
        "Rows of the topics of a job that are not delivered; only on the leader, and only for Kafka sources",
    ),
    metric_table::gauge(
        JOB_FRESHNESS,
        Unit::Seconds,
        "Age of the newest record that the consumers of a job have received; only on the leader, and only for Kafka sources",
    ),
    metric_table::gauge(
        JOB_STORE_BYTES,
        Unit::Count,
        "Bytes per second that a job reads from its store; only on the leader",
    ),
    metric_table::gauge(
        JOB_CACHE_BYTES,
        Unit::Count,
        "Bytes per second that a job reads from caches; only on the leader",
    ),
    metric_table::gauge(
        JOB_BOTTLENECK,
        Unit::Count,
        "1 for the `resource` and `operator` that limit a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_OPERATOR_BUSY,
        Unit::Count,
        "Mean number of concurrent executions of an `operator` of a job; only on the leader",
    ),
    metric_table::gauge(
        JOB_OPERATOR_QUEUE_BYTES,
        Unit::Bytes,
        "Bytes that wait for an `operator` of a job; only on the leader",
    ),
    metric_table::histogram(PLAN_SECONDS, Unit::Seconds, "Duration of planning"),
];

/// All values of [`refusal_label`].
const REFUSAL_LABELS: &[&str] = &["invalid", "not_found", "denied", "superseded", "unavailable", "busy"];

pub(crate) fn refusal_label(kind: ServiceErrorKind) -> &'static str {
    match kind {
        ServiceErrorKind::Invalid => "invalid",
        ServiceErrorKind::NotFound => "not_found",
        ServiceErrorKind::Denied => "denied",
        ServiceErrorKind::Superseded => "superseded",
        ServiceErrorKind::Unavailable => "unavailable",
        ServiceErrorKind::Busy => "busy",
    }
}

/// The label of a job's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobGauge {
    Preparing,
    Running,
    Completed,
    Failed,
    Cancelled,
}

impl JobGauge {
    const ALL: [Self; 5] = [Self::Preparing, Self::Running, Self::Completed, Self::Failed, Self::Cancelled];

    fn label(self) -> &'static str {
        match self {
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// The state behind the gauges of jobs and workers. Only a serving leader has this state.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    /// States of the jobs that have not ended.
    open_jobs: BTreeMap<JobId, JobGauge>,
    /// The number of jobs in each state.
    jobs: [u64; JobGauge::ALL.len()],
    workers: BTreeMap<WorkerId, Millis>,
}

impl Gauges {
    /// Updates the job states for a record. The record may be older than the term of this leader.
    pub(crate) fn on_record(&mut self, record: &Record) {
        let (job, state) = match record {
            Record::Opened { job, .. } => (*job, JobGauge::Preparing),
            Record::DatasetIndexed { job, .. } => (*job, JobGauge::Running),
            Record::Ended { job, state: JobState::Completed } => (*job, JobGauge::Completed),
            Record::Ended { job, state: JobState::Cancelled } => (*job, JobGauge::Cancelled),
            Record::Ended { job, .. } => (*job, JobGauge::Failed),
            _ => return,
        };
        if let Some(before) = self.open_jobs.remove(&job) {
            self.jobs[before as usize] -= 1;
        }
        self.jobs[state as usize] += 1;
        if matches!(state, JobGauge::Preparing | JobGauge::Running) {
            self.open_jobs.insert(job, state);
        }
    }

    /// Counts the records that this leader has proposed.
    pub(crate) fn count(records: &[Record]) {
        counter!(RECORDS_TOTAL).increment(records.len() as u64);
        let granted = |record: &Record| match record {
            Record::Granted { splits, .. } => splits.len() as u64,
            _ => 0,
        };
        counter!(LEASES_GRANTED_TOTAL).increment(records.iter().map(granted).sum());
        for record in records {
            if let Record::Revoked { job, worker, splits, lost: true } = record {
                counter!(LOST_WORKERS_TOTAL).increment(1);
                let splits = splits.len();
                tracing::warn!(%job, %worker, splits, "a worker was lost before it had computed its splits");
            }
        }
    }

    pub(crate) fn on_worker(&mut self, worker: WorkerId, now: Millis) {
        self.workers.insert(worker, now);
    }

    pub(crate) fn publish(&mut self, now: Millis, worker_lease_ms: u64) {
        self.workers.retain(|_, seen| now.saturating_sub(*seen) <= worker_lease_ms);
        gauge!(WORKERS).set(self.workers.len() as f64);
        for state in JobGauge::ALL {
            gauge!(JOBS, "state" => state.label()).set(self.jobs[state as usize] as f64);
        }
    }

    /// Publishes the number of voters, and of those that this leader can reach.
    pub(crate) fn publish_voters(members: &[MemberView]) {
        let voters = || members.iter().filter(|member| member.is_voter);
        gauge!(VOTERS).set(voters().count() as f64);
        gauge!(REACHABLE_VOTERS).set(voters().filter(|member| member.is_reachable).count() as f64);
    }

    /// Removes the gauges, because another coordinator leads and publishes them.
    pub(crate) fn retire(self) {
        for name in [WORKERS, VOTERS, REACHABLE_VOTERS] {
            gauge!(name).set(ABSENT);
        }
        for state in JobGauge::ALL {
            gauge!(JOBS, "state" => state.label()).set(ABSENT);
        }
    }
}

/// A recorder of gauges for tests.
#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use metrics::{
        Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, with_local_recorder,
    };

    use feedline_raft::MemberId;

    use super::*;

    /// The values of all gauges that were set on the current thread, by name and label value.
    #[derive(Debug, Default)]
    pub(crate) struct GaugeRecorder(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl GaugeRecorder {
        /// Returns the gauges that are exported, as `name value` or `name label value`.
        pub(crate) fn exported(&self) -> Vec<String> {
            let gauges = self.0.lock().unwrap();
            let values =
                gauges.iter().map(|(name, bits)| (name, f64::from_bits(bits.load(Ordering::Acquire))));
            values
                .filter(|(_, value)| !value.is_nan())
                .map(|(name, value)| format!("{name} {value}"))
                .collect()
        }
    }

    impl Recorder for GaugeRecorder {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
            Counter::noop()
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            let labels = key.labels().map(|label| format!(" {}", label.value()));
            let name = std::iter::once(key.name().to_owned()).chain(labels).collect::<String>();
            Gauge::from_arc(Arc::clone(self.0.lock().unwrap().entry(name).or_default()))
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    fn member(id: u64, is_voter: bool, is_reachable: bool) -> MemberView {
        let id = MemberId::new(id).unwrap();
        MemberView { id, url: String::new(), is_leader: false, is_voter, is_reachable, missing_entries: 0 }
    }

    #[test]
    fn every_kind_of_refusal_has_a_counter() {
        use ServiceErrorKind as Kind;
        let kinds =
            [Kind::Invalid, Kind::NotFound, Kind::Denied, Kind::Superseded, Kind::Unavailable, Kind::Busy];
        assert_eq!(kinds.map(refusal_label), REFUSAL_LABELS);
    }

    #[test]
    fn a_coordinator_that_lost_leadership_exports_no_jobs_and_workers() {
        let recorder = GaugeRecorder::default();
        with_local_recorder(&recorder, || {
            let mut gauges = Gauges::default();
            gauges.on_worker(WorkerId(7), 1_000);
            gauges.publish(1_000, 3_000);
            Gauges::publish_voters(&[member(1, true, true), member(2, true, false), member(3, false, true)]);
            let exported = recorder.exported();
            assert!(exported.contains(&format!("{VOTERS} 2")), "{exported:?}");
            assert!(exported.contains(&format!("{REACHABLE_VOTERS} 1")), "{exported:?}");
            assert!(exported.contains(&format!("{WORKERS} 1")), "{exported:?}");
            assert!(exported.contains(&format!("{JOBS} running 0")), "{exported:?}");
            gauges.retire();
            assert!(recorder.exported().is_empty(), "{:?}", recorder.exported());
        });
    }
}
