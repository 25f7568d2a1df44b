//! NumPy `.npy` files. Each index of the first axis is one row with the column `data`.
//!
//! A file consists of the magic bytes, the version (two bytes), the header length (u16, or u32 since version 2), the header (a
//! Python dict), and the elements of the array. In C order, rows are contiguous. In Fortran order, the rows of a block are
//! read with one range per element of a row.

pub(super) mod elements;
mod fortran;
pub(crate) mod header;

use std::ops::Range;
use std::sync::Arc;

use arrow::buffer::Buffer;
use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};

use crate::blocks::BlockBuilder;
use crate::cache::{CachedSize, ShardCache, ShardCacheMemory};
use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::{cast_exact, row_failures};
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows::{self, RowSet};
use crate::select::{InferenceNotes, Selection};

use header::{MAX_HEADER_END, NpyHeader, NpyHeaderError};

/// The only column.
const DATA_COLUMN: &str = "data";

impl CachedSize for NpyHeader {
    fn held_bytes(&self) -> usize {
        0
    }
}

/// Reads NumPy files.
pub(super) struct NpyReader {
    headers: ShardCache<NpyHeader>,
}

impl NpyReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { headers: ShardCache::new(memory) }
    }
}

#[async_trait]
impl FormatReader for NpyReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let header = self.headers.get(object, || read_header(object)).await?;
        let unsupported = |reason: String| SourceError::unsupported(shard, reason);
        let blocks = if header.is_fortran {
            fortran::blocks(&header).map_err(unsupported)?
        } else {
            let mut builder = BlockBuilder::new(header.data_start);
            for _ in 0..header.rows {
                builder.push(header.row_bytes).map_err(unsupported)?;
            }
            builder.finish()
        };
        let found = [(DATA_COLUMN.to_owned(), Ok(header.column_type.clone()))];
        let (schema, columns) = selection.resolve_fixed(shard, &found, &InferenceNotes::default())?;
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, columns, ..ShardIndex::default() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let header = self.headers.get(object, || read_header(object)).await?;
        let (bytes, rows, held_bytes) = if header.is_fortran {
            let bytes = fortran::read(object, read, &header).await?;
            let held_bytes = bytes.len();
            (bytes, None, held_bytes)
        } else {
            let row_bytes = header.row_bytes as usize;
            let split = |bytes: &[u8]| {
                Ok((0..bytes.len() / row_bytes).map(|row| row_range(row, row_bytes)).collect())
            };
            let rows = rows::fetch(object, read, split).await?;
            let held_bytes = rows.held_bytes();
            (contiguous_bytes(&rows), Some(rows), held_bytes)
        };
        let count = rows.as_ref().map_or(read.block.rows as usize, |rows| rows.rows.len());
        let offset = |row: usize| rows.as_ref().map_or(read.block.offset, |rows| rows.rows[row].offset);
        let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
        let mut columns = Vec::new();
        let mut failures = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(selection.data_names(read.schema)) {
            if name != DATA_COLUMN {
                columns.push(null_column(&field.column_type, count));
                continue;
            }
            let values = elements::column(&header, bytes.clone()).map_err(corrupt)?;
            let (values, inexact) = cast_exact(&values, &arrow_type(&field.column_type)).map_err(corrupt)?;
            failures = row_failures(DATA_COLUMN, inexact, offset);
            columns.push(values);
        }
        let batch = build_batch(read.schema, columns, count).map_err(corrupt)?;
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

fn row_range(row: usize, row_bytes: usize) -> Range<usize> {
    row * row_bytes..(row + 1) * row_bytes
}

async fn read_header(object: &Arc<Object>) -> Result<NpyHeader, SourceError> {
    /// Size of the first read, which contains the headers of most files. A typical header is 118 bytes long.
    const FIRST_READ_BYTES: u64 = 4 << 10;
    let size = object.size_bytes();
    let start = object.read(0..size.min(FIRST_READ_BYTES)).await?;
    let start = match header::header_range(&start) {
        Ok(range) if range.end > FIRST_READ_BYTES => object.read(0..size.min(MAX_HEADER_END)).await?,
        _ => start,
    };
    NpyHeader::parse(&start, size).map_err(|error| header_error(object.shard(), error))
}

fn header_error(shard: &ShardRef, error: NpyHeaderError) -> SourceError {
    match error.offset {
        Some(offset) => SourceError::corrupt(shard, offset, error.reason),
        None => SourceError::unsupported(shard, error.reason),
    }
}

/// Returns the bytes of all rows in one buffer. Copies them only if they are not contiguous.
fn contiguous_bytes(rows: &RowSet) -> Buffer {
    let row_bytes: usize = rows.rows.iter().map(|row| row.span.len).sum();
    match rows.buffers.as_slice() {
        [whole] if whole.len() == row_bytes => Buffer::from(whole.clone()),
        _ => {
            let mut bytes = Vec::with_capacity(row_bytes);
            (0..rows.rows.len()).for_each(|row| bytes.extend_from_slice(rows.bytes(row)));
            Buffer::from_vec(bytes)
        }
    }
}

#[cfg(test)]
mod tests;
