//! Tests of the decision to send a read a second time.

use super::*;

const BYTES: u64 = 1 << 16;

fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Reads that take 10 to 19 ms.
fn with_reads(count: u64) -> Hedging {
    let mut hedging = Hedging::default();
    for read in 0..count {
        hedging.on_answer();
        hedging.on_read(BYTES, millis(10 + read % 10));
    }
    hedging
}

#[test]
fn no_read_is_slow_while_few_reads_are_known() {
    assert_eq!(with_reads(999).slow_after(BYTES), None);
    let hedging = with_reads(1000);
    assert!(hedging.slow_after(BYTES).is_some());
    assert_eq!(hedging.slow_after(4 * BYTES), None, "larger reads are another class");
}

#[test]
fn a_slow_read_takes_longer_than_nearly_all_others_and_than_twice_the_median() {
    let after = with_reads(2000).slow_after(BYTES).expect("enough reads");
    assert!(after >= millis(28) && after <= millis(33), "twice the median: {after:?}");
    let mut hedging = with_reads(2000);
    // 2 % of the reads take 200 ms.
    (0..41).for_each(|_| hedging.on_read(BYTES, millis(200)));
    let after = hedging.slow_after(BYTES).expect("enough reads");
    assert!(after >= millis(200) && after <= millis(220), "{after:?}");
}

#[test]
fn old_reads_are_forgotten() {
    let mut hedging = with_reads(8000);
    (0..40_000).for_each(|_| hedging.on_read(BYTES, millis(1)));
    assert!(hedging.slow_after(BYTES).expect("enough reads") < millis(3));
}

#[test]
fn at_most_one_percent_of_the_requests_are_sent_again() {
    let mut hedging = Hedging::default();
    let mut taken = 0;
    for request in 1..=50_000u32 {
        hedging.on_answer();
        taken += u32::from(hedging.try_take(Duration::ZERO));
        assert!(f64::from(taken) <= 0.01 * f64::from(request) + 1e-6, "{taken} of {request}");
    }
    assert!(taken >= 490, "{taken}");
}

#[test]
fn the_budget_does_not_grow_without_a_bound() {
    let mut hedging = with_reads(100_000);
    let taken = (0..100).filter(|_| hedging.try_take(Duration::ZERO)).count();
    assert!((7..=8).contains(&taken), "{taken}");
}

#[test]
fn no_read_is_sent_again_within_ten_seconds_of_a_rejection() {
    let mut hedging = with_reads(10_000);
    hedging.on_rejection(millis(5_000));
    assert!(!hedging.try_take(millis(5_000)) && !hedging.try_take(millis(14_999)));
    assert!(hedging.try_take(millis(15_000)));
}
