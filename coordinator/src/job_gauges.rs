//! Metrics of each running job, from the view of the cluster and the reports of workers and consumers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use feedline_common::metric_table::ABSENT;
use feedline_data::ids::JobId;
use feedline_data::messages::samples::{JobProperties, Samples};
use feedline_data::view::{ClusterView, JobView};
use feedline_planner::model::JobObservation;
use feedline_planner::observe::Observer;
use feedline_planner::plan::{JobPlan, Plan};
use metrics::gauge;

use crate::job_series::JobSeries;
use crate::metrics::{
    JOB_BATCHES, JOB_BOTTLENECK, JOB_CACHE_BYTES, JOB_CONSUMERS, JOB_CORES, JOB_DEMAND, JOB_FED_FRACTION,
    JOB_FRESHNESS, JOB_LAG_ROWS, JOB_OPERATOR_BUSY, JOB_OPERATOR_QUEUE_BYTES, JOB_PASSES_LEFT,
    JOB_PLANNED_ROWS, JOB_ROWS, JOB_STALL_FRACTION, JOB_STORE_BYTES, JOB_USED_CORES, WORKER_CORES,
    WORKER_USED_CORES,
};

/// Maximum number of exported series of jobs.
const MAX_SERIES: usize = 10_000;

/// The name and the labels of a gauge.
type Series = (&'static str, Vec<(&'static str, String)>);

/// Combines the values of two jobs with the same labels.
type Combine = fn(f64, f64) -> f64;

/// The gauges of jobs and of all workers.
#[derive(Debug, Default)]
pub(crate) struct JobGauges {
    /// The number of running jobs without series in the last export.
    omitted_jobs: usize,
}

impl JobGauges {
    /// Publishes the gauges of all workers. Returns the series of the running jobs, sorted by name and labels. `unix_ms` is the time
    /// in milliseconds since 1970.
    pub(crate) fn publish(
        &mut self,
        view: &ClusterView,
        samples: &Samples,
        observer: &Observer,
        plan: Option<&Plan>,
        unix_ms: u64,
    ) -> Vec<JobSeries> {
        let staying = view.workers.iter().filter(|worker| !worker.draining);
        // The sum of no numbers is -0.
        gauge!(WORKER_CORES).set(staying.map(|worker| f64::from(worker.cores)).sum::<f64>() + 0.0);
        gauge!(WORKER_USED_CORES).set(view.workers.iter().map(|worker| worker.used_cores).sum::<f64>() + 0.0);
        let properties: BTreeMap<JobId, &JobProperties> =
            samples.jobs.iter().map(|properties| (properties.job, properties)).collect();
        let planned: BTreeMap<JobId, &JobPlan> =
            plan.iter().flat_map(|plan| &plan.jobs).map(|planned| (planned.job, planned)).collect();
        let mut newest_ms: BTreeMap<JobId, u64> = BTreeMap::new();
        for consumer in &samples.consumers {
            let newest = newest_ms.entry(consumer.job).or_default();
            *newest = consumer.stats.newest_ms.max(*newest);
        }
        let gauges = view.jobs.iter().filter_map(|job| {
            let (properties, observed) = (properties.get(&job.job)?, observer.observation(job.job)?);
            let mut gauges = NamedJobGauges::new(job);
            gauges.set_rates(properties, &observed, planned.get(&job.job).copied());
            gauges.set_work(&observed);
            gauges.set_topic(properties, newest_ms.get(&job.job).copied(), unix_ms);
            Some(gauges)
        });
        self.export(gauges.collect(), MAX_SERIES)
    }

    /// Returns at most `max_series` series. Newer jobs precede older jobs, and a job has all its series or none.
    fn export(&mut self, mut jobs: Vec<NamedJobGauges<'_>>, max_series: usize) -> Vec<JobSeries> {
        jobs.sort_by_key(|gauges| Reverse(gauges.job.job));
        let mut exported: BTreeMap<Series, f64> = BTreeMap::new();
        let mut omitted_jobs = 0;
        for NamedJobGauges { values, .. } in jobs {
            let new = values.keys().filter(|series| !exported.contains_key(*series)).count();
            if exported.len() + new > max_series {
                omitted_jobs += 1;
                continue;
            }
            for (series, (value, combine)) in values {
                exported.entry(series).and_modify(|other| *other = combine(*other, value)).or_insert(value);
            }
        }
        if omitted_jobs > 0 && self.omitted_jobs == 0 {
            tracing::warn!(
                omitted_jobs,
                "the oldest running jobs have no metrics, because the metrics of jobs have at most {max_series} series: \
                 give jobs that belong together the same name"
            );
        }
        self.omitted_jobs = omitted_jobs;
        let series = |((name, labels), value): (Series, f64)| JobSeries { name, labels, value: value + 0.0 };
        exported.into_iter().map(series).collect()
    }

    /// Removes the gauges of all workers, because another coordinator leads and publishes them.
    pub(crate) fn retire() {
        gauge!(WORKER_CORES).set(ABSENT);
        gauge!(WORKER_USED_CORES).set(ABSENT);
    }
}

