//! Parquet files. A block is a row group, or a part of a large row group.

pub(super) mod fields;
mod pages;
mod reader;
mod thrift;
mod values;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use feedline_contained::contained;
use feedline_data::manifest::{Block, ShardIndex, ShardRef};
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions, RowSelection, RowSelector};
use parquet::arrow::async_reader::ParquetRecordBatchStreamBuilder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, RowGroupMetaData};

use crate::blocks::MAX_BLOCK_ROWS;
use crate::cache::{CachedSize, ShardCache, ShardCacheMemory};
use crate::columns::build_batch;
use crate::error::SourceError;
use crate::limits::MAX_BLOCKS;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleTraits};
use crate::select::Selection;
use crate::stores::ScopedStores;
use crate::tables;

use super::features::FileColumns;
use fields::{FileColumn, check_block_read};
use pages::{INVALID_DATA, ReadChunk};
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
    columns: FileColumns,
    /// The fields of the file with their leaves.
    fields: Vec<FileColumn>,
}

impl CachedSize for ParquetFooter {
    fn held_bytes(&self) -> usize {
        self.metadata.metadata().memory_size()
    }
}

impl ParquetFooter {
    /// Returns the leaf columns of the named fields in ascending order. The decoder reads the keys and values of a map only together,
    /// so all leaves of a field with a map are read.
    fn leaves(&self, names: &[&str]) -> Vec<usize> {
        let is_within = |name: &str, root: &str| {
            name.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let roots = self.metadata.schema().fields().iter().filter(|field| contains_map(field.data_type()));
        let roots = roots.map(|field| field.name().as_str());
        let maps: Vec<&str> = roots.filter(|root| names.iter().any(|name| is_within(name, root))).collect();
        let is_wanted = |field: &&FileColumn| {
            let name = field.name.as_str();
            names.contains(&name) || maps.iter().any(|root| is_within(name, root))
        };
        self.fields.iter().filter(is_wanted).flat_map(|field| field.leaves.clone()).collect()
    }
}

/// Whether a type is or contains a map.
fn contains_map(data_type: &DataType) -> bool {
    match data_type {
        DataType::Map(..) => true,
        DataType::Struct(fields) => fields.iter().any(|field| contains_map(field.data_type())),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            contains_map(item.data_type())
        }
        _ => false,
    }
}

/// Reads Parquet files.
pub(super) struct ParquetReader {
    footers: ShardCache<ParquetFooter>,
}

impl ParquetReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { footers: ShardCache::new(memory) }
    }
}

#[async_trait]
impl FormatReader for ParquetReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits { has_divisible_blocks: true, requires_columns: true, ..SampleTraits::default() }
    }

    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        tables::list(reads, urls).await
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard().clone();
        let footer = self.footers.get(object, || read_footer(object.clone())).await?;
        let schema = footer.columns.shard_schema(&shard, footer.metadata.schema().fields(), selection)?;
        let leaves = footer.leaves(&footer.columns.fields(&selection.data_names(&schema)));
        let mut blocks = Vec::new();
        let corrupt = |reason: String| SourceError::corrupt(&shard, shard.size_bytes, reason);
        for group in 0..footer.metadata.metadata().num_row_groups() {
            blocks.extend(group_blocks(footer.metadata.metadata(), group, &leaves).map_err(corrupt)?);
            if blocks.len() > MAX_BLOCKS {
                return Err(corrupt(format!(
                    "the row groups exceed the limit of {MAX_BLOCKS} blocks: split the file"
                )));
            }
        }
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, defects: Vec::new(), ..ShardIndex::default() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let footer = self.footers.get(object, || read_footer(object.clone())).await?;
        let corrupt = |reason: String| SourceError::corrupt(read.shard, read.block.offset, reason);
        let names = selection.data_names(read.schema);
        let fields = footer.columns.fields(&names);
        check_block_read(read, &fields, footer.metadata.schema().fields())?;
        let data = read_group(object.clone(), read, &footer, &fields).await?;
        let (columns, failures) = footer.columns.columns(&data, read, &names).map_err(corrupt)?;
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        let held_bytes = batch.get_array_memory_size();
        Ok(DecodedBlock { batch, failures, held_bytes })
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
    let options = options.with_schema(fields::decoding_schema(metadata.schema(), metadata.parquet_schema()));
    let metadata = ArrowReaderMetadata::try_new(metadata.metadata().clone(), options)
        .map_err(|error| SourceError::unsupported(&shard, error.to_string()))?;
    let fields = fields::file_columns(metadata.schema().fields());
    if fields.last().map_or(0, |field| field.leaves.end) != metadata.parquet_schema().num_columns() {
        let reason = "the Arrow schema in the metadata does not match the columns: write the file again";
        return Err(SourceError::unsupported(&shard, reason));
    }
    let columns = FileColumns::new(metadata.schema())
        .map_err(|reason| SourceError::corrupt(&shard, shard.size_bytes, reason))?;
    Ok(ParquetFooter { metadata, columns, fields })
}

