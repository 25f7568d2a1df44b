//! Workers of one job whose operators differ by what they keep: some keep rows behind an operator, others were told to and do
//! not yet, or have no room.

use std::borrow::Cow;

use super::samples::{OperatorSample, WorkerSample};

#[cfg(test)]
mod tests;

/// The operator that looks for kept rows.
const CACHE: &str = "cache";

/// The samples that count anything, all with the operators of that with the most, in its order. A worker that keeps nothing
/// is one that looks for each row and finds none.
pub(super) fn aligned(samples: &[WorkerSample]) -> Vec<Cow<'_, WorkerSample>> {
    let Some(longest) = longest(samples) else { return Vec::new() };
    let names: Vec<&str> = longest.operators.iter().map(|operator| operator.name.as_str()).collect();
    let counting = samples.iter().filter(|sample| !sample.operators.is_empty());
    counting.map(|sample| with_operators(sample, &names)).collect()
}

/// The first of those with the most operators.
fn longest(samples: &[WorkerSample]) -> Option<&WorkerSample> {
    let most = samples.iter().map(|sample| sample.operators.len()).max().filter(|most| *most > 0)?;
    samples.iter().find(|sample| sample.operators.len() == most)
}

fn with_operators<'a>(sample: &'a WorkerSample, names: &[&str]) -> Cow<'a, WorkerSample> {
    if sample.operators.iter().map(|operator| operator.name.as_str()).eq(names.iter().copied()) {
        return Cow::Borrowed(sample);
    }
    let own = |name: &str| sample.operators.iter().find(|operator| operator.name == name);
    let operator = |(place, name): (usize, &&str)| {
        own(name).cloned().unwrap_or_else(|| {
            let behind = names[place + 1..].iter().find_map(|name| own(name)).filter(|_| *name == CACHE);
            let rows_in = behind.map_or(0, |behind| behind.rows_in);
            OperatorSample { name: (*name).to_owned(), rows_in, ..OperatorSample::default() }
        })
    };
    Cow::Owned(WorkerSample { operators: names.iter().enumerate().map(operator).collect(), ..sample.clone() })
}
