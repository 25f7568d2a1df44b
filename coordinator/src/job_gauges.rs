//! Metrics of each running job, from the view of the cluster and the reports of workers and consumers.

use std::collections::BTreeMap;

use feedline_common::metric_table::ABSENT;
use feedline_data::messages::samples::{JobProperties, Samples};
use feedline_data::view::{ClusterView, JobView};
use feedline_planner::model::JobObservation;
use feedline_planner::observe::Observer;
use feedline_planner::plan::Plan;
use metrics::{Label, gauge};

use crate::metrics::{
    JOB_BATCHES, JOB_BOTTLENECK, JOB_CACHE_BYTES, JOB_CONSUMERS, JOB_CORES, JOB_DEMAND, JOB_FED_FRACTION,
    JOB_OPERATOR_BUSY, JOB_OPERATOR_QUEUE_BYTES, JOB_PASSES_LEFT, JOB_PLANNED_ROWS, JOB_ROWS,
    JOB_STALL_FRACTION, JOB_STORE_BYTES, JOB_USED_CORES, WORKER_CORES, WORKER_USED_CORES,
};

/// Maximum number of series of jobs. The crate `metrics` cannot remove the series of ended jobs.
const MAX_SERIES: usize = 10_000;

/// The name and the labels of a gauge.
type Series = (&'static str, Vec<(&'static str, String)>);

/// The gauges of jobs and of all workers.
#[derive(Debug, Default)]
pub(crate) struct JobGauges {
    /// All series that were published. A series of an ended job has no value.
    published: BTreeMap<Series, Option<f64>>,
}

impl JobGauges {
    /// Publishes the gauges of the running jobs, and removes those of ended jobs.
    pub(crate) fn publish(
        &mut self,
        view: &ClusterView,
        samples: &Samples,
        observer: &Observer,
        plan: Option<&Plan>,
    ) {
        self.published.values_mut().for_each(|value| *value = None);
        for job in &view.jobs {
            let properties = samples.jobs.iter().find(|properties| properties.job == job.job);
            if let (Some(properties), Some(observed)) = (properties, observer.observation(job.job)) {
                let mut gauges = NamedJobGauges { gauges: self, job };
                gauges.set_rates(properties, &observed, plan);
                gauges.set_work(&observed);
            }
        }
        self.export();
        let staying = view.workers.iter().filter(|worker| !worker.draining);
        gauge!(WORKER_CORES).set(staying.map(|worker| f64::from(worker.cores)).sum::<f64>());
        gauge!(WORKER_USED_CORES).set(view.workers.iter().map(|worker| worker.used_cores).sum::<f64>());
    }

    fn export(&self) {
        for ((name, labels), value) in &self.published {
            let labels: Vec<Label> =
                labels.iter().map(|(label, value)| Label::new(*label, value.clone())).collect();
            gauge!(*name, labels).set(value.unwrap_or(ABSENT));
        }
    }

    /// Removes the gauges, because another coordinator leads and publishes them.
    pub(crate) fn retire(&mut self) {
        self.published.values_mut().for_each(|value| *value = None);
        self.export();
        gauge!(WORKER_CORES).set(ABSENT);
        gauge!(WORKER_USED_CORES).set(ABSENT);
    }

    /// Sets the value of a series. `combine` combines it with the value of another job with the same labels.
    fn set(&mut self, series: Series, value: f64, combine: fn(f64, f64) -> f64) {
        if self.published.len() >= MAX_SERIES && !self.published.contains_key(&series) {
            return;
        }
        let present = self.published.entry(series).or_default();
        *present = Some(present.map_or(value, |other| combine(other, value)));
    }
}

/// The gauges of one job.
struct NamedJobGauges<'a> {
    gauges: &'a mut JobGauges,
    job: &'a JobView,
}

impl NamedJobGauges<'_> {
    /// Sets the rates of consumers, and what the plan predicts.
    fn set_rates(&mut self, properties: &JobProperties, observed: &JobObservation, plan: Option<&Plan>) {
        let job = self.job;
        let planned = plan.and_then(|plan| plan.jobs.iter().find(|planned| planned.job == job.job));
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
            self.gauges.set(series, 1.0, f64::max);
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
        self.gauges.set(series, value, |one, other| one + other);
    }

    /// Sets a gauge. A value that is unknown or not finite has no series.
    fn combine(&mut self, name: &'static str, value: Option<f64>, combine: fn(f64, f64) -> f64) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            let series = self.series(name, []);
            self.gauges.set(series, value, combine);
        }
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
mod tests {
    use feedline_data::ids::JobId;
    use metrics::with_local_recorder;

    use super::*;
    use crate::metrics::tests::GaugeRecorder;

    fn job(fed: Option<f64>, rows_per_s: f64) -> JobView {
        JobView { fed_fraction: fed, rows_per_s, ..JobView::new(JobId(1), "vision", "train") }
    }

    #[test]
    fn jobs_with_the_same_name_share_their_series() {
        let mut gauges = JobGauges::default();
        for job in [job(Some(0.5), 10.0), job(Some(0.9), 20.0), job(None, 1.0)] {
            let mut named = NamedJobGauges { gauges: &mut gauges, job: &job };
            named.combine(JOB_FED_FRACTION, job.fed_fraction, f64::min);
            named.add(JOB_ROWS, Some(job.rows_per_s));
            named.add(JOB_DEMAND, Some(f64::INFINITY));
        }
        let values: Vec<_> = gauges.published.iter().map(|((name, _), value)| (*name, *value)).collect();
        assert_eq!(values, [(JOB_FED_FRACTION, Some(0.5)), (JOB_ROWS, Some(31.0))]);
    }

    #[test]
    fn an_ended_job_exports_nothing() {
        let recorder = GaugeRecorder::default();
        with_local_recorder(&recorder, || {
            let mut gauges = JobGauges::default();
            let running = job(Some(0.5), 10.0);
            NamedJobGauges { gauges: &mut gauges, job: &running }.add(JOB_ROWS, Some(running.rows_per_s));
            gauges.export();
            assert_eq!(recorder.exported(), [format!("{JOB_ROWS} vision train 10")]);
            gauges.publish(&ClusterView::default(), &Samples::default(), &Observer::default(), None);
            let of_workers = [WORKER_CORES, WORKER_USED_CORES].map(|name| format!("{name} 0"));
            assert_eq!(recorder.exported(), of_workers);
            gauges.retire();
            assert!(recorder.exported().is_empty());
        });
    }
}