/// Completes a read of the Parquet library. Converts a panic to an error, because the library panics on some corrupted files.
async fn contained_read<T>(
    read: impl Future<Output = Result<T, ParquetError>> + Send,
) -> Result<T, ParquetError> {
    let mut read = pin!(read);
    poll_fn(|context| {
        contained(|| Ok(read.as_mut().poll(context)), INVALID_DATA)
            .unwrap_or_else(|reason| Poll::Ready(Err(ParquetError::General(reason))))
    })
    .await
}

/// Divides a row group into blocks. The size of a block is the decompressed size of the requested columns.
fn group_blocks(metadata: &ParquetMetaData, group: usize, leaves: &[usize]) -> Result<Vec<Block>, String> {
    let row_group = metadata.row_group(group);
    let rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
    check_codecs(row_group, leaves)?;
    let (bytes, columns) = (group_bytes(row_group, leaves), leaves.len() as u64);
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

/// Returns the decompressed size of the leaf columns in a row group, according to the footer.
fn group_bytes(row_group: &RowGroupMetaData, leaves: &[usize]) -> u64 {
    let sizes = chunks(row_group, leaves).map(|chunk| u64::try_from(chunk.uncompressed_size()).unwrap_or(0));
    sizes.fold(0, u64::saturating_add)
}

fn chunks<'a>(
    row_group: &'a RowGroupMetaData,
    leaves: &'a [usize],
) -> impl Iterator<Item = &'a ColumnChunkMetaData> {
    leaves.iter().filter_map(|&leaf| row_group.columns().get(leaf))
}

/// Checks that the codecs of the columns are supported.
fn check_codecs(row_group: &RowGroupMetaData, leaves: &[usize]) -> Result<(), String> {
    let lzo = chunks(row_group, leaves).find(|chunk| chunk.compression() == Compression::LZO);
    lzo.map_or(Ok(()), |chunk| {
        let column = chunk.column_path().string();
        Err(format!(
            "column `{column}` is compressed with LZO, which is not supported: write the file with zstd or snappy"
        ))
    })
}

async fn read_group(
    object: Arc<Object>,
    read: &BlockRead<'_>,
    footer: &ParquetFooter,
    names: &[&str],
) -> Result<RecordBatch, SourceError> {
    let block = read.block;
    let corrupt = |reason: String| SourceError::corrupt(read.shard, block.offset, reason);
    let metadata = &footer.metadata;
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
    let leaves = footer.leaves(names);
    let mask = ProjectionMask::leaves(metadata.parquet_schema(), leaves.iter().copied());
    let selectors = vec![
        RowSelector::skip(first),
        RowSelector::select(rows),
        RowSelector::skip(group_rows - first - rows),
    ];
    let row_group = groups.get(block.group as usize);
    let bytes = row_group.map_or(0, |group| group_bytes(group, &leaves));
    let read_chunks = row_group.into_iter().flat_map(|group| chunks(group, &leaves)).map(ReadChunk::new);
    let read_chunks: Vec<ReadChunk> = read_chunks.collect::<Result<_, _>>().map_err(corrupt)?;
    let reader = ObjectReader::new(object)
        .with_page_limit(bytes.saturating_mul(2).saturating_add(PAGE_SIZE_TOLERANCE_BYTES))
        .with_chunks(read_chunks.into_iter());
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
