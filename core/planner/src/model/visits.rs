//! How many rows enter each operator for one delivered row (the forced flow law of operational analysis).
//!
//! Dividing the rows that entered an operator by the rows delivered in the same seconds is wrong while rows are in flight: the
//! first operators have seen rows that are delivered seconds later. The ratio of an operator's own input and output has no
//! such error. The visits follow from these ratios, from the last operator to the first.

use feedline_data::messages::OperatorStats;

use super::samples::JobWorkerSample;

#[cfg(test)]
mod tests;

/// Rows that enter each operator for one delivered row; for the source, rows that leave it.
pub(super) fn visits(workers: &[&JobWorkerSample]) -> Vec<f64> {
    let count = workers.first().map_or(0, |worker| worker.operators.len());
    let sum = |place: usize, field: fn(&OperatorStats) -> u64| -> f64 {
        workers.iter().map(|worker| field(&worker.operators[place]) as f64).sum()
    };
    let mut visits = vec![0.0; count];
    // Rows that leave the present operator for one delivered row.
    let mut leaving = 1.0;
    for place in (0..count).rev() {
        let (rows_in, rows_out) = (sum(place, |stats| stats.rows_in), sum(place, |stats| stats.rows_out));
        let name = workers[0].operators[place].name.as_str();
        visits[place] = match name {
            "cache" => leaving,
            // No row has left the operator yet.
            _ if rows_out <= 0.0 => rows_in / sum(count - 1, |stats| stats.rows_out),
            // No row enters a source.
            _ if rows_in <= 0.0 => leaving,
            _ => leaving * rows_in / rows_out,
        };
        leaving = match name {
            // A batch counts all rows of its group, filtered rows included.
            "batch" => 1.0,
            // A cache counts lookups and hits. The operators before it compute the misses.
            "cache" if rows_in > 0.0 => leaving * (1.0 - rows_out / rows_in).max(0.0),
            _ => visits[place],
        };
    }
    visits
}
