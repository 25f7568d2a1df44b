//! The decision whether to pack chunks with LZ4 on a connection. Packing pays if the link is the bottleneck and much slower
//! than the codec, and if the bytes shrink. The sender measures all three.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval of one measurement of a link.
const MEASUREMENT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum age of a measured rate. If compression removes the bottleneck, no new measurement follows.
const RATE_MAX_AGE: Duration = Duration::from_secs(5);
/// Ratio of the rates of codec and link above which packing pays. The codec takes CPU time from the computation of batches.
const MIN_CODEC_SPEEDUP: f64 = 2.0;
/// Ratio of packed to original size up to which packing pays.
const MAX_PACKED_RATIO: f64 = 0.9;
/// Chunks that are sent without packing after a chunk for which packing did not pay.
const SKIPPED_CHUNKS: u32 = 64;

/// The measurements of one connection. Clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionLink(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    meter: LinkMeter,
    codec: CodecStats,
}

impl ConnectionLink {
    /// The connection accepted `bytes`.
    pub(super) fn on_written(&self, bytes: usize) {
        self.lock().meter.on_written(bytes as u64, Instant::now());
    }

    /// The connection accepts no bytes at the moment.
    pub(super) fn on_blocked(&self) {
        self.lock().meter.on_blocked(Instant::now());
    }

    /// Returns the packed bytes, or `None` if packing does not pay.
    pub(super) fn pack(&self, data: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let link_rate = state.meter.rate(Instant::now())?;
        if !state.codec.is_worth_trying(link_rate) {
            return None;
        }
        drop(state);
        let begun = Instant::now();
        let packed = lz4_flex::block::compress(data);
        let took = begun.elapsed();
        let pays = self.lock().codec.on_packed(data.len(), packed.len(), took, link_rate);
        pays.then_some(packed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the rate of a link in intervals in which the sender was blocked at least half of the time.
#[derive(Debug, Default)]
struct LinkMeter {
    begun: Option<Instant>,
    bytes: u64,
    blocked: Duration,
    blocked_since: Option<Instant>,
    /// The last rate and the time of its measurement.
    measured: Option<(f64, Instant)>,
}

impl LinkMeter {
    fn on_written(&mut self, bytes: u64, now: Instant) {
        if let Some(since) = self.blocked_since.take() {
            self.blocked += now - since;
        }
        let begun = *self.begun.get_or_insert(now);
        self.bytes += bytes;
        let elapsed = now - begun;
        if elapsed < MEASUREMENT_INTERVAL {
            return;
        }
        if self.blocked * 2 >= elapsed {
            self.measured = Some((self.bytes as f64 / elapsed.as_secs_f64(), now));
        }
        *self = Self { measured: self.measured, ..Self::default() };
    }

    fn on_blocked(&mut self, now: Instant) {
        self.begun.get_or_insert(now);
        self.blocked_since.get_or_insert(now);
    }

    /// Bytes per second; `None` if the link has not been the bottleneck recently.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.measured.filter(|(_, at)| now - *at < RATE_MAX_AGE).map(|(rate, _)| rate)
    }
}

/// Measured rate of the codec, and chunks to skip.
#[derive(Debug, Default)]
struct CodecStats {
    /// Input bytes per second; `None` before the first chunk.
    rate: Option<f64>,
    /// Chunks to send without packing.
    skipped: u32,
}

impl CodecStats {
    fn is_worth_trying(&mut self, link_rate: f64) -> bool {
        if self.skipped > 0 {
            self.skipped -= 1;
            return false;
        }
        let fast = self.rate.is_none_or(|rate| rate >= MIN_CODEC_SPEEDUP * link_rate);
        if !fast {
            // A later chunk measures the codec again, because the processor may have been busy.
            self.skipped = SKIPPED_CHUNKS;
            self.rate = None;
        }
        fast
    }

    /// Records a packed chunk. Returns whether packing paid.
    fn on_packed(&mut self, from: usize, to: usize, took: Duration, link_rate: f64) -> bool {
        let rate = from as f64 / took.as_secs_f64().max(1e-9);
        let rate = self.rate.map_or(rate, |known| known * 0.75 + rate * 0.25);
        self.rate = Some(rate);
        let shrinks = to as f64 <= MAX_PACKED_RATIO * from as f64;
        if !shrinks {
            self.skipped = SKIPPED_CHUNKS;
        }
        shrinks && rate >= MIN_CODEC_SPEEDUP * link_rate
    }
}

#[cfg(test)]
mod tests;
