//! Arrow IPC files and streams: each record batch is one block.

mod compression;
mod footer;
mod stream;
mod virtual_items;

use std::sync::Arc;

use arrow::array::Array;
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use bytes::Bytes;
use feedline_data::manifest::{Block, ShardIndex};

use super::parquet::fields::{check_block_read, file_columns};
use crate::cache::{ShardCache, ShardCacheMemory};
use crate::columns::build_batch;
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::Selection;

pub(crate) use footer::{ArrowFooter, MessageLocation};

use footer::without_panic;

/// Reads Arrow IPC files.
pub(super) struct ArrowReader {
    footers: ShardCache<ArrowFooter>,
}

impl ArrowReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { footers: ShardCache::new(memory) }
    }
}

#[async_trait]
impl FormatReader for ArrowReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let footer = self.footers.get(object, || read_footer(object)).await?;
        let (schema, columns) =
            footer.columns.shard_schema(shard, file_columns(footer.schema.fields()), selection)?;
        if footer.is_stream {
            return Ok(ShardIndex { columns, ..stream::index(object, schema).await? });
        }
        let (rows, is_compressed) = footer.batch_rows(object).await?;
        let ratio = if is_compressed { footer.sample_ratio(object, &rows).await? } else { 1.0 };
        let mut blocks = Vec::new();
        for (group, (batch, rows)) in footer.batches.iter().zip(rows).enumerate() {
            // An empty record batch is not a block.
            if rows > 0 {
                let bytes = ((batch.range().end - batch.range().start) as f64 * ratio) as u64;
                blocks.push(Block { rows, offset: 0, bytes, group: group as u32, row_bytes: Vec::new() });
            }
        }
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, columns, ..ShardIndex::default() })
    }

    /// The index contains only an estimate of the size of a compressed record batch.
    async fn fetch(&self, object: &Arc<Object>, read: &BlockRead<'_>) -> Result<Option<u64>, SourceError> {
        let footer = self.footers.get(object, || read_footer(object)).await?;
        let (location, bytes) = read_batch(object, &footer, read).await?;
        let offset = location.range().start;
        let decompressed_bytes = location.decompressed_bytes(&bytes);
        let decompressed_bytes =
            decompressed_bytes.map_err(|reason| SourceError::corrupt(read.shard, offset, reason))?;
        let stored_bytes = bytes.len() as u64;
        object.keep(offset, bytes);
        Ok(decompressed_bytes.map(|bytes| stored_bytes + bytes))
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let footer = self.footers.get(object, || read_footer(object)).await?;
        let names = selection.data_names(read.schema);
        check_block_read(read)?;
        let fields = footer.columns.fields(&names);
        let (location, bytes) = read_batch(object, &footer, read).await?;
        let corrupt = |reason: String| SourceError::corrupt(read.shard, location.range().start, reason);
        let decompressed_bytes = location.decompressed_bytes(&bytes).map_err(corrupt)?;
        let held_bytes = decompressed_bytes.map_or(bytes.len(), |bytes| bytes as usize);
        let data = footer.decode(&location, &Buffer::from(bytes), &fields).map_err(corrupt)?;
        let data = without_panic(|| virtual_items::expand(data)).map_err(corrupt)?;
        if data.num_rows() != read.block.rows as usize {
            return Err(corrupt(format!(
                "the record batch has {} rows, but the index expects {}: run `feedline index --rebuild`",
                data.num_rows(),
                read.block.rows
            )));
        }
        let (columns, failures) = footer.columns.columns(&data, read, &names).map_err(corrupt)?;
        // A converted column has a view for each row, or is a copy.
        let views_bytes = columns.len() * data.num_rows() * 17;
        let tensors =
            columns.iter().filter(|column| matches!(column.data_type(), DataType::FixedSizeList(..)));
        let copied_bytes: usize = tensors.map(|column| column.get_array_memory_size()).sum();
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        Ok(DecodedBlock { batch, failures, held_bytes: held_bytes + views_bytes + copied_bytes })
    }
}

/// Reads the footer of a file, or the header of a stream.
async fn read_footer(object: &Object) -> Result<ArrowFooter, SourceError> {
    match ArrowFooter::read(object).await? {
        Some(footer) => Ok(footer),
        None => stream::read_header(object).await,
    }
}

/// Reads the message of a block's record batch.
async fn read_batch(
    object: &Object,
    footer: &ArrowFooter,
    read: &BlockRead<'_>,
) -> Result<(MessageLocation, Bytes), SourceError> {
    let location = if footer.is_stream {
        None
    } else {
        let location = footer.batches.get(read.block.group as usize).copied();
        Some(location.ok_or_else(|| {
            let reason =
                "the index contains a record batch that the file does not have: run `feedline index --rebuild`";
            SourceError::corrupt(read.shard, 0, reason)
        })?)
    };
    match location {
        Some(location) => Ok((location, object.read(location.range()).await?)),
        None => stream::read_batch(object, read).await,
    }
}

#[cfg(test)]
mod tests;
