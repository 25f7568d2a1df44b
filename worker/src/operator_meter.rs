//! Metrics of operators and stores, summed over the jobs of a worker.

use std::collections::BTreeMap;

use feedline_data::ids::JobId;
use feedline_data::messages::WorkerJobStats;

use crate::metrics;

/// Converts the counters of loaded jobs to metrics, which continue after a job has ended.
#[derive(Debug, Default)]
pub(crate) struct OperatorMeter {
    /// The last counters of each job: CPU nanoseconds by operator.
    cpu_ns: BTreeMap<(JobId, String), u64>,
    /// Bytes read from the store by each job.
    store_bytes: BTreeMap<JobId, u64>,
    /// Bytes that wait for each kind of operator.
    queue_bytes: BTreeMap<String, u64>,
}

impl OperatorMeter {
    /// Publishes the increases since the last call.
    pub(crate) fn update(&mut self, jobs: &[WorkerJobStats]) {
        let (mut cpu_ns, mut store_bytes) = (BTreeMap::new(), BTreeMap::new());
        let mut increases: BTreeMap<&str, u64> = BTreeMap::new();
        self.queue_bytes.values_mut().for_each(|bytes| *bytes = 0);
        let mut read = 0;
        for job in jobs {
            read += increase(self.store_bytes.get(&job.job), job.store.bytes);
            store_bytes.insert(job.job, job.store.bytes);
            for operator in &job.operators {
                let kind = kind(&operator.name);
                let key = (job.job, operator.name.clone());
                *increases.entry(kind).or_default() += increase(self.cpu_ns.get(&key), operator.cpu_ns);
                *self.queue_bytes.entry(kind.to_owned()).or_default() += operator.queue_bytes;
                cpu_ns.insert(key, operator.cpu_ns);
            }
        }
        metrics::count_store_bytes(read);
        for (kind, ns) in increases {
            metrics::add_operator_cpu(kind, ns as f64 / 1e9);
        }
        for (kind, bytes) in &self.queue_bytes {
            metrics::set_operator_queue(kind, *bytes);
        }
        (self.cpu_ns, self.store_bytes) = (cpu_ns, store_bytes);
    }
}

/// Returns the kind of an operator. Pipelines number repeated operators, such as `resize#2`.
fn kind(name: &str) -> &str {
    name.split('#').next().unwrap_or(name)
}

/// Returns the increase of a counter. The counters of a job restart at 0 when the job is loaded again.
fn increase(before: Option<&u64>, now: u64) -> u64 {
    match before {
        Some(before) if *before <= now => now - before,
        _ => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_is_loaded_again_restarts_its_counters() {
        assert_eq!(increase(None, 5), 5);
        assert_eq!(increase(Some(&5), 7), 2);
        assert_eq!(increase(Some(&5), 3), 3);
    }

    #[test]
    fn repeated_operators_are_of_one_kind() {
        assert_eq!(["resize", "resize#2"].map(kind), ["resize"; 2]);
    }
}
