//! Decides whether to compress chunks with LZ4 on a connection. Compression pays off if the link is the bottleneck, if the
//! link is much slower than the codec, and if compression reduces the size. The sender measures all three.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Duration of one measurement of a link.
const MEASUREMENT_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum age of a measured rate. Compression can remove the bottleneck, after which the rate is no longer measured.
const RATE_MAX_AGE: Duration = Duration::from_secs(5);
/// Minimum ratio of codec rate to link rate at which compression pays off. The codec takes CPU time from the computation of
/// batches.
const MIN_CODEC_SPEEDUP: f64 = 2.0;
/// Maximum ratio of compressed size to original size at which compression pays off.
const MAX_PACKED_RATIO: f64 = 0.9;
/// Number of chunks that are sent uncompressed after a chunk for which compression did not pay off.
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
    /// Records that the connection accepted `bytes` bytes.
    pub(super) fn on_written(&self, bytes: usize) {
        self.lock().meter.on_written(bytes as u64, Instant::now());
    }

    /// Records that the connection currently accepts no bytes.
    pub(super) fn on_blocked(&self) {
        self.lock().meter.on_blocked(Instant::now());
    }

    /// Returns the compressed bytes, or `None` if compression does not pay off.
    pub(super) fn pack(&self, data: &[u8]) -> Option<Vec<u8>> {
        let mut state = self.lock();
        let link_rate = state.meter.rate(Instant::now())?;
        if !state.codec.is_worth_trying(link_rate) {
            return None;
        }
        drop(state);
        let start = Instant::now();
        let packed = lz4_flex::block::compress(data);
        let duration = start.elapsed();
        let pays_off = self.lock().codec.on_packed(data.len(), packed.len(), duration, link_rate);
        pays_off.then_some(packed)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measures the rate of a link in intervals in which the sender was blocked at least half of the time.
#[derive(Debug, Default)]
struct LinkMeter {
    interval_start: Option<Instant>,
    bytes: u64,
    blocked: Duration,
    blocked_since: Option<Instant>,
    /// The last rate and the time of its measurement.
    last_rate: Option<(f64, Instant)>,
}

impl LinkMeter {
    fn on_written(&mut self, bytes: u64, now: Instant) {
        if let Some(since) = self.blocked_since.take() {
            self.blocked += now - since;
        }
        let start = *self.interval_start.get_or_insert(now);
        self.bytes += bytes;
        let elapsed = now - start;
        if elapsed < MEASUREMENT_INTERVAL {
            return;
        }
        if self.blocked * 2 >= elapsed {
            self.last_rate = Some((self.bytes as f64 / elapsed.as_secs_f64(), now));
        }
        *self = Self { last_rate: self.last_rate, ..Self::default() };
    }

    fn on_blocked(&mut self, now: Instant) {
        self.interval_start.get_or_insert(now);
        self.blocked_since.get_or_insert(now);
    }

    /// Bytes per second; `None` if the link has not been the bottleneck recently.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.last_rate.filter(|(_, at)| now - *at < RATE_MAX_AGE).map(|(rate, _)| rate)
    }
}

/// Measured rate of the codec, and chunks to skip.
#[derive(Debug, Default)]
struct CodecStats {
    /// Input bytes per second; `None` before the first chunk.
    rate: Option<f64>,
    /// Number of chunks to send uncompressed.
    chunks_to_skip: u32,
}

impl CodecStats {
    fn is_worth_trying(&mut self, link_rate: f64) -> bool {
        if self.chunks_to_skip > 0 {
            self.chunks_to_skip -= 1;
            return false;
        }
        let fast = self.rate.is_none_or(|rate| rate >= MIN_CODEC_SPEEDUP * link_rate);
        if !fast {
            // A later chunk measures the codec again, because the processor may have been busy.
            self.chunks_to_skip = SKIPPED_CHUNKS;
            self.rate = None;
        }
        fast
    }

    /// Records a compressed chunk. Returns whether compression paid off.
    fn on_packed(&mut self, bytes: usize, packed_bytes: usize, duration: Duration, link_rate: f64) -> bool {
        let rate = bytes as f64 / duration.as_secs_f64().max(1e-9);
        let rate = self.rate.map_or(rate, |known| known * 0.75 + rate * 0.25);
        self.rate = Some(rate);
        let shrinks = packed_bytes as f64 <= MAX_PACKED_RATIO * bytes as f64;
        if !shrinks {
            self.chunks_to_skip = SKIPPED_CHUNKS;
        }
        shrinks && rate >= MIN_CODEC_SPEEDUP * link_rate
    }
}

#[cfg(test)]
mod tests;
