//! Tests that the rate of a link is measured while the sender is blocked, and determines whether compression pays off.

use super::*;

const MIB: u64 = 1 << 20;

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Writes `bytes` every 10 ms for one second. The link is blocked for `blocked_ms` of each 10 ms.
fn write_for_one_second(meter: &mut LinkMeter, begin: Instant, bytes: u64, blocked_ms: u64) -> Instant {
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
fn only_a_blocked_link_is_measured() {
    let mut meter = LinkMeter::default();
    let now = write_for_one_second(&mut meter, Instant::now(), MIB, 2);
    assert_eq!(meter.rate(now), None, "the computation is the bottleneck");
    let now = write_for_one_second(&mut meter, now, MIB, 9);
    let rate = meter.rate(now).unwrap();
    assert!((0.9..1.2).contains(&(rate / (100 * MIB) as f64)), "{rate}");
    let later = write_for_one_second(&mut meter, now, MIB, 0);
    assert_eq!(meter.rate(later), Some(rate), "compression may have removed the bottleneck");
    assert_eq!(meter.rate(now + RATE_MAX_AGE), None);
}

#[test]
fn compression_pays_off_if_the_codec_is_clearly_faster() {
    let chunk = 512 << 10;
    let mut codec = CodecStats::default();
    assert!(codec.is_worth_trying(50e6));
    assert!(codec.on_packed(chunk, chunk / 2, ms(1), 50e6), "512 MB/s");
    assert!(codec.is_worth_trying(50e6));
    assert!(!codec.on_packed(chunk, chunk / 2, ms(1), 400e6), "the link is nearly as fast as the codec");
    assert!(!codec.is_worth_trying(400e6));
}

#[test]
fn incompressible_chunks_are_rarely_packed() {
    let chunk = 512 << 10;
    let mut codec = CodecStats::default();
    let mut attempts = 0;
    for _ in 0..650 {
        if codec.is_worth_trying(1e6) {
            attempts += 1;
            assert!(!codec.on_packed(chunk, chunk, ms(1), 1e6));
        }
    }
    assert_eq!(attempts, 10);
}

#[test]
fn a_slow_codec_is_measured_again_later() {
    let mut codec = CodecStats::default();
    assert!(codec.is_worth_trying(1e9));
    assert!(!codec.on_packed(1000, 10, ms(1), 1e9));
    let waits = (0..1000).take_while(|_| !codec.is_worth_trying(1e9)).count();
    assert_eq!(waits, 1 + SKIPPED_CHUNKS as usize);
}
