//! Jobs with a cache on some workers only.

use super::*;
use crate::model::JobModel;
use crate::model::job::tests::{observation, worker};

/// A worker whose cache after `decode` has this share of the rows.
fn with_cache(id: u64, found_share: f64) -> JobWorkerSample {
    let mut sample = worker(id, "slow", 1.0);
    let rows_in = sample.operators[0].rows_out;
    let rows_out = (rows_in as f64 * found_share) as u64;
    for operator in &mut sample.operators[..3] {
        for count in
            [&mut operator.rows_in, &mut operator.rows_out, &mut operator.bytes_out, &mut operator.cpu_ns]
        {
            *count -= (*count as f64 * found_share) as u64;
        }
    }
    let cache = OperatorStats { name: "cache".into(), rows_in, rows_out, ..OperatorStats::default() };
    sample.operators.insert(3, cache);
    sample
}

#[test]
fn a_worker_without_a_cache_counts_in_any_order_of_workers() {
    let (with, without) = (with_cache(1, 0.5), worker(2, "slow", 1.0));
    for order in [[with.clone(), without.clone()], [without, with]] {
        let model = JobModel::build(&observation(order.to_vec())).expect("rows were delivered");
        let names: Vec<&str> = model.operators.iter().map(|operator| operator.name.as_str()).collect();
        assert_eq!(names, ["source", "filter", "decode", "cache", "flip"]);
        assert!((model.rows_per_s - 2_000.0).abs() < 1.0, "{}", model.rows_per_s);
        // One worker finds half of its rows, the other none: three of four rows were decoded.
        assert!((model.operators[2].visit_ratio - 0.75).abs() < 1e-3, "{:?}", model.operators[2]);
    }
}

#[test]
fn samples_with_equal_operators_are_borrowed() {
    let equal = [worker(1, "slow", 1.0), worker(2, "slow", 1.0)];
    let aligned = align(&equal, &longest_operator_list(&equal));
    assert!(aligned.iter().all(|sample| matches!(sample, Cow::Borrowed(_))));
    assert!(longest_operator_list(&[]).is_empty() && align(&[], &[]).is_empty());
}
