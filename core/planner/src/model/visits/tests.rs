//! Visits of operators that have more under way than what was delivered.

use super::*;
use crate::model::job::tests::worker;

fn visited(operators: &[(&str, u64, u64)]) -> Vec<f64> {
    let sample = |&(name, rows_in, rows_out): &(&str, u64, u64)| OperatorSample {
        name: name.to_owned(),
        rows_in,
        rows_out,
        ..OperatorSample::default()
    };
    let worker = JobWorkerSample { operators: operators.iter().map(sample).collect(), ..worker(1, "a", 1.0) };
    visits(&[&worker]).into_iter().map(|visits| (1e3 * visits).round() / 1e3).collect()
}

#[test]
fn rows_under_way_are_no_visits() {
    // Three seconds' rows were read and one second's delivered; the filter keeps half.
    let operators =
        [("source", 0, 3_000), ("burn", 3_000, 3_000), ("filter", 2_000, 1_000), ("batch", 1_000, 500)];
    assert_eq!(visited(&operators), [2.0, 2.0, 2.0, 2.0]);
}

#[test]
fn rows_that_a_cache_has_are_not_made() {
    let operators = [("source", 0, 250), ("burn", 250, 250), ("cache", 1_000, 750), ("batch", 1_000, 1_000)];
    assert_eq!(visited(&operators), [0.25, 0.25, 1.0, 1.0]);
    let all_kept = [("source", 0, 0), ("burn", 0, 0), ("cache", 1_000, 1_000), ("batch", 1_000, 1_000)];
    assert_eq!(visited(&all_kept), [0.0, 0.0, 1.0, 1.0]);
}

#[test]
fn what_has_given_nothing_yet_counts_what_came() {
    assert_eq!(visited(&[("source", 0, 40), ("filter", 40, 0), ("batch", 20, 10)]), [4.0, 4.0, 2.0]);
}
