//! ArrayRecord files: Riegeli chunks of records, with a footer that contains the offsets of the chunks.
//!
//! The features of `tf.train.Example` records are columns. Other records have the column `record`.

mod chunk;
mod footer;
mod framing;
mod transposed;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::ArrayRef;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::{Block, ShardIndex};
use feedline_data::schema::ColumnType;

use super::decompress::{MAX_DECOMPRESSED_BYTES, off_runtime};
use super::tfrecord::{SchemaScan, decode_examples};
use crate::blocks::{BlockBuilder, MAX_BLOCK_ROWS};
use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::cast_values;
use crate::object::{BufferSpan, Object};
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows::{EncodedRow, RowSet};
use crate::select::{InferenceNotes, ResolvedColumn, Selection};
use crate::views::Views;

use chunk::{RecordLimits, decode_records};
use footer::{ChunkEntry, read_footer};
use framing::{RecordChunk, read_chunk};

/// The column of records that are not examples.
const RECORD_COLUMN: &str = "record";
/// Number of records that are sampled to infer the columns.
const SAMPLED_ROWS: usize = 16;
/// Target size of a block after decompression.
const TARGET_BLOCK_BYTES: u64 = 1 << 20;
/// Maximum number of records of a chunk.
const MAX_CHUNK_RECORDS: u64 = 1 << 20;
/// Memory that a record needs in addition to its bytes.
const RECORD_OVERHEAD_BYTES: u64 = 40;
/// Chunks with one record are read one by one if they have at most this size after decompression for each byte in the file.
const MAX_ROW_RATIO: u64 = 2;
/// Size up to which such a chunk may have a larger ratio.
const MAX_SMALL_ROW_BYTES: u64 = 256;

/// Reads ArrayRecord files.
pub(super) struct ArrayRecordReader;

#[async_trait]
impl FormatReader for ArrayRecordReader {
    async fn index_sample(
        &self,
        object: &Arc<Object>,
        selection: &Selection,
    ) -> Result<ShardIndex, SourceError> {
        index(object, selection, true).await
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        index(object, selection, false).await
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = match read.rows {
            Some(rows) => read_rows(object, read, rows).await?,
            None => {
                let span = block_range(read.block);
                let limits = RecordLimits { records: read.block.rows.into(), bytes: block_limit(read.block) };
                read_span(object, span, limits).await?
            }
        };
        let names = selection.data_names(read.schema);
        // Other datasets of a mix have other columns.
        let own = read.index.and_then(|index| index.schema.as_ref());
        let is_own = |column: &str| own.is_none_or(|own| own.get(column).is_some());
        let own_names = read.schema.names().zip(&names).filter(|(column, _)| is_own(column));
        let own_names: Vec<&str> = own_names.map(|(_, name)| *name).collect();
        let of_records = own_names.iter().filter(|name| **name == RECORD_COLUMN).count();
        if of_records == own_names.len() {
            return raw_columns(&rows, read, &names);
        }
        if of_records > 0 {
            let reason = "the records of some shards are `tf.train.Example` messages, and those of others are not: list both kinds as two \
                          datasets of a mix, or read only one of them";
            return Err(SourceError::unsupported(read.shard, reason));
        }
        decode_examples(&rows, read, selection)
    }
}

/// Indexes the chunks. For a sample, infers the columns only from the first records.
async fn index(object: &Object, selection: &Selection, is_sample: bool) -> Result<ShardIndex, SourceError> {
    let shard = object.shard();
    let chunks = read_footer(object).await?;
    let blocks = blocks(&chunks).map_err(|reason| SourceError::unsupported(shard, reason))?;
    let Some(first) = chunks.first() else {
        return Ok(ShardIndex { blocks, schema: None, defects: Vec::new(), ..ShardIndex::default() });
    };
    let limits = RecordLimits { records: first.records, bytes: first.decoded_bytes };
    let sample = read_span(object, first.range.clone(), limits).await?;
    let scanned = if is_sample { &[] } else { &blocks[..] };
    let found = columns(object, scanned, &sample, selection).await?;
    let (schema, columns) = match found {
        Some(found) => selection.resolve_inferred(shard, &found, &InferenceNotes::default())?,
        None => {
            let record = [(RECORD_COLUMN.to_owned(), Ok(ColumnType::Binary))];
            selection.resolve_sampled(shard, &record, &InferenceNotes::default())?
        }
    };
    Ok(ShardIndex { blocks, schema: Some(schema), columns, ..ShardIndex::default() })
}

/// Maximum size of the records of a block.
fn block_limit(block: &Block) -> u64 {
    if block.group > 0 {
        block.bytes
    } else {
        row_limit(block.bytes) + MAX_SMALL_ROW_BYTES * u64::from(block.rows)
    }
}

