//! What is kept of running jobs, and that it stays.

use feedline_data::messages::TierCapacity;
use feedline_data::messages::samples::Samples;
use feedline_data::pipeline::{CacheEncoding, CacheTier};

use super::*;

use crate::observe::tests::{JOB, samples};

use crate::plan::NoDeadline;

/// A worker with room for all rows on its disk.
fn on_disk(seconds: u64, jobs: &[JobId]) -> Samples {
    let mut samples = samples(seconds, jobs);
    samples.workers[0].caches =
        vec![TierCapacity { tier: CacheTier::Disk, room_bytes: 10_000_000_000, held_bytes: 0 }];
    samples
}

fn decide(
    keeping: &mut CacheHistory,
    observer: &Observer,
    second: u64,
) -> BTreeMap<JobId, Option<CacheDecision>> {
    keeping.decide(second * 1_000, observer, PlannerSettings::default(), &NoDeadline)
}

/// What is decided in each second of a job of which `samples` tells.
fn decisions(samples: impl Fn(u64) -> Samples) -> Vec<Option<CacheDecision>> {
    let (mut keeping, mut observer) = (CacheHistory::default(), Observer::default());
    let decision = |second| {
        observer.push(second * 1_000, &samples(second));
        decide(&mut keeping, &observer, second).get(&JOB).copied().flatten()
    };
    (1..=8).map(decision).collect()
}

/// What is kept as long as nothing is known.
const FIRST: Option<CacheDecision> =
    Some(CacheDecision { after: 1, tier: CacheTier::Memory, form: CacheEncoding::AsIs });

#[test]
fn what_burns_before_the_crop_is_kept_once_its_costs_are_known() {
    let keep = Some(CacheDecision { after: 1, tier: CacheTier::Disk, form: CacheEncoding::AsIs });
    let expected = [FIRST, FIRST, keep, keep, keep, keep, keep, keep];
    assert_eq!(decisions(|second| on_disk(second, &[JOB])), expected);
}

#[test]
fn nothing_is_kept_without_room_or_another_pass() {
    let expected = [FIRST, FIRST, None, None, None, None, None, None];
    assert_eq!(decisions(|second| samples(second, &[JOB])), expected, "memory is for a third of it");
    let last_pass = |second| {
        let mut samples = on_disk(second, &[JOB]);
        samples.jobs[0].passes_left = 0.9;
        samples
    };
    assert_eq!(decisions(last_pass), [None; 8]);
}

#[test]
fn what_is_decided_stays_when_costs_fall_and_ends_with_the_job() {
    let (mut keeping, mut observer) = (CacheHistory::default(), Observer::default());
    for second in 1..=4 {
        observer.push(second * 1_000, &on_disk(second, &[JOB]));
    }
    let first = decide(&mut keeping, &observer, 4);
    assert!(first[&JOB].is_some());
    for second in 5..=20 {
        // All rows are found, so that nothing burns any more.
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
        assert_eq!(decide(&mut keeping, &observer, second), first, "at {second} s");
    }
    observer.push(21_000, &on_disk(21, &[]));
    assert_eq!(decide(&mut keeping, &observer, 21), BTreeMap::new());
}

#[test]
fn a_second_job_with_the_same_prefix_reads_what_the_first_keeps() {
    let (mut keeping, mut observer) = (CacheHistory::default(), Observer::default());
    let other = JobId(8);
    let mut keeps = BTreeMap::new();
    for second in 1..=12 {
        let jobs = if second < 6 { vec![JOB] } else { vec![JOB, other] };
        let mut samples = on_disk(second, &jobs);
        // Room for one copy only.
        samples.workers[0].caches[0].room_bytes = 1_100_000_000;
        observer.push(second * 1_000, &samples);
        keeps = decide(&mut keeping, &observer, second);
    }
    assert_eq!(keeps.get(&JOB), keeps.get(&other));
    assert!(keeps[&other].is_some(), "{keeps:?}");
}

#[test]
fn a_job_that_finds_all_its_rows_goes_on_finding_them() {
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
    assert_eq!(decisions(found), [FIRST; 8], "its costs are not known, and to the last pass");
}
