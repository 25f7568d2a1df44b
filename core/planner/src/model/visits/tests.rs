//! Visits of operators with rows in flight.

use super::*;
use crate::model::job::tests::worker;

fn visited(operators: &[(&str, u64, u64)]) -> Vec<f64> {
    let stats = |&(name, rows_in, rows_out): &(&str, u64, u64)| OperatorStats {
        name: name.to_owned(),
        rows_in,
        rows_out,
        ..OperatorStats::default()
    };
    let worker = JobWorkerSample { operators: operators.iter().map(stats).collect(), ..worker(1, "a", 1.0) };
    visit_ratios(&[&worker]).into_iter().map(|visits| (1e3 * visits).round() / 1e3).collect()
}

#[test]
fn rows_in_flight_do_not_count_as_visits() {
    // The source read the rows of 3 s and 1 s of rows was delivered; the filter passes half of the rows.
    let operators =
        [("source", 0, 3_000), ("burn", 3_000, 3_000), ("filter", 2_000, 1_000), ("batch", 1_000, 500)];
    assert_eq!(visited(&operators), [2.0, 2.0, 2.0, 2.0]);
}

#[test]
fn operators_before_a_cache_compute_only_misses() {
    let operators = [("source", 0, 250), ("burn", 250, 250), ("cache", 1_000, 750), ("batch", 1_000, 1_000)];
    assert_eq!(visited(&operators), [0.25, 0.25, 1.0, 1.0]);
    let all_cached = [("source", 0, 0), ("burn", 0, 0), ("cache", 1_000, 1_000), ("batch", 1_000, 1_000)];
    assert_eq!(visited(&all_cached), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn an_operator_without_output_counts_its_input() {
    assert_eq!(visited(&[("source", 0, 40), ("filter", 40, 0), ("batch", 20, 10)]), [4.0, 4.0, 2.0]);
}
