//! Makes the samples of all workers list the same operators. If a plan caches rows, some workers have a `cache` operator.
//! Other workers lack it, because they have too little memory or have not applied the plan yet.

use std::borrow::Cow;

use feedline_data::messages::OperatorStats;

use super::samples::JobWorkerSample;

#[cfg(test)]
mod tests;

/// Name of the operator that looks up rows in a cache.
const CACHE_OPERATOR: &str = "cache";

/// Returns the operator names of the worker with the most operators, or of the first such worker.
pub(super) fn longest_operator_list(samples: &[JobWorkerSample]) -> Vec<&str> {
    let largest = samples.iter().map(|sample| sample.operators.len()).max().unwrap_or(0);
    let longest = samples.iter().find(|sample| sample.operators.len() == largest);
    let operators = longest.map_or(&[][..], |sample| &sample.operators);
    operators.iter().map(|operator| operator.name.as_str()).collect()
}

/// Returns the samples, each with the operators in `names`. Omits workers without counters.
pub(super) fn align<'a>(samples: &'a [JobWorkerSample], names: &[&str]) -> Vec<Cow<'a, JobWorkerSample>> {
    let counting = samples.iter().filter(|sample| !sample.operators.is_empty());
    counting.map(|sample| with_operators(sample, names)).collect()
}

/// Returns a sample with the missing operators added. A worker without a cache is treated as a worker whose cache
/// lookups all miss.
fn with_operators<'a>(sample: &'a JobWorkerSample, names: &[&str]) -> Cow<'a, JobWorkerSample> {
    if sample.operators.iter().map(|operator| operator.name.as_str()).eq(names.iter().copied()) {
        return Cow::Borrowed(sample);
    }
    let own = |name: &str| sample.operators.iter().find(|operator| operator.name == name);
    let source_rows = sample.operators.first().map_or(0, |source| source.rows_out);
    let operator = |name: &&str| {
        own(name).cloned().unwrap_or_else(|| OperatorStats {
            name: (*name).to_owned(),
            rows_in: if *name == CACHE_OPERATOR { source_rows } else { 0 },
            ..OperatorStats::default()
        })
    };
    Cow::Owned(JobWorkerSample { operators: names.iter().map(operator).collect(), ..sample.clone() })
}
