//! The memory of the reads of a worker: the block cache, and the limit of the bytes that are read concurrently.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use feedline_data::ids::JobId;
use feedline_data::manifest::{Block, ShardRef};
use feedline_sources::{BlockRead, Decoders, SourceError};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::engine::blocks::BlockCache;

/// Maximum size of a block of a compressed shard, as a multiple of the read limit. The decoder and its content need at most the
/// whole budget.
const COMPRESSED_BLOCK_LIMITS: u64 = 3;
/// Number of bytes per permit of [`ReadResources::limit`].
const PERMIT_BYTES: u64 = 1 << 10;

/// The block cache of a worker, and the memory limit for concurrent reads.
pub(crate) struct ReadResources {
    pub(crate) blocks: BlockCache,
    /// The decoders of compressed shards, which the sources own.
    decoders: OnceLock<Arc<Decoders>>,
    limit: Semaphore,
    limit_bytes: u64,
    /// Maximum memory for reading one block.
    max_block_bytes: u64,
    /// The part of the reservations that is for decoders, which count their memory themselves.
    reserved_decoder_bytes: AtomicU64,
}

impl ReadResources {
    /// Creates a block cache of `cache_bytes`, and limits concurrent reads to `limit_bytes`. A block that is larger
    /// than the limit is read alone, and a block that needs more than `max_block_bytes` is not read.
    pub(crate) fn new(cache_bytes: u64, limit_bytes: u64, max_block_bytes: u64) -> Self {
        let limit_bytes = limit_bytes.clamp(PERMIT_BYTES, u64::from(u32::MAX) * PERMIT_BYTES);
        let limit = Semaphore::new((limit_bytes / PERMIT_BYTES) as usize);
        let (blocks, decoders) = (BlockCache::new(cache_bytes), OnceLock::new());
        let reserved_decoder_bytes = AtomicU64::new(0);
        Self { blocks, decoders, limit, limit_bytes, max_block_bytes, reserved_decoder_bytes }
    }

    /// Sets the decoders of the sources. Only the first call has an effect.
    pub(crate) fn set_decoders(&self, decoders: Arc<Decoders>) {
        let _ = self.decoders.set(decoders);
    }

    /// Memory of the decoders of compressed shards in bytes.
    pub(crate) fn decoder_bytes(&self) -> u64 {
        self.decoders.get().map_or(0, |decoders| decoders.used_bytes())
    }

    /// Releases the blocks and decoders of jobs for which `is_retained` returns false.
    pub(crate) fn retain_jobs(&self, is_retained: impl Fn(JobId) -> bool) {
        self.blocks.retain_jobs(&is_retained);
        if let Some(decoders) = self.decoders.get() {
            decoders.retain_jobs(&is_retained);
        }
    }

    /// Bytes of the cached blocks and of the blocks that are being read.
    pub(crate) fn held_bytes(&self) -> u64 {
        let free = self.limit.available_permits() as u64 * PERMIT_BYTES;
        let decoders = self.reserved_decoder_bytes.load(Ordering::Relaxed);
        self.blocks.held_bytes() + self.limit_bytes.saturating_sub(free + decoders)
    }

    /// Rejects a block of a compressed shard that needs most of the worker's memory. Only a large row can be so large.
    pub(super) fn check_compressed(&self, shard: &ShardRef, block: &Block) -> Result<(), SourceError> {
        let max_bytes = self.limit_bytes * COMPRESSED_BLOCK_LIMITS;
        if block.bytes <= max_bytes {
            return Ok(());
        }
        let reason = format!(
            "the block at byte {} of the decompressed content has {} MiB, because a row is large, but this worker reads at most {} MiB at \
             once: remove the row, or raise the workers' --memory",
            block.offset,
            block.bytes >> 20,
            max_bytes >> 20
        );
        Err(SourceError::Unsupported { url: shard.url.clone(), reason })
    }