/// The gauges of one job.
struct NamedJobGauges<'a> {
    job: &'a JobView,
    values: BTreeMap<Series, (f64, Combine)>,
}

impl<'a> NamedJobGauges<'a> {
    fn new(job: &'a JobView) -> Self {
        Self { job, values: BTreeMap::new() }
    }

    /// Sets the rates of consumers, and what the plan predicts.
    fn set_rates(
        &mut self,
        properties: &JobProperties,
        observed: &JobObservation,
        planned: Option<&JobPlan>,
    ) {
        let job = self.job;
        let demand = job.demand_rows_per_s.or(planned.map(|planned| planned.demand_rows_per_s));
        let batches = observed.consumers.iter().map(|one| per_second(one.stats.batches, one.elapsed_ns));
        self.add(JOB_CONSUMERS, Some(observed.consumers.len() as f64));
        self.add(JOB_ROWS, Some(job.rows_per_s));
        self.add(JOB_BATCHES, Some(batches.sum()));
        self.add(JOB_DEMAND, demand);
        self.add(JOB_PLANNED_ROWS, planned.map(|planned| planned.rows_per_s));
        self.add(JOB_CORES, Some(job.cores));
        self.combine(JOB_FED_FRACTION, job.fed_fraction, f64::min);
        self.combine(JOB_STALL_FRACTION, job.stall_share, f64::max);
        self.combine(JOB_PASSES_LEFT, Some(properties.passes_left), f64::max);
    }

    /// Sets the lag of a job that reads topics, and the age of its newest record.
    fn set_topic(&mut self, properties: &JobProperties, newest_ms: Option<u64>, unix_ms: u64) {
        self.add(JOB_LAG_ROWS, properties.lag_rows.map(|rows| rows as f64));
        // 0 means that no record with a timestamp was delivered.
        let newest_ms = newest_ms.filter(|newest| *newest > 0);
        let age_s = newest_ms.map(|newest| unix_ms.saturating_sub(newest) as f64 / 1e3);
        self.combine(JOB_FRESHNESS, age_s, f64::max);
    }

    /// Sets what the workers do for the job.
    fn set_work(&mut self, observed: &JobObservation) {
        let recent = &observed.recent;
        let used = recent.iter().map(|sample| fraction(sample.process_cpu_ns, sample.elapsed_ns));
        let read = recent.iter().map(|sample| per_second(sample.store.bytes, sample.elapsed_ns));
        self.add(JOB_USED_CORES, Some(used.sum()));
        self.add(JOB_STORE_BYTES, Some(read.sum()));
        self.add(JOB_CACHE_BYTES, Some(0.0));
        for sample in recent {
            for operator in &sample.operators {
                if operator.name == "cache" {
                    self.add(JOB_CACHE_BYTES, Some(per_second(operator.bytes_out, sample.elapsed_ns)));
                }
                let label = [("operator", operator.name.clone())];
                let busy = fraction(operator.busy_ns, sample.elapsed_ns);
                self.add_labelled(JOB_OPERATOR_BUSY, label.clone(), busy);
                self.add_labelled(JOB_OPERATOR_QUEUE_BYTES, label, operator.queue_bytes as f64);
            }
        }
        if let Some(bottleneck) = &self.job.bottleneck {
            let operator = bottleneck.operator.clone().unwrap_or_default();
            let labels = [("resource", bottleneck.kind.name().to_owned()), ("operator", operator)];
            let series = self.series(JOB_BOTTLENECK, labels);
            self.set(series, 1.0, f64::max);
        }
    }

    fn add(&mut self, name: &'static str, value: Option<f64>) {
        self.combine(name, value, |one, other| one + other);
    }

    fn add_labelled<const N: usize>(
        &mut self,
        name: &'static str,
        labels: [(&'static str, String); N],
        value: f64,
    ) {
        let series = self.series(name, labels);
        self.set(series, value, |one, other| one + other);
    }

    /// Sets a gauge. A value that is unknown or not finite has no series.
    fn combine(&mut self, name: &'static str, value: Option<f64>, combine: Combine) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let series = self.series(name, []);
            self.set(series, value, combine);
        }
    }

    /// Sets the value of a series. Combines values of the same series.
    fn set(&mut self, series: Series, value: f64, combine: Combine) {
        self.values
            .entry(series)
            .and_modify(|(other, _)| *other = combine(*other, value))
            .or_insert((value, combine));
    }

    fn series<const N: usize>(&self, name: &'static str, labels: [(&'static str, String); N]) -> Series {
        let job = [("tenant", self.job.tenant.clone()), ("job_name", self.job.name.clone())];
        (name, job.into_iter().chain(labels).collect())
    }
}

/// The rate of a counter over a time in nanoseconds.
fn per_second(count: u64, elapsed_ns: u64) -> f64 {
    fraction(count, elapsed_ns) * 1e9
}

fn fraction(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests;
