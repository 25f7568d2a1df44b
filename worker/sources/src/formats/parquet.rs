//! Apache Parquet: a block is a row group, or a part of a large one.

mod fields;
mod reader;
mod thrift;

use std::sync::Arc;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex};
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection, RowSelector};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, RowGroupMetaData};

use crate::blocks::MAX_BLOCK_ROWS;
use crate::cache::ShardCache;
use crate::columns::{arrow_type, build_batch};
use crate::error::SourceError;
use crate::limits::MAX_BLOCKS;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::{ResolvedColumn, Selection};

pub(crate) use fields::{column, fit, found};
use reader::ObjectReader;

/// Row groups up to this size are one block.
const LARGE_GROUP_BYTES: u64 = 16 << 20;
/// Aim for the parts of a large row group whose pages can be found one by one.
const PART_BYTES: u64 = 4 << 20;

/// Values of a block take no more than this, each counted by its size in memory, which may be far more than its size in the file.
const MAX_VALUES_BYTES: u64 = 256 << 20;
/// A value's place in memory at most, where it is of one size: a view.
const VALUE_BYTES: u64 = 16;
/// Maximum number of rows, and of bytes after decompression, of a row group.
const MAX_GROUP_ROWS: u64 = 1 << 31;
const MAX_GROUP_BYTES: u64 = 1 << 40;
/// Tolerance in bytes of page sizes beyond the sizes in the footer, because writers count differently.
const ROOM_BYTES: u64 = 64 << 20;

/// A shard's metadata.
pub(crate) struct ParquetFooter {
    metadata: ArrowReaderMetadata,
}

/// Reads Parquet files.
#[derive(Default)]
pub(super) struct ParquetReader {
    footers: ShardCache<ParquetFooter>,
}

#[async_trait]
impl FormatReader for ParquetReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard().clone();
        let footer = self.footers.get(&shard, || read_footer(object.clone())).await?;
        let schema = selection.schema(&shard, &fields::found(footer.metadata.schema().fields()))?;
        let names = selection.data_names(&schema);
        let mut blocks = Vec::new();
        let corrupt = |reason: String| SourceError::corrupt(&shard, shard.size_bytes, reason);
        for group in 0..footer.metadata.metadata().num_row_groups() {
            blocks.extend(group_blocks(footer.metadata.metadata(), group, &names).map_err(corrupt)?);
            if blocks.len() > MAX_BLOCKS {
                return Err(corrupt(format!(
                    "its row groups make more than {MAX_BLOCKS} blocks: split the file"
                )));
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
        if read.rows.is_some() {
            let reason = "rows can be chosen only where the index holds their sizes".to_owned();
            return Err(SourceError::Request { url: read.shard.url.clone(), reason });
        }
        let footer = self.footers.get(read.shard, || read_footer(object.clone())).await?;
        let corrupt = |reason: String| SourceError::corrupt(read.shard, read.block.offset, reason);
        let names = selection.data_names(read.schema);
        let known: Vec<ResolvedColumn> = fields::found(footer.metadata.schema().fields());
        if let Some(missing) = names.iter().find(|name| !known.iter().any(|(known, _)| known == *name)) {
            let reason = format!("it has no column `{missing}`, which other shards have");
            return Err(SourceError::SchemaMismatch { url: read.shard.url.clone(), reason });
        }
        let data = read_group(object.clone(), read, &footer.metadata, &names).await?;
        let mut columns = Vec::with_capacity(names.len());
        for (field, name) in read.schema.fields.iter().zip(&names) {
            let column = fields::column(&data, name)
                .ok_or_else(|| corrupt(format!("column `{name}` is not there")))?;
            let column = fields::fit(&column, &arrow_type(&field.column_type));
            columns.push(column.map_err(|reason| corrupt(format!("column `{name}`: {reason}")))?);
        }
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        let held_bytes = batch.get_array_memory_size();
        Ok(DecodedBlock { batch, failures: Vec::new(), held_bytes })
    }
}

async fn read_footer(object: Arc<Object>) -> Result<ParquetFooter, SourceError> {
    let shard = object.shard().clone();
    if shard.size_bytes < 12 {
        let reason =
            format!("{} bytes are not a Parquet file: write it again or remove it", shard.size_bytes);
        return Err(SourceError::corrupt(&shard, 0, reason));
    }
    let reader = ObjectReader::new(object).with_footer().await?;
    let options = ArrowReaderOptions::new().with_offset_index_policy(PageIndexPolicy::Optional);
    let mut loading = reader.clone();
    let metadata = ArrowReaderMetadata::load_async(&mut loading, options.clone()).await;
    let metadata = metadata.map_err(|error| reader.error(&error, shard.size_bytes))?;
    // Text and bytes are read as views, so that values are not copied.
    let options = options.with_schema(fields::with_views(metadata.schema()));
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options)
        .map_err(|error| SourceError::unsupported(&shard, error.to_string()))?;
    Ok(ParquetFooter { metadata })
}