/// Maximum size of the record of a chunk that is read as a row.
fn row_limit(file_bytes: u64) -> u64 {
    file_bytes.saturating_mul(MAX_ROW_RATIO).max(MAX_SMALL_ROW_BYTES)
}

/// The byte range of a block. The group of a block with several records per chunk is its size in the file.
fn block_range(block: &Block) -> Range<u64> {
    let bytes = if block.group > 0 { u64::from(block.group) } else { block.bytes };
    block.offset..block.offset.saturating_add(bytes)
}

/// Divides the chunks into blocks. Chunks with one record each are rows, which can be read one by one if they are large.
fn blocks(chunks: &[ChunkEntry]) -> Result<Vec<Block>, String> {
    let Some(first) = chunks.first() else { return Ok(Vec::new()) };
    if let Some(large) = chunks.iter().find(|chunk| chunk.decoded_bytes > MAX_DECOMPRESSED_BYTES) {
        return Err(format!(
            "a chunk has {} bytes after decompression; the limit is {MAX_DECOMPRESSED_BYTES} bytes: write the file with a smaller \
             `group_size`",
            large.decoded_bytes
        ));
    }
    if let Some(large) = chunks.iter().find(|chunk| chunk.records > MAX_CHUNK_RECORDS) {
        return Err(format!(
            "a chunk has {} records; the limit is {MAX_CHUNK_RECORDS} records: write the file with a smaller `group_size`",
            large.records
        ));
    }
    let is_row = |chunk: &ChunkEntry| {
        chunk.records == 1 && chunk.decoded_bytes <= row_limit(chunk.range.end - chunk.range.start)
    };
    if chunks.iter().all(is_row) {
        let mut builder = BlockBuilder::new(first.range.start);
        for chunk in chunks {
            builder.push(chunk.range.end - chunk.range.start)?;
        }
        return Ok(builder.finish());
    }
    let mut blocks: Vec<Block> = Vec::new();
    for chunk in chunks {
        let file_bytes = u32::try_from(chunk.range.end - chunk.range.start)
            .map_err(|_| "a chunk is larger than 4 GiB: write the file with a smaller `group_size`")?;
        let bytes = chunk.decoded_bytes.max(chunk.records * RECORD_OVERHEAD_BYTES);
        match blocks.last_mut() {
            Some(block)
                if block.bytes + bytes <= TARGET_BLOCK_BYTES
                    && u64::from(block.rows) + chunk.records <= MAX_BLOCK_ROWS as u64
                    && block.group.checked_add(file_bytes).is_some() =>
            {
                block.rows += chunk.records as u32;
                block.bytes += bytes;
                block.group += file_bytes;
            }
            _ => blocks.push(Block {
                rows: u32::try_from(chunk.records).map_err(|_| "a chunk has more than 2^32 records")?,
                offset: chunk.range.start,
                bytes,
                group: file_bytes,
                row_bytes: Vec::new(),
            }),
        }
    }
    Ok(blocks)
}

/// Reads the records of consecutive chunks. `limits` are those of the footer.
async fn read_span(object: &Object, range: Range<u64>, limits: RecordLimits) -> Result<RowSet, SourceError> {
    let bytes = object.read(range.clone()).await?;
    let corrupt = |(at, reason): (u64, String)| SourceError::corrupt(object.shard(), at, reason);
    let Range { start, end } = range;
    let decode = move || {
        let mut records = Records::new(limits);
        let mut at = start;
        while at < end {
            let (chunk, end) = read_chunk(&bytes, start, at).map_err(|reason| (at, reason))?;
            records.add(&chunk, at).map_err(|reason| (at, reason))?;
            at = end;
        }
        Ok::<_, (u64, String)>(records)
    };
    let decoded = off_runtime(end - start + limits.bytes, decode).await;
    let records = decoded.map_err(|reason| corrupt((start, reason)))?.map_err(corrupt)?;
    if records.left.records > 0 {
        let reason = format!(
            "the chunks have {} records, but the index expects {}: run `feedline index --rebuild`",
            records.rows.len(),
            limits.records
        );
        return Err(corrupt((start, reason)));
    }
    Ok(records.finish())
}

