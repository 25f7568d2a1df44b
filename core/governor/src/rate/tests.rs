//! Tests of the control law of the request rate.

use super::*;

fn interval(accepted: f64, rejected: f64) -> RateInterval {
    RateInterval { seconds: 1.0, accepted, rejected, paused: 0.0, is_backlogged: true }
}

/// Sends at the limit to a store that accepts `allowed` requests per second.
fn run(law: &mut RateLaw, allowed: f64, seconds: usize) -> Vec<f64> {
    let second = |_| {
        let sent = law.limit().unwrap_or(10.0 * allowed);
        law.on_interval(&interval(sent.min(allowed), (sent - allowed).max(0.0)));
        law.limit().unwrap_or(f64::INFINITY)
    };
    (0..seconds).map(second).collect()
}

#[test]
fn there_is_no_limit_without_rejections() {
    let mut law = RateLaw::default();
    for _ in 0..100 {
        law.on_interval(&interval(1e6, 0.0));
    }
    assert_eq!(law.limit(), None);
}

#[test]
fn the_limit_approaches_the_allowed_rate_and_follows_it() {
    let mut law = RateLaw::default();
    let limits = run(&mut law, 300.0, 30);
    assert!(limits[5..].iter().all(|limit| (270.0..320.0).contains(limit)), "{limits:?}");
    let halved = run(&mut law, 150.0, 20);
    assert!(halved[5..].iter().all(|limit| (135.0..165.0).contains(limit)), "{halved:?}");
    let raised = run(&mut law, 600.0, 120);
    assert!(raised[100..].iter().all(|limit| (530.0..700.0).contains(limit)), "{raised:?}");
}

#[test]
fn an_unused_limit_does_not_grow() {
    let mut law = RateLaw::with_limit(100.0);
    for _ in 0..100 {
        law.on_interval(&RateInterval { is_backlogged: false, ..interval(60.0, 0.0) });
    }
    assert_eq!(law.limit().map(f64::round), Some(100.0));
}

#[test]
fn a_limit_that_is_not_needed_for_long_is_removed() {
    let mut law = RateLaw::with_limit(100.0);
    for _ in 0..700 {
        law.on_interval(&RateInterval { is_backlogged: false, ..interval(1.0, 0.0) });
    }
    assert_eq!(law.limit(), None);
}

#[test]
fn limits_are_finite_and_positive_for_any_observations() {
    let mut law = RateLaw::default();
    let values = [0.0, 1.0, 1e-9, 1e12];
    for round in 0..4000usize {
        let pick = |step: usize| values[(round / step + round) % values.len()];
        law.on_interval(&RateInterval {
            seconds: [0.0, 0.01, 1.0, 100.0][round % 4],
            accepted: pick(3),
            rejected: pick(5),
            paused: [0.0, 0.5, 1.0, 7.0][(round / 7) % 4],
            is_backlogged: round % 3 == 0,
        });
        assert!(law.limit().is_none_or(|limit| limit.is_finite() && limit >= MIN_RATE), "{law:?}");
    }
}
