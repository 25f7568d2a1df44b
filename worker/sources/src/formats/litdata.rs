//! Directories that LitData wrote: `index.json` names the chunks and the serializers of the values, and each item is one row.
//!
//! A block of a plain chunk is a range of items. A chunk that is compressed as a whole is a single block. A frame of
//! compressed items is a block. Newer versions store items without media as an Arrow file at the end of the chunk.

mod frames;
mod index;
mod items;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};

use super::arrow_ipc::ArrowReader;
use super::decompress::{MAX_DECOMPRESSED_BYTES, off_runtime, unzstd};
use super::samples::{self, OffsetTable};
use crate::cache::{CachedSize, ShardCache};
use crate::directory::{Directories, IndexUse};
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows::RowSet;
use crate::select::Selection;
use crate::stores::ScopedStores;

use frames::FrameTable;
use index::{LitDataChunk, LitDataIndex, Storage};

/// Reads the chunks of directories.
pub(super) struct LitDataReader {
    directories: Directories<LitDataIndex>,
    frames: ShardCache<FrameTable>,
    /// The range of the Arrow file at the end of a chunk, if the chunk has one.
    arrow_files: ShardCache<Option<Range<u64>>>,
    arrow: ArrowReader,
}

/// The range of a part of a chunk.
impl CachedSize for Option<Range<u64>> {
    fn held_bytes(&self) -> usize {
        0
    }
}

impl LitDataReader {
    pub(super) fn new(reads: &ScopedStores, urls: &[String]) -> Self {
        let memory = reads.cache_memory();
        Self {
            directories: Directories::new(reads, urls),
            frames: ShardCache::new(memory),
            arrow_files: ShardCache::new(memory),
            arrow: ArrowReader::new(memory),
        }
    }
}

#[async_trait]
impl FormatReader for LitDataReader {
    fn lists_each_url(&self) -> bool {
        false
    }

    async fn list(&self, _: &ScopedStores, _: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        self.directories.list().await
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let (index, path) = self.directories.index_of(shard, IndexUse::Indexing).await?;
        let (chunk, storage) = find_chunk(&index, &path, shard)?;
        if let Some(file) = self.arrow_file(object, storage).await? {
            let found = self.arrow.index(&file, selection).await?;
            object.add_traffic_of(&file);
            return check_rows(found, chunk, shard);
        }
        let needs_sample = index.layout.needs_sample();
        let (blocks, sample) = match storage {
            Storage::Plain | Storage::Tokens | Storage::CompressedItems => {
                items::index(object, chunk.items(), needs_sample, storage).await?
            }
            Storage::Compressed => index_compressed(object, chunk, needs_sample).await?,
            Storage::Frames => {
                let table = self.frames.get(object, || FrameTable::read(object)).await?;
                let sample = if needs_sample { table.first_item(object).await? } else { Bytes::new() };
                (table.blocks(), sample)
            }
        };
        check_rows(samples::build_index(shard, blocks, &index.layout, &sample, selection)?, chunk, shard)
    }

    async fn fetch(&self, object: &Arc<Object>, read: &BlockRead<'_>) -> Result<Option<u64>, SourceError> {
        let (index, path) = self.directories.index_of(read.shard, IndexUse::Reading).await?;
        let (_, storage) = find_chunk(&index, &path, read.shard)?;
        let Some(file) = self.arrow_file(object, storage).await? else { return Ok(None) };
        let peak_bytes = self.arrow.fetch(&file, read).await;
        object.add_traffic_of(&file);
        object.keep_bytes_of(&file);
        peak_bytes
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let (index, path) = self.directories.index_of(read.shard, IndexUse::Reading).await?;
        let (chunk, storage) = find_chunk(&index, &path, read.shard)?;
        if let Some(file) = self.arrow_file(object, storage).await? {
            let decoded = self.arrow.read(&file, read, selection).await;
            object.add_traffic_of(&file);
            return decoded;
        }
        let rows = match storage {
            Storage::Plain | Storage::Tokens | Storage::CompressedItems => {
                items::read(object, read, storage).await?
            }
            Storage::Compressed => {
                let (file, table) = decompressed(object, chunk).await?;
                items::row_set(file, table.ranges().collect())
            }
            Storage::Frames => {
                let table = self.frames.get(object, || FrameTable::read(object)).await?;
                table.read_frame(object, read.block.group).await?
            }
        };
        check_count(&rows, read)?;
        samples::decode_rows(&rows, &index.layout, read, selection)
    }
}

