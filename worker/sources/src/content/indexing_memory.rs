//! The memory of shards that are indexed: their decoders, and rows that determine columns. Large ones have a limit for all shards of
//! a worker, so that shards wait for each other.

use tokio::sync::SemaphorePermit;

use super::decoders::Decoders;
use super::shared_memory::kib;

/// Size up to which a decoder or a row need not wait.
pub(crate) const SMALL_BYTES: u64 = 4 << 20;

/// The part of a shard that is indexed, which ends when it is dropped.
pub(crate) struct IndexingMemory<'a> {
    decoders: &'a Decoders,
    decoder_bytes: u64,
    row_bytes: u64,
    held: Option<SemaphorePermit<'a>>,
    held_bytes: u64,
}

impl<'a> IndexingMemory<'a> {
    pub(crate) fn new(decoders: &'a Decoders) -> Self {
        Self { decoders, decoder_bytes: 0, row_bytes: 0, held: None, held_bytes: 0 }
    }

    /// Waits until the shard may use a decoder of this size.
    pub(super) async fn hold_decoder(&mut self, bytes: u64) {
        self.decoder_bytes = if bytes > SMALL_BYTES { bytes } else { 0 };
        self.hold().await;
    }

    /// Waits until the shard may hold a row of this size. The previous row is no longer counted.
    pub(super) async fn hold_row(&mut self, bytes: u64) {
        self.row_bytes = if bytes > SMALL_BYTES { bytes } else { 0 };
        self.hold().await;
    }

    async fn hold(&mut self) {
        let bytes = self.decoder_bytes + self.row_bytes;
        if bytes <= self.held_bytes {
            if let Some(held) = &mut self.held {
                let unused = held.num_permits().saturating_sub(kib(bytes) as usize);
                drop(held.split(unused));
            }
            self.held_bytes = bytes;
            return;
        }
        // A shard that waits holds no part, so that no two shards wait for each other. What it has in memory already is not counted
        // until it continues.
        (self.held, self.held_bytes) = (None, 0);
        self.held = Some(self.decoders.indexing().acquire(bytes).await);
        self.held_bytes = bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt;
    use futures::future::join_all;
    use tokio::time::timeout;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn large_decoders_and_rows_have_a_common_limit() {
        let decoders = Decoders::default();
        decoders.set_limit(20 * MIB);
        decoders.set_sampled_row_limit(80 * MIB);
        let [mut one, mut two, mut small] = std::array::from_fn(|_| IndexingMemory::new(&decoders));
        let is_ready = |waits: Option<()>| waits.is_some();
        assert!(is_ready(one.hold_decoder(68 * MIB).now_or_never()));
        assert!(is_ready(small.hold_decoder(4 * MIB).now_or_never()), "a small decoder need not wait");
        assert!(!is_ready(two.hold_decoder(68 * MIB).now_or_never()));
        assert!(is_ready(two.hold_decoder(30 * MIB).now_or_never()));
        assert!(!is_ready(one.hold_row(10 * MIB).now_or_never()), "the decoder and the row");
        drop(two);
        assert!(is_ready(one.hold_row(10 * MIB).now_or_never()));
        assert!(is_ready(one.hold_row(0).now_or_never()));
        assert!(is_ready(small.hold_row(30 * MIB).now_or_never()), "the row of the other shard ended");
        drop((one, small));
        let mut larger_than_all = IndexingMemory::new(&decoders);
        assert!(is_ready(larger_than_all.hold_decoder(500 * MIB).now_or_never()));
    }

    #[tokio::test]
    async fn shards_do_not_wait_for_each_other() {
        let decoders = Decoders::default();
        decoders.set_limit(20 * MIB);
        decoders.set_sampled_row_limit(20 * MIB);
        let index = |shard: u64| {
            let mut memory = IndexingMemory::new(&decoders);
            async move {
                for step in 0..50 {
                    memory.hold_decoder((shard * 7 + step * 5) % 30 * MIB).await;
                    tokio::task::yield_now().await;
                    memory.hold_row((shard * 11 + step * 3) % 30 * MIB).await;
                    tokio::task::yield_now().await;
                }
            }
        };
        timeout(Duration::from_secs(1_200), join_all((0..8).map(index))).await.expect("all shards end");
    }
}
