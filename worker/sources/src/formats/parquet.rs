//! Parquet files. A block is a row group, or a part of a large row group.

mod fields;
mod reader;
mod thrift;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use async_trait::async_trait;
use feedline_contained::contained;
use feedline_data::manifest::{Block, ShardIndex};
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection, RowSelector};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData, RowGroupMetaData};

use crate::blocks::MAX_BLOCK_ROWS;
use crate::cache::ShardCache;
use crate::columns::{arrow_type, build_batch};
use crate::error::SourceError;
use crate::limits::MAX_BLOCKS;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::Selection;

pub(crate) use fields::{cast_column, check_block_read, find_column, resolve_columns};
use reader::ObjectReader;

/// Maximum size of a row group that forms a single block.
const MAX_WHOLE_GROUP_BYTES: u64 = 16 << 20;
/// Target size of the blocks of a larger row group, if the file has a page index.
const TARGET_PART_BYTES: u64 = 4 << 20;

/// Maximum memory for the fixed-size parts of a block's values. Encoded values can be much smaller in the file than in memory.
const MAX_BLOCK_VALUES_BYTES: u64 = 256 << 20;
/// Size of the largest fixed-size part of a value in memory, which is a view.
const VIEW_BYTES: u64 = 16;
/// Maximum number of rows in a row group.
const MAX_GROUP_ROWS: u64 = 1 << 31;
/// Maximum size of a row group after decompression.
const MAX_GROUP_BYTES: u64 = 1 << 40;
/// Maximum number of bytes by which the pages may exceed the size in the footer, because writers count sizes differently.
const PAGE_SIZE_TOLERANCE_BYTES: u64 = 64 << 20;

