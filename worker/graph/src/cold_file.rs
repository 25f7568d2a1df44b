//! The file of a feature whose rows are not all in memory: reads of single rows from a local disk, or from a copy of the file's
//! blocks on a local disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::buffer::MutableBuffer;
use bytes::Bytes;
use feedline_data::graph::description::{GraphHash, HASH_BLOCK_BYTES};
use futures::{StreamExt, TryStreamExt};

use crate::cold_rows::{ColdRows, MAX_READ_BYTES, PAGE_BYTES, RowPlaces, RowRead};
use crate::copied_blocks::CopiedBlocks;
use crate::error::GraphError;
use crate::folder::FolderFile;

/// Number of reads of a local file at the same time. A disk reaches its speed only with many reads.
const LOCAL_READS: usize = 32;
/// Number of reads of copied blocks at the same time. Each may fetch a block.
const BLOCK_READS: usize = 8;

/// The file of a feature, open for reading rows.
#[derive(Debug)]
pub(crate) struct ColdFile {
    file: FolderFile,
    /// The hash of the feature, which identifies its blocks.
    content: GraphHash,
    places: RowPlaces,
    /// The number of rows.
    rows: u64,
    /// Whether a read has failed, for example because the file has changed.
    has_failed: AtomicBool,
    /// The copy of blocks of a file in a store. `None` for local files.
    cache: Option<Arc<CopiedBlocks>>,
}

impl ColdFile {
    /// A file with `rows` rows of `row_bytes`. All blocks of a local file that contain cold rows have been verified.
    pub(crate) fn new(
        file: FolderFile,
        content: GraphHash,
        (rows, row_bytes): (u64, u64),
        cache: Option<Arc<CopiedBlocks>>,
    ) -> Self {
        let places = RowPlaces { header: file.header_bytes(), row: row_bytes, file: file.size_bytes() };
        Self { file, content, places, rows, has_failed: AtomicBool::new(false), cache }
    }

    /// The number of rows, with those in memory.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    fn concurrent_reads(&self) -> usize {
        if self.cache.is_some() { BLOCK_READS } else { LOCAL_READS }
    }

    /// Returns the memory that a read of this number of rows needs at most, in addition to the rows.
    pub(crate) fn reading_bytes(&self, rows: u64) -> u64 {
        let read = MAX_READ_BYTES.max(self.places.row.saturating_add(2 * PAGE_BYTES));
        // A read may need the ends of two blocks.
        let one = if self.cache.is_some() { read.saturating_add(2 * HASH_BLOCK_BYTES) } else { read };
        one.saturating_mul(rows.min(self.concurrent_reads() as u64))
    }

    /// Whether a read has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Reads rows. Their indexes exist, ascend, and have no duplicates.
    pub(crate) async fn read_rows(&self, indexes: Vec<u64>) -> Result<ColdRows, GraphError> {
        let read = self.try_read_rows(indexes).await;
        if read.is_err() {
            self.has_failed.store(true, Ordering::Relaxed);
        }
        read
    }

    async fn try_read_rows(&self, indexes: Vec<u64>) -> Result<ColdRows, GraphError> {
        let row_bytes = self.places.row as usize;
        let mut data = MutableBuffer::from_len_zeroed(indexes.len() * row_bytes);
        let mut store_rows = 0;
        let reads = self.places.reads(&indexes).into_iter().map(|read| async move {
            let (bytes, is_from_store) = self.read(read.bytes.clone()).await?;
            Ok::<(RowRead, Bytes, bool), GraphError>((read, bytes, is_from_store))
        });
        let mut reads = futures::stream::iter(reads).buffer_unordered(self.concurrent_reads());
        while let Some((read, bytes, is_from_store)) = reads.try_next().await? {
            let places = read.rows.clone();
            if is_from_store {
                store_rows += places.len() as u64;
            }
            let targets = data.as_slice_mut()[places.start * row_bytes..].chunks_exact_mut(row_bytes);
            for (target, &index) in targets.zip(&indexes[places]) {
                let start = (self.places.start(index) - read.bytes.start) as usize;
                target.copy_from_slice(&bytes[start..start + row_bytes]);
            }
        }
        Ok(ColdRows::new(indexes, data.into(), store_rows))
    }

    /// Reads a range after the header. Returns also whether a block was read from the store.
    async fn read(&self, range: Range<u64>) -> Result<(Bytes, bool), GraphError> {
        let Some(cache) = &self.cache else {
            return Ok((self.file.read(range).await?, false));
        };
        let (mut bytes, mut is_from_store) = (Vec::new(), false);
        let header = self.places.header;
        let mut start = range.start;
        while start < range.end {
            let block = (start - header) / HASH_BLOCK_BYTES;
            let block_start = header + block * HASH_BLOCK_BYTES;
            let end = range.end.min(block_start + HASH_BLOCK_BYTES);
            let in_block = start - block_start..end - block_start;
            let fetch = || self.file.read_block(block as usize);
            let (part, is_fetched) = cache.read((self.content, block), in_block, fetch).await?;
            is_from_store |= is_fetched;
            if start == range.start && end == range.end {
                return Ok((part, is_from_store));
            }
            bytes.extend_from_slice(&part);
            start = end;
        }
        Ok((bytes.into(), is_from_store))
    }
}

#[cfg(test)]
mod tests;
