//! Workers that keep and workers that do not.

use super::*;
use crate::model::job::tests::worker;
use crate::model::{JobModel, JobObservation};

/// A worker that finds a part of its rows behind `decode`, as the engine counts: looked for, and found.
fn keeping(id: u64, found_share: f64) -> JobWorkerSample {
    let mut sample = worker(id, "slow", 1.0);
    let looked_for = sample.operators[0].rows_out;
    let found = (looked_for as f64 * found_share) as u64;
    for operator in &mut sample.operators[..3] {
        for count in
            [&mut operator.rows_in, &mut operator.rows_out, &mut operator.bytes_out, &mut operator.cpu_ns]
        {
            *count -= (*count as f64 * found_share) as u64;
        }
    }
    let cache = OperatorSample {
        name: "cache".into(),
        rows_in: looked_for,
        rows_out: found,
        ..OperatorSample::default()
    };
    sample.operators.insert(3, cache);
    sample
}

fn model(recent: Vec<JobWorkerSample>) -> JobModel {
    JobModel::build(&JobObservation { recent, ..JobObservation::default() }).expect("rows were delivered")
}

#[test]
fn a_worker_that_keeps_nothing_counts_in_full_whoever_comes_first() {
    let (keeps, does_not) = (keeping(1, 0.5), worker(2, "slow", 1.0));
    for order in [[keeps.clone(), does_not.clone()], [does_not, keeps]] {
        let model = model(order.to_vec());
        let names: Vec<&str> = model.operators.iter().map(|operator| operator.name.as_str()).collect();
        assert_eq!(names, ["source", "filter", "decode", "cache", "flip"]);
        assert!((model.rows_per_s - 2_000.0).abs() < 1.0, "{}", model.rows_per_s);
        // Half of one's rows were found, none of the other's: three of four were decoded.
        assert!((model.operators[2].visit_ratio - 0.75).abs() < 1e-3, "{:?}", model.operators[2]);
    }
}

#[test]
fn workers_alike_are_not_copied() {
    let alike = [worker(1, "slow", 1.0), worker(2, "slow", 1.0)];
    assert!(aligned(&alike, &names(&alike)).iter().all(|sample| matches!(sample, Cow::Borrowed(_))));
    assert!(names(&[]).is_empty() && aligned(&[], &[]).is_empty());
}