/// Reads some of the records of a block whose chunks have one record each.
async fn read_rows(object: &Object, read: &BlockRead<'_>, rows: &[u32]) -> Result<RowSet, SourceError> {
    let corrupt = |at: u64, reason: String| SourceError::corrupt(read.shard, at, reason);
    let split = |_: &[u8]| Ok(Vec::new());
    let encoded = crate::rows::fetch(object, read, split).await?;
    let file_bytes: u64 = encoded.rows.iter().map(|row| row.span.len as u64).sum();
    let count = encoded.rows.len();
    let decode = move || {
        let mut records = Records::new(RecordLimits::default());
        for (index, row) in encoded.rows.iter().enumerate() {
            records.left = RecordLimits { records: 1, bytes: row_limit(row.span.len as u64) };
            let (chunk, _) = read_chunk(encoded.bytes(index), row.offset, row.offset)
                .map_err(|reason| (row.offset, reason))?;
            records.add(&chunk, row.offset).map_err(|reason| (row.offset, reason))?;
        }
        Ok::<_, (u64, String)>(records)
    };
    let decoded = off_runtime(file_bytes, decode).await;
    let decoded = decoded.map_err(|reason| corrupt(read.block.offset, reason))?;
    let records = decoded.map_err(|(at, reason)| corrupt(at, reason))?;
    if count != rows.len() || records.rows.len() != rows.len() {
        let reason = "a chunk does not have one record: run `feedline index --rebuild`".to_owned();
        return Err(corrupt(read.block.offset, reason));
    }
    Ok(records.finish())
}

/// The records of several chunks in one buffer.
struct Records {
    bytes: Vec<u8>,
    rows: Vec<EncodedRow>,
    /// The records that may still be added.
    left: RecordLimits,
}

impl Records {
    fn new(left: RecordLimits) -> Self {
        Self { bytes: Vec::new(), rows: Vec::new(), left }
    }

    fn add(&mut self, chunk: &RecordChunk, offset: u64) -> Result<(), String> {
        let (values, sizes) = decode_records(chunk, self.left)?;
        self.left.bytes -= values.len() as u64;
        self.left.records -= sizes.len() as u64;
        let mut start = self.bytes.len();
        self.bytes.extend_from_slice(&values);
        for len in sizes {
            self.rows.push(EncodedRow { span: BufferSpan { buffer: 0, start, len }, offset });
            start += len;
        }
        Ok(())
    }

    fn finish(self) -> RowSet {
        RowSet { buffers: vec![Bytes::from(self.bytes)], rows: self.rows }
    }
}

/// Infers the columns from the records of these blocks, and from those of `sample`, which are the first ones. `None` if they are not examples.
async fn columns(
    object: &Object,
    blocks: &[Block],
    sample: &RowSet,
    selection: &Selection,
) -> Result<Option<Vec<ResolvedColumn>>, SourceError> {
    let mut scan = SchemaScan::new(selection);
    let mut are_examples = true;
    for row in 0..sample.rows.len().min(SAMPLED_ROWS) {
        are_examples &= scan
            .add_example(sample.bytes(row))
            .map_err(|reason| SourceError::corrupt(object.shard(), sample.rows[row].offset, reason))?;
    }
    // A feature with the name of the column would be ambiguous.
    let is_ambiguous = |found: &Vec<ResolvedColumn>| found.iter().any(|(name, _)| name == RECORD_COLUMN);
    if !are_examples || scan.columns().is_none_or(|found| found.is_empty() || is_ambiguous(&found)) {
        return Ok(None);
    }
    for block in blocks {
        let limits = RecordLimits { records: block.rows.into(), bytes: block_limit(block) };
        let rows = match read_span(object, block_range(block), limits).await {
            Ok(rows) => rows,
            // The rows fail when they are read.
            Err(SourceError::Corrupt { .. }) => continue,
            Err(error) => return Err(error),
        };
        for row in 0..rows.rows.len() {
            let example = rows.bytes(row);
            if !scan.knows(example) {
                scan.add_example(example)
                    .map_err(|reason| SourceError::corrupt(object.shard(), rows.rows[row].offset, reason))?;
            }
        }
    }
    Ok(scan.columns())
}

/// Returns the records as columns of bytes. `names` are the names of the columns in the data.
fn raw_columns(rows: &RowSet, read: &BlockRead<'_>, names: &[&str]) -> Result<DecodedBlock, SourceError> {
    let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
    let mut columns: Vec<ArrayRef> = Vec::new();
    for (field, name) in read.schema.fields.iter().zip(names) {
        if *name != RECORD_COLUMN {
            columns.push(null_column(&field.column_type, rows.rows.len()));
            continue;
        }
        let mut views = Views::binary(&rows.buffers, rows.rows.len());
        rows.rows.iter().try_for_each(|row| views.append(row.span)).map_err(corrupt)?;
        // Other datasets of a mix contain lists. Values become lists of one value.
        let values = cast_values(&views.finish(), &arrow_type(&field.column_type));
        columns.push(values.map_err(|error| corrupt(error.to_string()))?);
    }
    let batch = build_batch(read.schema, columns, rows.rows.len()).map_err(corrupt)?;
    let held_bytes = rows.held_bytes() + rows.rows.len() * 17;
    Ok(DecodedBlock { batch, failures: Vec::new(), held_bytes })
}

#[cfg(test)]
mod tests;