/// The footer of a shard.
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
        let schema = selection.schema(&shard, &fields::resolve_columns(footer.metadata.schema().fields()))?;
        let names = selection.data_names(&schema);
        let mut blocks = Vec::new();
        let corrupt = |reason: String| SourceError::corrupt(&shard, shard.size_bytes, reason);
        for group in 0..footer.metadata.metadata().num_row_groups() {
            blocks.extend(group_blocks(footer.metadata.metadata(), group, &names).map_err(corrupt)?);
            if blocks.len() > MAX_BLOCKS {
                return Err(corrupt(format!(
                    "the row groups exceed the limit of {MAX_BLOCKS} blocks: split the file"
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
        let footer = self.footers.get(read.shard, || read_footer(object.clone())).await?;
        let corrupt = |reason: String| SourceError::corrupt(read.shard, read.block.offset, reason);
        let names = selection.data_names(read.schema);
        check_block_read(read, &names, footer.metadata.schema().fields())?;
        let data = read_group(object.clone(), read, &footer.metadata, &names).await?;
        let mut columns = Vec::with_capacity(names.len());
        for (field, name) in read.schema.fields.iter().zip(&names) {
            let column = fields::find_column(&data, name)
                .ok_or_else(|| corrupt(format!("the row group has no column `{name}`")))?;
            let column = fields::cast_column(&column, &arrow_type(&field.column_type));
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
        let reason = format!(
            "the file is only {} bytes long and cannot be a Parquet file: write the file again, or remove it",
            shard.size_bytes
        );
        return Err(SourceError::corrupt(&shard, 0, reason));
    }
    let reader = ObjectReader::new(object).with_footer().await?;
    let options = ArrowReaderOptions::new().with_offset_index_policy(PageIndexPolicy::Optional);
    let metadata =
        contained_read(ArrowReaderMetadata::load_async(&mut reader.clone(), options.clone())).await;
    let metadata = metadata.map_err(|error| reader.error(&error, shard.size_bytes))?;
    // Read text and bytes as views, so that values are not copied.
    let options = options.with_schema(fields::with_views(metadata.schema()));
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options)
        .map_err(|error| SourceError::unsupported(&shard, error.to_string()))?;
    Ok(ParquetFooter { metadata })
}

/// Completes a read of the Parquet library. Converts a panic to an error, because the library panics on some corrupted files.
async fn contained_read<T>(
    read: impl Future<Output = Result<T, ParquetError>> + Send,
) -> Result<T, ParquetError> {
    let mut read = pin!(read);
    poll_fn(|context| {
        contained(|| Ok(read.as_mut().poll(context)), "the Parquet data is invalid: the file is corrupted")
            .unwrap_or_else(|reason| Poll::Ready(Err(ParquetError::General(reason))))
    })
    .await
}

/// Divides a row group into blocks. The size of a block is the decompressed size of the requested columns.
fn group_blocks(metadata: &ParquetMetaData, group: usize, names: &[&str]) -> Result<Vec<Block>, String> {
    let row_group = metadata.row_group(group);
    let rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
    let (bytes, columns) = group_bytes(row_group, names);
    if rows > MAX_GROUP_ROWS || bytes > MAX_GROUP_BYTES {
        return Err(format!(
            "the metadata of row group {group} has {rows} rows and {bytes} bytes: the file is corrupted"
        ));
    }
    let pages = metadata.page_index_for_row_group(group);
    let has_pages = row_group.num_columns() > 0
        && (0..row_group.num_columns()).all(|column| pages.offset_index(column).is_some());
    let rows_per_block = if bytes <= MAX_WHOLE_GROUP_BYTES {
        rows.max(1)
    } else if has_pages {
        (rows * TARGET_PART_BYTES / bytes).clamp(1, MAX_BLOCK_ROWS as u64)
    } else {
        // Without a page index, each block reads the whole columns of the row group, so blocks are larger.
        (rows * MAX_WHOLE_GROUP_BYTES / bytes).max(1)
    };
    let max_rows = MAX_BLOCK_VALUES_BYTES / (VIEW_BYTES * columns.max(1));
    let rows_per_block = rows_per_block.min(max_rows.max(1));
    let part = |part| {
        let first = part * rows_per_block;
        let block_rows = rows_per_block.min(rows - first);
        Block {
            rows: block_rows as u32,
            offset: first,
            bytes: (u128::from(bytes) * u128::from(block_rows) / u128::from(rows)) as u64,
            group: group as u32,
            row_bytes: Vec::new(),
        }
    };
    Ok((0..rows.div_ceil(rows_per_block)).map(part).collect())
}

/// Returns the decompressed size and the number of the requested columns in a row group, according to the footer.
fn group_bytes(row_group: &RowGroupMetaData, names: &[&str]) -> (u64, u64) {
    let wanted =
        row_group.columns().iter().filter(|column| is_requested(column.column_path().parts(), names));
    wanted.fold((0, 0), |(bytes, columns), column| {
        let more = u64::try_from(column.uncompressed_size()).unwrap_or(0);
        (u64::saturating_add(bytes, more), columns + 1)
    })
}

/// Whether a leaf column belongs to one of the requested columns. `a.b` is field `b` of struct `a`.
fn is_requested(parts: &[String], names: &[&str]) -> bool {
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
            "the index contains rows that the row group does not have: run `feedline index --rebuild`"
                .to_owned(),
        ));
    }
    if names.is_empty() {
        return build_batch(read.schema, Vec::new(), rows).map_err(corrupt);
    }
    let parquet_schema = metadata.parquet_schema();
    let leaves = (0..parquet_schema.num_columns())
        .filter(|&leaf| is_requested(parquet_schema.column(leaf).path().parts(), names));
    let mask = ProjectionMask::leaves(parquet_schema, leaves);
    let selectors = vec![
        RowSelector::skip(first),
        RowSelector::select(rows),
        RowSelector::skip(group_rows - first - rows),
    ];
    let bytes = groups.get(block.group as usize).map_or(0, |group| group_bytes(group, names).0);
    let reader = ObjectReader::new(object)
        .with_page_limit(bytes.saturating_mul(2).saturating_add(PAGE_SIZE_TOLERANCE_BYTES));
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader.clone(), metadata.clone())
        .with_row_groups(vec![block.group as usize])
        .with_projection(mask)
        .with_batch_size(rows);
    if rows < group_rows {
        builder = builder.with_row_selection(RowSelection::from(selectors));
    }
    let batches = contained_read(async {
        let stream = builder.build()?;
        let schema = stream.schema().clone();
        Ok((schema, stream.try_collect::<Vec<RecordBatch>>().await?))
    });
    let (schema, batches) = batches.await.map_err(|error| reader.error(&error, block.offset))?;
    let batch = match batches.as_slice() {
        [batch] => batch.clone(),
        many => arrow::compute::concat_batches(&schema, many).map_err(|error| corrupt(error.to_string()))?,
    };
    if batch.num_rows() != rows {
        return Err(corrupt(format!(
            "the row group contains {} rows of the block, but the index expects {rows}: run `feedline index --rebuild`",
            batch.num_rows()
        )));
    }
    Ok(batch)
}

#[cfg(test)]
mod tests;
