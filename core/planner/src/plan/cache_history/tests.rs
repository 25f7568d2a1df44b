//! Cache decisions of running jobs.

use feedline_data::messages::TierCapacity;
use feedline_data::messages::samples::Samples;
use feedline_data::pipeline::{CacheEncoding, CacheTier};

use super::*;

use crate::observe::tests::{JOB, samples};

use crate::plan::NoDeadline;

/// A worker with disk capacity for all rows.
fn on_disk(seconds: u64, jobs: &[JobId]) -> Samples {
    let mut samples = samples(seconds, jobs);
    samples.workers[0].caches =
        vec![TierCapacity { tier: CacheTier::Disk, capacity_bytes: 10_000_000_000, used_bytes: 0 }];
    samples
}

fn decide(
    history: &mut CacheHistory,
    observer: &Observer,
    second: u64,
) -> BTreeMap<JobId, Option<CacheDecision>> {
    history.decide(second * 1_000, observer, PlannerSettings::default(), &NoDeadline)
}

/// The cache decision of the job in each second of these samples.
fn decisions(samples: impl Fn(u64) -> Samples) -> Vec<Option<CacheDecision>> {
    let (mut history, mut observer) = (CacheHistory::default(), Observer::default());
    let decision = |second| {
        observer.push(second * 1_000, &samples(second));
        decide(&mut history, &observer, second).get(&JOB).copied().flatten()
    };
    (1..=8).map(decision).collect()
}

/// The initial decision, before the costs of the job are known.
const INITIAL: Option<CacheDecision> =
    Some(CacheDecision { operators_before: 1, tier: CacheTier::Memory, encoding: CacheEncoding::AsIs });

#[test]
fn the_output_of_a_costly_operator_is_cached_once_costs_are_settled() {
    let cached =
        Some(CacheDecision { operators_before: 1, tier: CacheTier::Disk, encoding: CacheEncoding::AsIs });
    let expected = [INITIAL, INITIAL, cached, cached, cached, cached, cached, cached];
    assert_eq!(decisions(|second| on_disk(second, &[JOB])), expected);
}

#[test]
fn no_rows_are_cached_without_capacity_or_another_pass() {
    let expected = [INITIAL, INITIAL, None, None, None, None, None, None];
    assert_eq!(decisions(|second| samples(second, &[JOB])), expected, "a third of the memory is too small");
    let last_pass = |second| {
        let mut samples = on_disk(second, &[JOB]);
        samples.jobs[0].passes_left = 0.9;
        samples
    };
    assert_eq!(decisions(last_pass), [None; 8]);
}

#[test]
fn a_decision_lasts_while_costs_fall_and_ends_with_the_job() {
    let (mut history, mut observer) = (CacheHistory::default(), Observer::default());
    for second in 1..=4 {
        observer.push(second * 1_000, &on_disk(second, &[JOB]));
    }
    let first = decide(&mut history, &observer, 4);
    assert!(first[&JOB].is_some());
    for second in 5..=20 {
        // All rows are in the cache, so `burn` uses no CPU time any more.
        let mut samples = on_disk(second, &[JOB]);
        let mut stats = (*samples.workers[0].jobs[0]).clone();
        stats.operators[1] = on_disk(4, &[JOB]).workers[0].jobs[0].operators[1].clone();
        let found = feedline_data::messages::OperatorStats {
            name: "cache".to_owned(),
            rows_in: 1_000 * (second - 4),
            rows_out: 1_000 * (second - 4),
            ..Default::default()
        };
        stats.operators.insert(2, found);
        samples.workers[0].jobs[0] = std::sync::Arc::new(stats);
        observer.push(second * 1_000, &samples);
        assert_eq!(decide(&mut history, &observer, second), first, "at {second} s");
    }
    observer.push(21_000, &on_disk(21, &[]));
    assert_eq!(decide(&mut history, &observer, 21), BTreeMap::new());
}

#[test]
fn a_second_job_with_the_same_prefix_reads_the_cache_of_the_first() {
    let (mut history, mut observer) = (CacheHistory::default(), Observer::default());
    let other = JobId(8);
    let mut decisions = BTreeMap::new();
    for second in 1..=12 {
        let jobs = if second < 6 { vec![JOB] } else { vec![JOB, other] };
        let mut samples = on_disk(second, &jobs);
        // The disk has the capacity for one copy only.
        samples.workers[0].caches[0].capacity_bytes = 1_100_000_000;
        observer.push(second * 1_000, &samples);
        decisions = decide(&mut history, &observer, second);
    }
    assert_eq!(decisions.get(&JOB), decisions.get(&other));
    assert!(decisions[&other].is_some(), "{decisions:?}");
}

#[test]
fn a_job_with_all_rows_cached_keeps_its_decision() {
    let found = |second| {
        let mut samples = on_disk(second, &[JOB]);
        let mut stats = (*samples.workers[0].jobs[0]).clone();
        for made in &mut stats.operators[..2] {
            (made.rows_in, made.rows_out, made.bytes_out, made.cpu_ns, made.busy_ns) = (0, 0, 0, 0, 0);
        }
        let cache = feedline_data::messages::OperatorStats {
            name: "cache".to_owned(),
            rows_in: 1_000 * second,
            rows_out: 1_000 * second,
            ..Default::default()
        };
        stats.operators.insert(2, cache);
        samples.workers[0].jobs[0] = std::sync::Arc::new(stats);
        samples.jobs[0].passes_left = 3.0 - second as f64 / 2.0;
        samples
    };
    assert_eq!(decisions(found), [INITIAL; 8], "its costs are unknown until the last pass");
}
