//! Arrow IPC files: each record batch is one block.

mod footer;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex};

use super::parquet::{cast_column, check_block_read, find_column, resolve_columns};
use crate::cache::ShardCache;
use crate::columns::{arrow_type, build_batch};
use crate::error::SourceError;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::Selection;

pub(crate) use footer::ArrowFooter;

/// Reads Arrow IPC files.
#[derive(Default)]
pub(super) struct ArrowReader {
    footers: ShardCache<ArrowFooter>,
}

#[async_trait]
impl FormatReader for ArrowReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let footer = self.footers.get(shard, || ArrowFooter::read(object)).await?;
        let schema = selection.schema(shard, &resolve_columns(footer.schema.fields()))?;
        let rows = footer.batch_rows(object).await?;
        let mut blocks = Vec::new();
        for (group, (batch, rows)) in footer.batches.iter().zip(rows).enumerate() {
            // An empty record batch is not a block.
            if rows > 0 {
                let bytes = batch.range().end - batch.range().start;
                blocks.push(Block { rows, offset: 0, bytes, group: group as u32, row_bytes: Vec::new() });
            }
        }
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, defects: Vec::new() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let footer = self.footers.get(read.shard, || ArrowFooter::read(object)).await?;
        let Some(location) = footer.batches.get(read.block.group as usize) else {
            let reason = "the index contains a record batch that the file does not have: run `feedline index --rebuild`";
            return Err(SourceError::corrupt(read.shard, 0, reason));
        };
        let corrupt = |reason: String| SourceError::corrupt(read.shard, location.range().start, reason);
        let names = selection.data_names(read.schema);
        check_block_read(read, &names, footer.schema.fields())?;
        let bytes = object.read(location.range()).await?;
        let held_bytes = bytes.len();
        let data: RecordBatch = footer.decode(location, &Buffer::from(bytes), &names).map_err(corrupt)?;
        if data.num_rows() != read.block.rows as usize {
            return Err(corrupt(format!(
                "the record batch has {} rows, but the index expects {}: run `feedline index --rebuild`",
                data.num_rows(),
                read.block.rows
            )));
        }
        let mut columns = Vec::with_capacity(names.len());
        let mut converted_bytes = 0;
        for (field, name) in read.schema.fields.iter().zip(&names) {
            let original = find_column(&data, name)
                .ok_or_else(|| corrupt(format!("the record batch has no column `{name}`")))?;
            let target = arrow_type(&field.column_type);
            let converted = cast_column(&original, &target)
                .map_err(|reason| corrupt(format!("column `{name}`: {reason}")))?;
            if original.data_type() != &target {
                converted_bytes += converted.len() * 17;
            }
            columns.push(converted);
        }
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        Ok(DecodedBlock { batch, failures: Vec::new(), held_bytes: held_bytes + converted_bytes })
    }
}

#[cfg(test)]
mod tests;