impl LitDataReader {
    /// Returns the Arrow file at the end of a chunk, if the chunk has one.
    async fn arrow_file(
        &self,
        object: &Arc<Object>,
        storage: Storage,
    ) -> Result<Option<Arc<Object>>, SourceError> {
        if storage != Storage::Plain {
            return Ok(None);
        }
        let range = self.arrow_files.get(object, || items::find_arrow_file(object)).await?;
        Ok(range.as_ref().clone().map(|range| Arc::new(object.part(range))))
    }
}

/// Returns the chunk of a shard, and how the shard stores its items.
fn find_chunk<'a>(
    index: &'a LitDataIndex,
    path: &str,
    shard: &ShardRef,
) -> Result<(&'a LitDataChunk, Storage), SourceError> {
    index.find(path).ok_or_else(|| {
        let reason = "`index.json` no longer names the chunk: run `feedline index --rebuild`";
        SourceError::unsupported(shard, reason)
    })
}

/// Checks that a chunk has the number of items of `index.json`.
fn check_rows(found: ShardIndex, chunk: &LitDataChunk, shard: &ShardRef) -> Result<ShardIndex, SourceError> {
    if found.rows() == chunk.items() {
        return Ok(found);
    }
    let reason = format!(
        "the chunk has {} items, but the index expects {}: copy the whole directory again",
        found.rows(),
        chunk.items()
    );
    Err(SourceError::corrupt(shard, 0, reason))
}

fn check_count(rows: &RowSet, read: &BlockRead<'_>) -> Result<(), SourceError> {
    let (found, expected) = (rows.rows.len(), read.rows.map_or(read.block.rows as usize, <[u32]>::len));
    if found == expected {
        return Ok(());
    }
    let reason = format!(
        "the block has {found} items, but the index expects {expected}: copy the whole directory again"
    );
    Err(SourceError::corrupt(read.shard, read.block.offset, reason))
}

/// Returns the only block of a chunk that is compressed as a whole, and the first item if `needs_sample`.
async fn index_compressed(
    object: &Arc<Object>,
    chunk: &LitDataChunk,
    needs_sample: bool,
) -> Result<(Vec<Block>, Bytes), SourceError> {
    let unsupported = |reason: String| SourceError::unsupported(object.shard(), reason);
    let bytes = chunk.decompressed_bytes().map_err(unsupported)?;
    let rows = u32::try_from(chunk.items());
    let rows =
        rows.map_err(|_| unsupported("it has more than 2^32 items: write smaller chunks".to_owned()))?;
    if rows == 0 {
        return Ok((Vec::new(), Bytes::new()));
    }
    let sample = if needs_sample {
        let (file, table) = decompressed(object, chunk).await?;
        table.ranges().next().map_or_else(Bytes::new, |first| file.slice(first))
    } else {
        Bytes::new()
    };
    Ok((vec![Block { rows, offset: 0, bytes, group: 0, row_bytes: Vec::new() }], sample))
}

/// Reads and decompresses a chunk that is compressed as a whole.
async fn decompressed(
    object: &Arc<Object>,
    chunk: &LitDataChunk,
) -> Result<(Bytes, OffsetTable), SourceError> {
    let corrupt = |reason| SourceError::corrupt(object.shard(), 0, reason);
    if object.size_bytes() > MAX_DECOMPRESSED_BYTES {
        return Err(corrupt(format!("the chunk is larger than the limit of {MAX_DECOMPRESSED_BYTES} bytes")));
    }
    let bytes = object.read(0..object.size_bytes()).await?;
    let limit = chunk.max_decompressed_bytes().map_err(corrupt)?;
    let decompress = move || {
        let file = Bytes::from(unzstd(&bytes, limit)?);
        let table = OffsetTable::parse(&file)?;
        Ok::<_, String>((file, table))
    };
    off_runtime(limit, decompress).await.flatten().map_err(corrupt)
}

#[cfg(test)]
mod tests;
