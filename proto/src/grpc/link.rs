//! What a sender knows of one connection: how fast it takes bytes while everything waits for it, and whether packing them
//! with LZ4 pays there. It pays where the link is clearly slower than the codec and the bytes shrink; both are measured.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time over which a link is measured.
const SPAN: Duration = Duration::from_millis(100);
/// A measured rate counts for this long: a link that packing has relieved is no longer what everything waits for.
const MEMORY: Duration = Duration::from_secs(5);
/// The codec must be this much faster than the link: its time is taken from computing batches.
const LEAD: f64 = 2.0;
/// Bytes that shrink to more than this part are sent as they are.
const WORTH: f64 = 0.9;
/// Chunks that are sent as they are after one that was not worth packing.
const CHUNKS_UNTRIED: u32 = 64;

/// A connection, as its sender sees it. Clones are the same connection.
#[derive(Debug, Clone, Default)]
pub(super) struct ConnectionLink(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    meter: Meter,
    codec: Codec,
}

impl ConnectionLink {
    /// The connection took `bytes`.
    pub(super) fn on_written(&self, bytes: usize) {
        self.lock().meter.on_written(bytes as u64, Instant::now());
    }

    /// The connection takes nothing for now.
    pub(super) fn on_blocked(&self) {
        self.lock().meter.on_blocked(Instant::now());
    }

    /// The bytes packed, where that pays.
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

/// Measures a link: bytes per second over spans in which it was blocked at least half of the time.
#[derive(Debug, Default)]
struct Meter {
    begun: Option<Instant>,
    bytes: u64,
    blocked: Duration,
    blocked_since: Option<Instant>,
    /// The last rate, and when it was measured.
    measured: Option<(f64, Instant)>,
}

impl Meter {
    fn on_written(&mut self, bytes: u64, now: Instant) {
        if let Some(since) = self.blocked_since.take() {
            self.blocked += now - since;
        }
        let begun = *self.begun.get_or_insert(now);
        self.bytes += bytes;
        let elapsed = now - begun;
        if elapsed < SPAN {
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

    /// Bytes per second; `None` when the link was not what everything waited for of late.
    fn rate(&self, now: Instant) -> Option<f64> {
        self.measured.filter(|(_, at)| now - *at < MEMORY).map(|(rate, _)| rate)
    }
}

/// What packing costs and gains here.
#[derive(Debug, Default)]
struct Codec {
    /// Bytes per second that it takes in; `None` before the first chunk.
    rate: Option<f64>,
    /// Chunks that are not tried.
    untried: u32,
}

impl Codec {
    fn is_worth_trying(&mut self, link_rate: f64) -> bool {
        if self.untried > 0 {
            self.untried -= 1;
            return false;
        }
        let fast = self.rate.is_none_or(|rate| rate >= LEAD * link_rate);
        if !fast {
            // It is tried again now and then: the processor may have been busy.
            self.untried = CHUNKS_UNTRIED;
            self.rate = None;
        }
        fast
    }

    /// A chunk was packed; whether that paid.
    fn on_packed(&mut self, from: usize, to: usize, took: Duration, link_rate: f64) -> bool {
        let rate = from as f64 / took.as_secs_f64().max(1e-9);
        let rate = self.rate.map_or(rate, |known| known * 0.75 + rate * 0.25);
        self.rate = Some(rate);
        let shrinks = to as f64 <= WORTH * from as f64;
        if !shrinks {
            self.untried = CHUNKS_UNTRIED;
        }
        shrinks && rate >= LEAD * link_rate
    }
}

#[cfg(test)]
mod tests;
