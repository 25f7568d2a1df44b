//! The coordinator's metrics: their names, units and meanings in one table, and what feeds the gauges.

use std::collections::BTreeMap;

use feedline_cluster::records::Record;
use feedline_data::ids::{JobId, Millis, WorkerId};
use feedline_data::messages::{JobState, ServiceErrorKind};
use metrics::{Unit, counter, gauge};

pub(crate) const JOBS: &str = "feedline_coordinator_jobs";
pub(crate) const WORKERS: &str = "feedline_coordinator_workers";
pub(crate) const LOG_APPEND_SECONDS: &str = "feedline_coordinator_log_append_seconds";
pub(crate) const LOG_BYTES: &str = "feedline_coordinator_log_bytes";
pub(crate) const RECORDS_TOTAL: &str = "feedline_coordinator_records_total";
pub(crate) const LEASES_GRANTED_TOTAL: &str = "feedline_coordinator_leases_granted_total";
pub(crate) const QUEUED_REQUESTS: &str = "feedline_coordinator_queued_requests";
pub(crate) const REQUESTS_TOTAL: &str = "feedline_coordinator_requests_total";
pub(crate) const REFUSALS_TOTAL: &str = "feedline_coordinator_refusals_total";
pub(crate) const FED_FRACTION: &str = "feedline_coordinator_fed_fraction";
pub(crate) const WANTED_WORKERS: &str = "feedline_coordinator_wanted_workers";
pub(crate) const SCALED_WORKERS: &str = "feedline_coordinator_scaled_workers";
pub(crate) const LEADS: &str = "feedline_coordinator_leads";
pub(crate) const TERM: &str = "feedline_coordinator_term";
pub(crate) const TENANT_JOBS: &str = "feedline_coordinator_tenant_jobs";
pub(crate) const TENANT_CORES: &str = "feedline_coordinator_tenant_cores";
pub(crate) const PLAN_SECONDS: &str = "feedline_coordinator_plan_seconds";

/// Kinds of metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Many measurements.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct MetricDescription {
    /// Full name.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Unit.
    pub unit: Unit,
    /// What it counts.
    pub text: &'static str,
}

const fn metric(name: &'static str, kind: MetricKind, unit: Unit, text: &'static str) -> MetricDescription {
    MetricDescription { name, kind, unit, text }
}

/// Every metric of the coordinator.
pub const METRICS: &[MetricDescription] = &[
    metric(
        JOBS,
        MetricKind::Gauge,
        Unit::Count,
        "Jobs by `state`: preparing, running, completed, failed, cancelled",
    ),
    metric(WORKERS, MetricKind::Gauge, Unit::Count, "Workers that reported within the lease time"),
    metric(
        LOG_APPEND_SECONDS,
        MetricKind::Histogram,
        Unit::Seconds,
        "Time to append to the log durably what has come together",
    ),
    metric(LOG_BYTES, MetricKind::Gauge, Unit::Bytes, "Size of the log"),
    metric(RECORDS_TOTAL, MetricKind::Counter, Unit::Count, "Decisions made while it leads"),
    metric(
        LEASES_GRANTED_TOTAL,
        MetricKind::Counter,
        Unit::Count,
        "Splits leased to workers, second leases included",
    ),
    metric(QUEUED_REQUESTS, MetricKind::Gauge, Unit::Count, "Requests that wait to be decided on"),
    metric(REQUESTS_TOTAL, MetricKind::Counter, Unit::Count, "Requests by `kind`"),
    metric(REFUSALS_TOTAL, MetricKind::Counter, Unit::Count, "Refused requests by `kind` of refusal"),
    metric(
        FED_FRACTION,
        MetricKind::Gauge,
        Unit::Count,
        "Planned rate over the rate that the consumers could take, of the least fed job; 1 without jobs",
    ),
    metric(
        WANTED_WORKERS,
        MetricKind::Gauge,
        Unit::Count,
        "Workers that would feed all jobs as far as consumers and store allow",
    ),
    metric(
        SCALED_WORKERS,
        MetricKind::Gauge,
        Unit::Count,
        "Workers that the scaler was told to have; 0 without a scaler",
    ),
    metric(LEADS, MetricKind::Gauge, Unit::Count, "1 where this coordinator leads, 0 where it follows"),
    metric(
        TERM,
        MetricKind::Gauge,
        Unit::Count,
        "Elections that the coordinators have held, as far as this one knows",
    ),
    metric(TENANT_JOBS, MetricKind::Gauge, Unit::Count, "Jobs that run, by `tenant`"),
    metric(
        TENANT_CORES,
        MetricKind::Gauge,
        Unit::Count,
        "Cores that the plan gives the jobs of each `tenant` together",
    ),
    metric(PLAN_SECONDS, MetricKind::Histogram, Unit::Seconds, "Time to make a plan"),
];

/// Tells the installed recorder the unit and meaning of every metric of the coordinator.
pub fn describe_metrics() {
    for &MetricDescription { name, kind, unit, text } in METRICS {
        match kind {
            MetricKind::Counter => metrics::describe_counter!(name, unit, text),
            MetricKind::Gauge => metrics::describe_gauge!(name, unit, text),
            MetricKind::Histogram => metrics::describe_histogram!(name, unit, text),
        }
    }
}

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

const STATES: [&str; 5] = ["preparing", "running", "completed", "failed", "cancelled"];

/// What the gauges count.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    jobs: BTreeMap<JobId, &'static str>,
    workers: BTreeMap<WorkerId, Millis>,
}

impl Gauges {
    /// Notes a decision, persisted now or in an earlier life.
    pub(crate) fn on_record(&mut self, record: &Record) {
        match record {
            Record::Opened { job, .. } => self.jobs.insert(*job, "preparing"),
            Record::Ready { job, .. } => self.jobs.insert(*job, "running"),
            Record::Ended { job, state } => self.jobs.insert(
                *job,
                match state {
                    JobState::Completed => "completed",
                    JobState::Cancelled => "cancelled",
                    _ => "failed",
                },
            ),
            _ => None,
        };
    }

    /// Counts decisions of this life.
    pub(crate) fn count(records: &[Record]) {
        counter!(RECORDS_TOTAL).increment(records.len() as u64);
        let granted = |record: &Record| match record {
            Record::Granted { splits, .. } => splits.len() as u64,
            _ => 0,
        };
        counter!(LEASES_GRANTED_TOTAL).increment(records.iter().map(granted).sum());
    }

    pub(crate) fn on_worker(&mut self, worker: WorkerId, now: Millis) {
        self.workers.insert(worker, now);
    }

    pub(crate) fn publish(&mut self, now: Millis, worker_lease_ms: u64) {
        self.workers.retain(|_, seen| now.saturating_sub(*seen) <= worker_lease_ms);
        gauge!(WORKERS).set(self.workers.len() as f64);
        for state in STATES {
            let jobs = self.jobs.values().filter(|present| **present == state).count();
            gauge!(JOBS, "state" => state).set(jobs as f64);
        }
    }
}

/// Peak resident set of this process in bytes; 0 where the system does not tell.
pub(crate) fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
