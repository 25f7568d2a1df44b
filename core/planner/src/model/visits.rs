//! How often each operator is visited for a row delivered (the forced flow law of operational analysis).
//!
//! Rows that came to an operator within some seconds over rows delivered within the same would count what is still under way:
//! where groups wait, or more of them begin than before, operators at the front have seen rows of many seconds to come.
//! What an operator makes of its own rows has no such error, and the visits follow from these ratios, from the back.

use super::samples::{JobWorkerSample, OperatorSample};

#[cfg(test)]
mod tests;

/// Rows that come to each operator per row delivered; for the source, rows that it gives.
pub(super) fn visits(workers: &[&JobWorkerSample]) -> Vec<f64> {
    let count = workers.first().map_or(0, |worker| worker.operators.len());
    let sum = |place: usize, field: fn(&OperatorSample) -> u64| -> f64 {
        workers.iter().map(|worker| field(&worker.operators[place]) as f64).sum()
    };
    let mut found = vec![0.0; count];
    // Rows that leave the operator at hand, per row delivered.
    let mut leaving = 1.0;
    for place in (0..count).rev() {
        let (taken, given) = (sum(place, |sample| sample.rows_in), sum(place, |sample| sample.rows_out));
        let name = workers[0].operators[place].name.as_str();
        found[place] = match name {
            "cache" => leaving,
            // Nothing has left it yet.
            _ if given <= 0.0 => taken / sum(count - 1, |sample| sample.rows_out),
            // A source takes none.
            _ if taken <= 0.0 => leaving,
            _ => leaving * taken / given,
        };
        leaving = match name {
            // It counts rows as they were in their group, those that have left since included.
            "batch" => 1.0,
            // It counts rows looked for and rows found: what is missing is made by those before it.
            "cache" if taken > 0.0 => leaving * (1.0 - given / taken).max(0.0),
            _ => found[place],
        };
    }
    found
}
