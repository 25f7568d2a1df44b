//! Fits to known functions.

use feedline_data::random::RowRandom;

use super::*;

fn seen(law: impl Fn(f64) -> f64, at: &[f64]) -> Vec<BandwidthObservation> {
    at.iter().map(|c| BandwidthObservation { concurrency: *c, bytes_per_s: law(*c) }).collect()
}

#[test]
fn one_observation_determines_the_slope_and_no_limit() {
    let law = Bandwidth::fit(&seen(|c| 1e6 * c, &[4.0]));
    assert_eq!((law, law.cap()), (Bandwidth::Linear { slope: 1e6 }, None));
    assert_eq!(Bandwidth::fit(&[]), Bandwidth::Unknown);
    assert!(Bandwidth::Unknown.bytes_per_s_at(3.0).is_infinite());
}

#[test]
fn a_roofline_is_fitted_with_its_knee() {
    let law = Bandwidth::fit(&seen(|c| (1e6 * c).min(5e6), &[1.0, 2.0, 4.0, 8.0, 16.0]));
    let Bandwidth::Roofline { slope, cap } = law else { panic!("{law:?}") };
    assert!((slope / 1e6 - 1.0).abs() < 0.01 && (cap / 5e6 - 1.0).abs() < 0.01, "{law:?}");
    assert!(law.is_saturated(8.0) && !law.is_saturated(2.0));
    assert!(
        law.concurrency_for(4e6).is_some_and(|c| (c - 4.0).abs() < 0.1) && law.concurrency_for(6e6).is_none()
    );
}

#[test]
fn a_hyperbola_is_fitted_to_noisy_observations() {
    let mut random = RowRandom::new(3, 0, 0, 0);
    let at: Vec<f64> = (0..40).map(|step| 1.0 + f64::from(step)).collect();
    let mut observations = seen(|c| 1e8 * c / (c + 6.0), &at);
    for seen in &mut observations {
        seen.bytes_per_s *= random.uniform(0.97, 1.03);
    }
    let law = Bandwidth::fit(&observations);
    let Bandwidth::Hyperbola { cap, half_concurrency } = law else { panic!("{law:?}") };
    assert!((cap / 1e8 - 1.0).abs() < 0.05 && (half_concurrency / 6.0 - 1.0).abs() < 0.15, "{law:?}");
}

#[test]
fn noise_does_not_add_a_limit_to_a_straight_line() {
    let mut random = RowRandom::new(4, 0, 0, 0);
    let mut observations = seen(|c| 2e6 * c, &[1.0, 2.0, 3.0, 5.0, 8.0]);
    for seen in &mut observations {
        seen.bytes_per_s *= random.uniform(0.98, 1.02);
    }
    let law = Bandwidth::fit(&observations);
    assert!(matches!(law, Bandwidth::Linear { slope } if (slope / 2e6 - 1.0).abs() < 0.03), "{law:?}");
}

#[test]
fn seconds_per_byte_do_not_grow_with_the_queue_of_a_saturated_store() {
    let busy = |seen: &[BandwidthObservation]| Bandwidth::fit(seen).seconds_per_byte();
    let at = |concurrency, bytes_per_s| BandwidthObservation { concurrency, bytes_per_s };
    assert_eq!(busy(&[]), None);
    assert_eq!(busy(&[at(8.0, 2e6)]), Some(4e-6));
    let full = busy(&[at(4.0, 2e6), at(8.0, 2e6), at(64.0, 2e6)]).expect("bytes were read");
    assert!(full < 2.1e-6, "{full}: the time with 4 requests in flight, not with 64");
    assert_eq!(Bandwidth::Hyperbola { cap: 1e6, half_concurrency: 5.0 }.seconds_per_byte(), Some(2e-5));
}

#[test]
fn a_changed_store_differs_from_a_noisy_one() {
    let at = |concurrency, bytes_per_s| BandwidthObservation { concurrency, bytes_per_s };
    assert!(at(16.0, 1e6).contradicts(&at(15.0, 1e7)) && at(16.0, 1e7).contradicts(&at(15.0, 1e6)));
    assert!(!at(16.0, 6e6).contradicts(&at(15.0, 1e7)), "the same store, a little slower");
    assert!(!at(64.0, 1e6).contradicts(&at(15.0, 1e7)), "another number of requests");
}

#[test]
fn unfinished_reads_do_not_reduce_the_bandwidth() {
    let at = |concurrency, bytes_per_s| BandwidthObservation { concurrency, bytes_per_s };
    let law = Bandwidth::fit(&[at(16.0, 5.2e6), at(15.0, 5.0e6), at(120.0, 2.5e6)]);
    assert_eq!(law.cap(), Some(5.1e6), "{law:?}");
    assert!(law.is_saturated(16.0));
}