    /// Rejects a block that needs more memory than the worker has.
    pub(super) fn check_block(&self, read: &BlockRead<'_>, peak_bytes: u64) -> Result<(), SourceError> {
        if peak_bytes <= self.max_block_bytes {
            return Ok(());
        }
        let (peak_mib, max_mib) = (peak_bytes.div_ceil(1 << 20), self.max_block_bytes >> 20);
        let (rows, first) = (read.block.rows, read.block.offset);
        let reason = format!(
            "reading the {rows} rows of a block at offset {first} needs {peak_mib} MiB, but this worker has only {max_mib} MiB; write \
             the file again with smaller pages, row groups or record batches (in pyarrow: row_group_size), or raise the workers' --memory"
        );
        Err(SourceError::Unsupported { url: read.shard.url.clone(), reason })
    }

    /// Waits until the read limit has room for the peak memory of a block, and for a decoder.
    pub(super) async fn reserve(&self, peak_bytes: u64, decoder_bytes: u64) -> ReservedRead<'_> {
        let permits = peak_bytes
            .saturating_add(decoder_bytes)
            .div_ceil(PERMIT_BYTES)
            .clamp(1, self.limit_bytes / PERMIT_BYTES);
        let permit = self.limit.acquire_many(permits as u32).await.expect("the limit is never closed");
        let decoder_bytes = decoder_bytes.min((permits * PERMIT_BYTES).saturating_sub(peak_bytes));
        self.reserved_decoder_bytes.fetch_add(decoder_bytes, Ordering::Relaxed);
        ReservedRead { resources: self, decoder_bytes, _permit: permit }
    }
}

/// The memory of a read, which is reserved until it is dropped.
pub(super) struct ReservedRead<'a> {
    resources: &'a ReadResources,
    decoder_bytes: u64,
    _permit: SemaphorePermit<'a>,
}

impl Drop for ReservedRead<'_> {
    fn drop(&mut self) {
        self.resources.reserved_decoder_bytes.fetch_sub(self.decoder_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::schema::Schema;

    use super::*;

    #[tokio::test]
    async fn blocks_that_are_read_at_a_time_are_bounded_in_bytes() {
        let resources = ReadResources::new(0, 4 * PERMIT_BYTES, u64::MAX);
        let (small, huge) = (2 * PERMIT_BYTES, 200 * PERMIT_BYTES);
        let first = resources.reserve(small, 0).await;
        assert_eq!(resources.held_bytes(), 2 * PERMIT_BYTES);
        let second = resources.reserve(small, 0).await;
        assert_eq!(resources.held_bytes(), 4 * PERMIT_BYTES);
        assert!(futures::FutureExt::now_or_never(resources.reserve(1, 0)).is_none());
        drop(first);
        assert!(futures::FutureExt::now_or_never(resources.reserve(huge, 0)).is_none());
        drop(second);
        let alone = resources.reserve(huge, 0).await;
        assert_eq!(resources.held_bytes(), 4 * PERMIT_BYTES, "a larger block is read alone");
        drop(alone);
        let decompressed = resources.reserve(PERMIT_BYTES, 2 * PERMIT_BYTES).await;
        assert!(futures::FutureExt::now_or_never(resources.reserve(small, 0)).is_none());
        assert_eq!(resources.held_bytes(), PERMIT_BYTES, "a decoder counts its memory itself");
        drop(decompressed);
        let _large = resources.reserve(small, 9 * PERMIT_BYTES).await;
        assert_eq!(resources.held_bytes(), 2 * PERMIT_BYTES);
    }

    #[test]
    fn a_block_that_needs_more_memory_than_the_worker_has_is_rejected() {
        let resources = ReadResources::new(0, 32 << 20, 256 << 20);
        let shard = ShardRef { url: "file:///d/a.parquet".to_owned(), ..ShardRef::default() };
        let block = Block { rows: 1000, offset: 2000, bytes: 1 << 29, group: 0, row_bytes: Vec::new() };
        let schema = Schema::default();
        let read = BlockRead { shard: &shard, block: &block, index: None, schema: &schema, rows: None };
        assert_eq!(resources.check_block(&read, 256 << 20), Ok(()));
        let error = resources.check_block(&read, 560 << 20).expect_err("it is too large");
        assert_eq!(
            error.to_string(),
            "`file:///d/a.parquet` cannot be read: reading the 1000 rows of a block at offset 2000 needs 560 MiB, but this worker \
             has only 256 MiB; write the file again with smaller pages, row groups or record batches (in pyarrow: \
             row_group_size), or raise the workers' --memory"
        );
        assert!(!error.is_retryable());
    }
}
