//! Directories that MosaicML Streaming wrote: `index.json` describes the shards and their columns, and each sample is one row.
//!
//! A shard that is not compressed is read in blocks, after its table of offsets. A compressed shard is a single block,
//! because it has to be decompressed completely.

mod hashes;
mod index;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};

use super::decompress::off_runtime;
use super::samples::{self, OffsetTable};
use crate::directory::{Directories, IndexUse};
use crate::error::SourceError;
use crate::object::{BufferSpan, Object};
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows::{self, EncodedRow, RowSet};
use crate::select::Selection;
use crate::stores::ScopedStores;
use crate::window::ReadWindow;

use hashes::FileHashes;
use index::{MdsIndex, MdsShard, ShardFile};

/// Number of bytes that are hashed at once.
const HASHED_BYTES: usize = 256 << 10;

/// Reads the shards of directories.
pub(super) struct MdsReader {
    directories: Directories<MdsIndex>,
}

impl MdsReader {
    pub(super) fn new(reads: &ScopedStores, urls: &[String]) -> Self {
        Self { directories: Directories::new(reads, urls) }
    }
}

#[async_trait]
impl FormatReader for MdsReader {
    fn lists_each_url(&self) -> bool {
        false
    }

    async fn list(&self, _: &ScopedStores, _: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        self.directories.list().await
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let (index, path) = self.directories.index_of(object.shard(), IndexUse::Indexing).await?;
        let (entry, is_compressed) = find_shard(&index, &path, object.shard())?;
        if !is_compressed {
            verify_file(object, &entry.raw).await?;
        }
        self.index_sample(object, selection).await
    }

    async fn index_sample(
        &self,
        object: &Arc<Object>,
        selection: &Selection,
    ) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let (index, path) = self.directories.index_of(shard, IndexUse::Indexing).await?;
        let (entry, is_compressed) = find_shard(&index, &path, shard)?;
        let needs_sample = entry.layout.needs_sample();
        let (blocks, sample) = match &entry.zip {
            Some(zip) if is_compressed => index_compressed(object, entry, zip, needs_sample).await?,
            _ => samples::index_rows(object, entry.samples, needs_sample, None).await?,
        };
        samples::build_index(shard, blocks, &entry.layout, &sample, selection)
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let (index, path) = self.directories.index_of(read.shard, IndexUse::Reading).await?;
        let (entry, is_compressed) = find_shard(&index, &path, read.shard)?;
        let rows = match &entry.zip {
            Some(zip) if is_compressed => read_compressed(object, entry, zip).await?,
            _ => rows::fetch(object, read, |bytes| entry.layout.split(bytes)).await?,
        };
        if rows.rows.len() != read.rows.map_or(read.block.rows as usize, <[u32]>::len) {
            let reason = "the number of samples differs from the index: run `feedline index --rebuild`";
            return Err(SourceError::corrupt(read.shard, read.block.offset, reason));
        }
        samples::decode_rows(&rows, &entry.layout, read, selection)
    }
}

/// Returns the entry of a shard in the index, and whether the shard is the compressed file.
fn find_shard<'a>(
    index: &'a MdsIndex,
    path: &str,
    shard: &ShardRef,
) -> Result<(&'a MdsShard, bool), SourceError> {
    index.find(path).ok_or_else(|| {
        let reason = "`index.json` no longer names the shard: run `feedline index --rebuild`";
        SourceError::unsupported(shard, reason)
    })
}

/// Verifies the hashes of a file, if the index contains hashes. Reads the whole file.
async fn verify_file(object: &Object, file: &ShardFile) -> Result<(), SourceError> {
    let mut hashes = FileHashes::new(&file.hashes);
    if hashes.is_empty() {
        return Ok(());
    }
    let mut window = ReadWindow::new(object);
    let mut at = 0;
    while at < object.size_bytes() {
        let piece = window.read_from(at, 1).await?;
        at += piece.len() as u64;
        // Let other tasks of the thread run.
        for part in piece.chunks(HASHED_BYTES) {
            hashes.update(part);
            tokio::task::yield_now().await;
        }
    }
    hashes.verify().map_err(|reason| SourceError::corrupt(object.shard(), 0, reason))
}

/// Returns the only block of a compressed shard, and the first sample if `needs_sample`.
async fn index_compressed(
    object: &Arc<Object>,
    entry: &MdsShard,
    zip: &ShardFile,
    needs_sample: bool,
) -> Result<(Vec<Block>, Bytes), SourceError> {
    let shard = object.shard();
    let Ok(rows) = u32::try_from(entry.samples) else {
        return Err(SourceError::unsupported(shard, "it has more than 2^32 samples: write smaller shards"));
    };
    if rows == 0 {
        return Ok((Vec::new(), Bytes::new()));
    }
    let block = Block { rows, offset: 0, bytes: entry.raw.bytes, group: 0, row_bytes: Vec::new() };
    let sample = if needs_sample {
        let (file, ranges) = decompressed(object, entry, zip).await?;
        ranges.first().map_or_else(Bytes::new, |first| file.slice(first.clone()))
    } else {
        entry.check_decompressed_size().map_err(|reason| SourceError::unsupported(shard, reason))?;
        Bytes::new()
    };
    Ok((vec![block], sample))
}

async fn read_compressed(
    object: &Arc<Object>,
    entry: &MdsShard,
    zip: &ShardFile,
) -> Result<RowSet, SourceError> {
    let (file, ranges) = decompressed(object, entry, zip).await?;
    let row = |range: Range<usize>| EncodedRow {
        span: BufferSpan { buffer: 0, start: range.start, len: range.len() },
        offset: range.start as u64,
    };
    Ok(RowSet { rows: ranges.into_iter().map(row).collect(), buffers: vec![file] })
}

/// Reads and decompresses a shard, and verifies its hashes. Returns the decompressed file and the ranges of its samples.
async fn decompressed(
    object: &Arc<Object>,
    entry: &MdsShard,
    zip: &ShardFile,
) -> Result<(Bytes, Vec<Range<usize>>), SourceError> {
    let shard = object.shard();
    let corrupt = |reason| SourceError::corrupt(shard, 0, reason);
    entry.check_decompressed_size().map_err(|reason| SourceError::unsupported(shard, reason))?;
    let compression = entry.compression.clone().map_err(|reason| SourceError::unsupported(shard, reason))?;
    let bytes = object.read(0..object.size_bytes()).await?;
    let (zip_hashes, raw_hashes) = (zip.hashes.clone(), entry.raw.hashes.clone());
    let raw_bytes = entry.raw.bytes;
    let decompress = move || {
        FileHashes::new(&zip_hashes).verify_all(&bytes)?;
        let file = compression.decompress_now(&bytes, raw_bytes)?;
        FileHashes::new(&raw_hashes).verify_all(&file)?;
        let table = OffsetTable::parse(&file)?;
        Ok::<_, String>((file, table))
    };
    let (file, table) = off_runtime(raw_bytes, decompress).await.flatten().map_err(corrupt)?;
    if table.len() as u64 != entry.samples {
        let reason = format!(
            "the shard has {} samples, but the index expects {}: copy the whole directory again",
            table.len(),
            entry.samples
        );
        return Err(corrupt(reason));
    }
    Ok((file, table.ranges().collect()))
}

#[cfg(test)]
mod tests;
