//! Counts of latencies, and the latency of requests without a queue.

use std::collections::BTreeMap;
use std::time::Duration;

/// Latencies are counted in ranges that grow by the eighth root of 2, from 1 µs to over an hour.
const RANGES_PER_OCTAVE: f64 = 8.0;
const RANGES: usize = 256;
/// Requests after which the base of a size class is determined again.
const BASE_REQUESTS: u32 = 256;
/// The fraction of these requests that may be faster than the base, such as those that a cache of the store answers.
const BASE_QUANTILE: f64 = 0.05;
/// The first requests of a size class, whose median is the usual latency.
const USUAL_REQUESTS: u32 = 64;

/// Requests of one class have similar sizes: the number of bits of the number of bytes.
pub(crate) fn size_class(bytes: u64) -> u32 {
    u64::BITS - bytes.leading_zeros()
}

/// Counts of latencies.
#[derive(Debug)]
pub(crate) struct LatencyCounts {
    counts: Box<[u32; RANGES]>,
    total: u32,
}

impl Default for LatencyCounts {
    fn default() -> Self {
        Self { counts: Box::new([0; RANGES]), total: 0 }
    }
}

impl LatencyCounts {
    pub(crate) fn add(&mut self, latency: Duration) {
        let micros = latency.as_micros().max(1) as f64;
        let range = (RANGES_PER_OCTAVE * micros.log2()) as usize;
        self.counts[range.min(RANGES - 1)] += 1;
        self.total += 1;
    }

    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    /// Halves all counts.
    pub(crate) fn halve(&mut self) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.total = self.counts.iter().sum();
    }

    /// The upper end of the range that contains the quantile.
    pub(crate) fn quantile(&self, fraction: f64) -> Duration {
        let wanted = fraction * f64::from(self.total);
        let mut below = 0.0;
        for (range, count) in self.counts.iter().enumerate() {
            below += f64::from(*count);
            if below >= wanted {
                return Duration::from_secs_f64(1e-6 * ((range + 1) as f64 / RANGES_PER_OCTAVE).exp2());
            }
        }
        Duration::MAX
    }
}

/// The latencies of the requests of a worker to one store, by [`size_class`].
#[derive(Debug, Default)]
pub(crate) struct BaseLatencies {
    classes: BTreeMap<u32, BaseLatency>,
}

#[derive(Debug, Default)]
struct BaseLatency {
    counts: LatencyCounts,
    /// The lowest quantile of several requests; `None` before.
    lowest: Option<Duration>,
    usual: Option<Duration>,
}

/// The expected latencies of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpectedLatency {
    /// The latency without a queue.
    pub(crate) base: Duration,
    /// The usual latency of the first requests.
    pub(crate) usual: Duration,
}

impl BaseLatencies {
    /// Adds a request. A queue in the store never raises the base, and rare fast responses do not lower it.
    pub(crate) fn add(&mut self, bytes: u64, latency: Duration) -> ExpectedLatency {
        let class = self.classes.entry(size_class(bytes)).or_default();
        class.counts.add(latency);
        let usual = class.usual.unwrap_or_else(|| class.counts.quantile(0.5));
        if class.counts.total() >= USUAL_REQUESTS {
            class.usual.get_or_insert(usual);
        }
        let quantile = class.counts.quantile(BASE_QUANTILE);
        let base = class.lowest.unwrap_or(quantile);
        if class.counts.total() >= BASE_REQUESTS {
            class.lowest = Some(base.min(quantile));
            class.counts = LatencyCounts::default();
        }
        ExpectedLatency { base: base.min(latency), usual }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// The difference is at most one range.
    fn is_about(latency: Duration, expected: Duration) -> bool {
        latency >= expected.mul_f64(0.999) && latency <= expected.mul_f64(1.1)
    }

    #[test]
    fn a_queue_does_not_raise_the_base() {
        let mut latencies = BaseLatencies::default();
        for _ in 0..300 {
            latencies.add(1000, millis(20));
        }
        let last = (0..10_000).map(|_| latencies.add(1000, millis(500))).last().expect("some");
        assert!(is_about(last.base, millis(20)) && is_about(last.usual, millis(20)), "{last:?}");
        let other = latencies.add(1 << 20, millis(500));
        assert_eq!(other.base, millis(500), "larger requests are another class");
    }

    #[test]
    fn rare_fast_responses_do_not_lower_the_base() {
        let mut latencies = BaseLatencies::default();
        let latency = |request: u64| millis(if request.is_multiple_of(100) { 1 } else { 80 });
        let last = (0..5_000).map(|request| latencies.add(1000, latency(request))).last().expect("some");
        assert!(is_about(last.base, millis(80)), "{last:?}");
    }

    #[test]
    fn a_store_that_becomes_faster_has_a_lower_base() {
        let mut latencies = BaseLatencies::default();
        for _ in 0..300 {
            latencies.add(1000, millis(80));
        }
        let last = (0..600).map(|_| latencies.add(1000, millis(20))).last().expect("some");
        assert!(is_about(last.base, millis(20)), "{last:?}");
    }
}
