//! Visit ratios: the number of rows that enter each operator per delivered row (forced flow law of operational analysis).
//!
//! The obvious quotient (rows that entered an operator divided by rows delivered in the same period) is wrong while
//! rows are in flight, because the first operators process rows that are delivered seconds later. The ratio of an
//! operator's input to its own output does not have this error. The visit ratios are therefore computed from these
//! input-output ratios, from the last operator to the first.

use feedline_data::messages::OperatorStats;

use super::samples::JobWorkerSample;

#[cfg(test)]
mod tests;

/// Returns the number of input rows of each operator per delivered row. The source has no input, so its output rows are
/// counted.
pub(super) fn visit_ratios(workers: &[&JobWorkerSample]) -> Vec<f64> {
    let count = workers.first().map_or(0, |worker| worker.operators.len());
    let sum = |place: usize, field: fn(&OperatorStats) -> u64| -> f64 {
        workers.iter().map(|worker| field(&worker.operators[place]) as f64).sum()
    };
    let mut visits = vec![0.0; count];
    // Output rows of the current operator per delivered row.
    let mut leaving = 1.0;
    for place in (0..count).rev() {
        let (rows_in, rows_out) = (sum(place, |stats| stats.rows_in), sum(place, |stats| stats.rows_out));
        let name = workers[0].operators[place].name.as_str();
        visits[place] = match name {
            "cache" => leaving,
            // The operator has no output rows yet.
            _ if rows_out <= 0.0 => rows_in / sum(count - 1, |stats| stats.rows_out),
            // A source has no input rows.
            _ if rows_in <= 0.0 => leaving,
            _ => leaving * rows_in / rows_out,
        };
        leaving = match name {
            // The batch operator counts all rows of its group, including filtered rows.
            "batch" => 1.0,
            // A cache counts lookups as input rows and hits as output rows. The operators before the cache compute the
            // misses.
            "cache" if rows_in > 0.0 => leaving * (1.0 - rows_out / rows_in).max(0.0),
            _ => visits[place],
        };
    }
    visits
}
