//! Workers of one job whose operators differ by what they keep: some keep rows behind an operator, others were told to and do
//! not yet, or have no room.

use std::borrow::Cow;

use super::samples::{JobWorkerSample, OperatorSample};

#[cfg(test)]
mod tests;

/// The operator that looks for kept rows.
const CACHE: &str = "cache";

/// The operators that all have together: those of the first of those with the most.
pub(super) fn names(samples: &[JobWorkerSample]) -> Vec<&str> {
    let most = samples.iter().map(|sample| sample.operators.len()).max().unwrap_or(0);
    let longest = samples.iter().find(|sample| sample.operators.len() == most);
    longest
        .map_or(&[][..], |sample| &sample.operators)
        .iter()
        .map(|operator| operator.name.as_str())
        .collect()
}

/// The samples that count anything, with these operators. A worker that keeps nothing is one that looks for each row and
/// finds none.
pub(super) fn aligned<'a>(samples: &'a [JobWorkerSample], names: &[&str]) -> Vec<Cow<'a, JobWorkerSample>> {
    let counting = samples.iter().filter(|sample| !sample.operators.is_empty());
    counting.map(|sample| with_operators(sample, names)).collect()
}

fn with_operators<'a>(sample: &'a JobWorkerSample, names: &[&str]) -> Cow<'a, JobWorkerSample> {
    if sample.operators.iter().map(|operator| operator.name.as_str()).eq(names.iter().copied()) {
        return Cow::Borrowed(sample);
    }
    let own = |name: &str| sample.operators.iter().find(|operator| operator.name == name);
    // Rows are looked for before anything is made of them.
    let looked_for = sample.operators.first().map_or(0, |source| source.rows_out);
    let operator = |name: &&str| {
        own(name).cloned().unwrap_or_else(|| OperatorSample {
            name: (*name).to_owned(),
            rows_in: if *name == CACHE { looked_for } else { 0 },
            ..OperatorSample::default()
        })
    };
    Cow::Owned(JobWorkerSample { operators: names.iter().map(operator).collect(), ..sample.clone() })
}
