//! Rates are measured where the link is what everything waits for, and packing pays or not.

use super::*;

const MIB: u64 = 1 << 20;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Writes `bytes` every 10 ms for a second, of which the link is blocked for `blocked_ms`.
fn second(meter: &mut Meter, begin: Instant, bytes: u64, blocked_ms: u64) -> Instant {
    let mut now = begin;
    for _ in 0..100 {
        now += ms(10 - blocked_ms);
        if blocked_ms > 0 {
            meter.on_blocked(now);
            now += ms(blocked_ms);
        }
        meter.on_written(bytes, now);
    }
    now
}

#[test]
fn only_a_link_that_is_waited_for_is_measured() {
    let mut meter = Meter::default();
    let now = second(&mut meter, Instant::now(), MIB, 2);
    assert_eq!(meter.rate(now), None, "whoever computes is slower");
    let now = second(&mut meter, now, MIB, 9);
    let rate = meter.rate(now).unwrap();
    assert!((0.9..1.2).contains(&(rate / (100 * MIB) as f64)), "{rate}");
    let later = second(&mut meter, now, MIB, 0);
    assert_eq!(meter.rate(later), Some(rate), "packing may be what relieved it");
    assert_eq!(meter.rate(now + MEMORY), None);
}

#[test]
fn packing_pays_where_the_codec_is_clearly_faster() {
    let chunk = 512 << 10;
    let mut codec = Codec::default();
    assert!(codec.is_worth_trying(50e6));
    assert!(codec.on_packed(chunk, chunk / 2, ms(1), 50e6), "512 MB/s");
    assert!(codec.is_worth_trying(50e6));
    assert!(!codec.on_packed(chunk, chunk / 2, ms(1), 400e6), "the link is nearly as fast");
    assert!(!codec.is_worth_trying(400e6));
}

#[test]
fn what_does_not_shrink_is_rarely_tried() {
    let chunk = 512 << 10;
    let mut codec = Codec::default();
    let mut tried = 0;
    for _ in 0..650 {
        if codec.is_worth_trying(1e6) {
            tried += 1;
            assert!(!codec.on_packed(chunk, chunk, ms(1), 1e6));
        }
    }
    assert_eq!(tried, 10);
}

#[test]
fn a_slow_codec_is_measured_anew() {
    let mut codec = Codec::default();
    assert!(codec.is_worth_trying(1e9));
    assert!(!codec.on_packed(1000, 10, ms(1), 1e9));
    let waits = (0..1000).take_while(|_| !codec.is_worth_trying(1e9)).count();
    assert_eq!(waits, 1 + CHUNKS_UNTRIED as usize);
}