/// The blocks of a row group. The size of a block is the decompressed size of the requested columns.
fn group_blocks(metadata: &ParquetMetaData, group: usize, names: &[&str]) -> Result<Vec<Block>, String> {
    let row_group = metadata.row_group(group);
    let rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
    let (bytes, columns) = group_bytes(row_group, names);
    if rows > MAX_GROUP_ROWS || bytes > MAX_GROUP_BYTES {
        return Err(format!("row group {group} claims {rows} rows and {bytes} bytes: the file is damaged"));
    }
    let has_pages =
        metadata.offset_index().and_then(|index| index.get(group)).is_some_and(|group| !group.is_empty());
    let rows_per_block = if bytes <= LARGE_GROUP_BYTES {
        rows.max(1)
    } else if has_pages {
        (rows * PART_BYTES / bytes).clamp(1, MAX_BLOCK_ROWS as u64)
    } else {
        // Without a page index each block reads whole columns, so fewer blocks are better.
        (rows * LARGE_GROUP_BYTES / bytes).max(1)
    };
    let most = MAX_VALUES_BYTES / (VALUE_BYTES * columns.max(1));
    let rows_per_block = rows_per_block.min(most.max(1));
    let part = |part| {
        let first = part * rows_per_block;
        let rows_here = rows_per_block.min(rows - first);
        Block {
            rows: rows_here as u32,
            offset: first,
            bytes: (u128::from(bytes) * u128::from(rows_here) / u128::from(rows)) as u64,
            group: group as u32,
            row_bytes: Vec::new(),
        }
    };
    Ok((0..rows.div_ceil(rows_per_block)).map(part).collect())
}

/// The decompressed size and the number of the requested columns of a row group, according to the footer.
fn group_bytes(row_group: &RowGroupMetaData, names: &[&str]) -> (u64, u64) {
    let wanted = row_group.columns().iter().filter(|column| is_wanted(column.column_path().parts(), names));
    wanted.fold((0, 0), |(bytes, columns), column| {
        let more = u64::try_from(column.uncompressed_size()).unwrap_or(0);
        (u64::saturating_add(bytes, more), columns + 1)
    })
}

/// Whether a leaf belongs to one of the named columns. `a.b` names field `b` of struct `a`.
fn is_wanted(parts: &[String], names: &[&str]) -> bool {
    let path = parts.join(".");
    names
        .iter()
        .any(|name| path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

async fn read_group(
    object: Arc<Object>,
    read: &BlockRead<'_>,
    metadata: &ArrowReaderMetadata,
    names: &[&str],
) -> Result<RecordBatch, SourceError> {
    let block = read.block;
    let corrupt = |reason: String| SourceError::corrupt(read.shard, block.offset, reason);
    let groups = metadata.metadata().row_groups();
    let group_rows = groups.get(block.group as usize).map_or(0, |group| group.num_rows().max(0) as usize);
    let (first, rows) = (block.offset as usize, block.rows as usize);
    if first + rows > group_rows {
        return Err(corrupt(
            "the index reaches beyond the row group: run `feedline index --rebuild`".to_owned(),
        ));
    }
    if names.is_empty() {
        return build_batch(read.schema, Vec::new(), rows).map_err(corrupt);
    }
    let parquet_schema = metadata.parquet_schema();
    let leaves = (0..parquet_schema.num_columns())
        .filter(|&leaf| is_wanted(parquet_schema.column(leaf).path().parts(), names));
    let mask = ProjectionMask::leaves(parquet_schema, leaves);
    let selectors = vec![
        RowSelector::skip(first),
        RowSelector::select(rows),
        RowSelector::skip(group_rows - first - rows),
    ];
    let bytes = groups.get(block.group as usize).map_or(0, |group| group_bytes(group, names).0);
    let reader = ObjectReader::new(object).with_room(bytes.saturating_mul(2).saturating_add(ROOM_BYTES));
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader.clone(), metadata.clone())
        .with_row_groups(vec![block.group as usize])
        .with_projection(mask)
        .with_batch_size(rows);
    if rows < group_rows {
        builder = builder.with_row_selection(RowSelection::from(selectors));
    }
    let stream = builder.build().map_err(|error| reader.error(&error, block.offset))?;
    let schema = stream.schema().clone();
    let batches: Vec<RecordBatch> =
        stream.try_collect().await.map_err(|error| reader.error(&error, block.offset))?;
    let batch = match batches.as_slice() {
        [batch] => batch.clone(),
        many => arrow::compute::concat_batches(&schema, many).map_err(|error| corrupt(error.to_string()))?,
    };
    if batch.num_rows() != rows {
        return Err(corrupt(format!("{} rows came where {rows} were indexed", batch.num_rows())));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests;
