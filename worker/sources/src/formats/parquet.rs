//! Parquet files. A block is a row group, or a part of a large row group.

mod block_pages;
mod bounded_pages;
mod chunk_pages;
mod dictionary_cache;
pub(super) mod fields;
mod fuzzed;
mod list_pages;
mod page_bytes;
mod page_codec;
mod page_locations;
mod page_parts;
mod reader;
mod row_reads;
mod thrift;
mod values;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::DataType;
use async_trait::async_trait;
use feedline_data::manifest::{Block, ColumnKind, ListPages, ShardIndex, ShardRef};
use feedline_data::schema::Schema;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use parquet::basic::{Compression, Type as PhysicalType};
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
use dictionary_cache::DictionaryCache;
use fields::{FileColumn, check_block_read, file_columns};
use page_bytes::PageBytes;
use page_codec::PageCodec;
use page_locations::{ListRows, PageLocations, PagesOfRows};
use reader::ObjectReader;
use row_reads::{INVALID_DATA, contained_read, read_rows, read_rows_of_pages};
use values::ROUNDED_NANOSECONDS;

pub use fuzzed::read_parquet_pages;

/// Maximum size of a row group that forms a single block.
const MAX_WHOLE_GROUP_BYTES: u64 = 16 << 20;
/// Target size of the blocks of a larger row group, if the file has a page index.
const TARGET_PART_BYTES: u64 = 4 << 20;

/// Maximum memory for the fixed-size parts of a block's values, unless a row needs more. Encoded values can be much smaller in the
/// file than in memory.
const MAX_BLOCK_VALUES_BYTES: u64 = 32 << 20;
/// Maximum number of rows in a row group.
const MAX_GROUP_ROWS: u64 = 1 << 31;
/// Maximum size of a row group after decompression.
const MAX_GROUP_BYTES: u64 = 1 << 40;

/// The footer of a shard.
pub(crate) struct ParquetFooter {
    metadata: ArrowReaderMetadata,
    pages: Arc<PageLocations>,
    /// The size of the metadata in memory.
    metadata_bytes: usize,
    columns: FileColumns,
    /// The fields of the file with their leaves.
    fields: Vec<FileColumn>,
}

impl CachedSize for ParquetFooter {
    fn held_bytes(&self) -> usize {
        self.metadata_bytes + self.pages.held_bytes()
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
    dictionaries: DictionaryCache,
}

impl ParquetReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { footers: ShardCache::new(memory), dictionaries: DictionaryCache::new(memory) }
    }

    async fn index_groups(
        &self,
        object: &Arc<Object>,
        selection: &Selection,
        list_rows: ListRows<'_>,
    ) -> Result<ShardIndex, SourceError> {
        let shard = object.shard().clone();
        let footer = self.footers.get(object, || read_footer(object.clone())).await?;
        let mut file_columns = file_columns(footer.metadata.schema().fields());
        let parquet = footer.metadata.parquet_schema();
        for column in &mut file_columns {
            let is_int96 = |leaf: usize| {
                leaf < parquet.num_columns() && parquet.column(leaf).physical_type() == PhysicalType::INT96
            };
            if column.leaves.clone().any(is_int96) {
                // Spark writes them in UTC, and other files with or without a time zone. The decoder has converted nanoseconds to
                // microseconds.
                (column.rounding, column.kind) = (Some(ROUNDED_NANOSECONDS), Some(ColumnKind::TIMESTAMPS));
            }
        }
        let (schema, columns) = footer.columns.shard_schema(&shard, file_columns, selection)?;
        let leaves = footer.leaves(&footer.columns.fields(&selection.data_names(&schema)));
        let (mut blocks, mut list_pages) = (Vec::new(), Vec::new());
        let corrupt = |reason: String| SourceError::corrupt(&shard, shard.size_bytes, reason);
        for group in 0..footer.metadata.metadata().num_row_groups() {
            let (group_blocks, group_pages) =
                footer.group_blocks(object, (group, &leaves), list_rows).await?;
            blocks.extend(group_blocks);
            list_pages.extend(group_pages);
            if blocks.len() > MAX_BLOCKS {
                return Err(corrupt(format!(
                    "the row groups exceed the limit of {MAX_BLOCKS} blocks: split the file"
                )));
            }
        }
        self.footers.recharge(&footer);
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, columns, list_pages, ..ShardIndex::default() })
    }

    async fn read_group(
        &self,
        object: &Arc<Object>,
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
        if first.checked_add(rows).is_none_or(|end| end > group_rows) {
            return Err(corrupt(
                "the index contains rows that the row group does not have: run `feedline index --rebuild`"
                    .to_owned(),
            ));
        }
        if names.is_empty() {
            return build_batch(&Schema::default(), Vec::new(), rows).map_err(corrupt);
        }
        let leaves = footer.leaves(names);
        let pages = footer.block_pages(object, read, &leaves, self.dictionaries.max_group_bytes()).await?;
        let group = block.group as usize;
        // A whole row group is read in one piece.
        let parted = leaves.iter().filter(|_| rows < group_rows);
        let ranges = parted
            .filter_map(|&leaf| Some((leaf, footer.pages.dictionary(metadata.metadata(), group, leaf)?)));
        let columns = metadata.parquet_schema().num_columns();
        let dictionaries = self.dictionaries.get(object, (group, columns), ranges).await?;
        let reader =
            ObjectReader::new(object.clone()).with_dictionaries(dictionaries).with_page_limit(pages.limit());
        let block_rows = first..first + rows;
        let column_pages = footer.pages_of_rows(group, &leaves, &block_rows).map_err(corrupt)?;
        let batches = contained_read(async {
            match column_pages {
                Some(pages) => read_rows_of_pages(metadata, reader.clone(), (group, pages), block_rows).await,
                None => read_rows(metadata, reader.clone(), (group, &leaves), block_rows).await,
            }
        });
        let batches = batches.await.map_err(|error| reader.error(&error, block.offset))?;
        let batch = match batches.as_slice() {
            [batch] => batch.clone(),
            [first, ..] => arrow::compute::concat_batches(first.schema_ref(), &batches)
                .map_err(|error| corrupt(error.to_string()))?,
            [] => RecordBatch::new_empty(metadata.schema().clone()),
        };
        if batch.num_rows() != rows {
            return Err(corrupt(format!(
                "the row group contains {} rows of the block, but the index expects {rows}: run `feedline index --rebuild`",
                batch.num_rows()
            )));
        }
        Ok(batch)
    }
}

#[async_trait]
impl FormatReader for ParquetReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits { has_divisible_blocks: true, ..SampleTraits::default() }
    }

    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        tables::list(reads, urls).await
    }

    async fn index_sample(
        &self,
        object: &Arc<Object>,
        selection: &Selection,
    ) -> Result<ShardIndex, SourceError> {
        self.index_groups(object, selection, ListRows::Unneeded).await
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        self.index_groups(object, selection, ListRows::Counted).await
    }

    async fn peak_bytes(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<u64, SourceError> {
        let footer = self.footers.get(object, || read_footer(object.clone())).await?;
        let leaves = footer.leaves(&footer.columns.fields(&selection.data_names(read.schema)));
        let pages = footer.block_pages(object, read, &leaves, self.dictionaries.max_group_bytes()).await?;
        self.footers.recharge(&footer);
        Ok(pages.memory())
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
        check_block_read(read)?;
        let fields = footer.columns.fields(&names);
        let data = self.read_group(object, read, &footer, &fields).await?;
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
    let pages = Arc::new(PageLocations::new(metadata.metadata(), metadata.schema()));
    let metadata_bytes = metadata.metadata().memory_size();
    let builder = ParquetMetaData::clone(metadata.metadata()).into_builder();
    let metadata = builder.set_page_index(Some(pages.clone())).build();
    let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), options)
        .map_err(|error| SourceError::unsupported(&shard, error.to_string()))?;
    let fields = fields::file_columns(metadata.schema().fields());
    if fields.last().map_or(0, |field| field.leaves.end) != metadata.parquet_schema().num_columns() {
        let reason = "the Arrow schema in the metadata does not match the columns: write the file again";
        return Err(SourceError::unsupported(&shard, reason));
    }
    let columns = FileColumns::new(metadata.schema())
        .map_err(|reason| SourceError::corrupt(&shard, shard.size_bytes, reason))?;
    Ok(ParquetFooter { metadata, pages, metadata_bytes, columns, fields })
}

impl ParquetFooter {
    /// Returns the sizes of the pages that a block needs. First locates the pages, if the block is a part of its row group.
    async fn block_pages(
        &self,
        object: &Object,
        read: &BlockRead<'_>,
        leaves: &[usize],
        max_cached_bytes: u64,
    ) -> Result<PageBytes, SourceError> {
        let (metadata, group) = (self.metadata.metadata(), read.block.group as usize);
        if group >= metadata.num_row_groups() {
            // The read returns the error.
            return Ok(PageBytes::default());
        }
        let (first, block_rows) = (read.block.offset, u64::from(read.block.rows));
        if block_rows < u64::try_from(metadata.row_group(group).num_rows()).unwrap_or(0) {
            self.pages.load(object, metadata, (group, leaves), ListRows::Indexed(read.list_pages())).await?;
        }
        let rows = first..first.saturating_add(block_rows);
        Ok(self.pages.page_bytes(metadata, group, leaves, &rows, max_cached_bytes))
    }

    /// Returns the pages of these rows in each column. `None` if the Parquet crate can read the rows, because it limits the sizes of
    /// the pages of all columns, and all known pages begin with rows. Fails if the metadata is invalid.
    fn pages_of_rows(
        &self,
        group: usize,
        leaves: &[usize],
        rows: &Range<usize>,
    ) -> Result<Option<Vec<(usize, PagesOfRows)>>, String> {
        let metadata = self.metadata.metadata();
        let Some(row_group) = metadata.row_groups().get(group) else { return Ok(None) };
        let is_whole = i64::try_from(rows.len()).is_ok_and(|rows| rows == row_group.num_rows());
        let is_limited = chunks(row_group, leaves).all(|chunk| PageCodec::of(chunk.compression()).is_none());
        if is_limited && (is_whole || !self.pages.has_divided_rows(group, leaves)) {
            return Ok(None);
        }
        let rows = rows.start as u64..rows.end as u64;
        let pages = |&leaf: &usize| {
            let pages = match is_whole {
                true => PagesOfRows::of_chunk(row_group.columns().get(leaf)?),
                false => self.pages.pages_of_rows(metadata, (group, leaf), &rows),
            };
            Some((leaf, pages?))
        };
        let pages: Option<Vec<_>> = leaves.iter().map(pages).collect();
        pages.map(Some).ok_or_else(|| INVALID_DATA.to_owned())
    }

    /// Divides a row group into blocks. The size of a block is the decompressed size of the requested columns. Also returns the
    /// pages of lists whose rows had to be counted.
    async fn group_blocks(
        &self,
        object: &Object,
        (group, leaves): (usize, &[usize]),
        list_rows: ListRows<'_>,
    ) -> Result<(Vec<Block>, Vec<ListPages>), SourceError> {
        let corrupt =
            |reason: String| SourceError::corrupt(object.shard(), object.shard().size_bytes, reason);
        let metadata = self.metadata.metadata();
        let row_group = metadata.row_group(group);
        let rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
        check_codecs(row_group, leaves).map_err(corrupt)?;
        let bytes = group_bytes(row_group, leaves);
        if rows > MAX_GROUP_ROWS || bytes > MAX_GROUP_BYTES {
            return Err(corrupt(format!(
                "the metadata of row group {group} has {rows} rows and {bytes} bytes: the file is corrupted"
            )));
        }
        let values_bytes =
            chunks(row_group, leaves).map(page_bytes::fixed_bytes).fold(0, u64::saturating_add);
        let max_rows =
            u128::from(MAX_BLOCK_VALUES_BYTES) * u128::from(rows) / u128::from(values_bytes.max(1));
        let max_rows = u64::try_from(max_rows).unwrap_or(u64::MAX).clamp(1, u32::MAX.into());
        let starts = if bytes <= MAX_WHOLE_GROUP_BYTES {
            vec![0]
        } else {
            self.part_starts(object, (group, leaves), (rows, bytes), list_rows).await?
        };
        let ends = starts.iter().skip(1).copied().chain([rows]);
        let mut blocks = Vec::with_capacity(starts.len());
        for (start, end) in starts.iter().copied().zip(ends) {
            for first in (start..end).step_by(max_rows as usize) {
                let block_rows = max_rows.min(end - first);
                blocks.push(Block {
                    rows: block_rows as u32,
                    offset: first,
                    bytes: (u128::from(bytes) * u128::from(block_rows) / u128::from(rows)) as u64,
                    group: group as u32,
                    row_bytes: Vec::new(),
                });
            }
        }
        let list_pages = self.pages.list_pages(group, leaves).filter(|_| blocks.len() > 1).collect();
        Ok((blocks, list_pages))
    }

    /// Returns the first rows of the blocks of a large row group.
    async fn part_starts(
        &self,
        object: &Object,
        (group, leaves): (usize, &[usize]),
        (rows, bytes): (u64, u64),
        list_rows: ListRows<'_>,
    ) -> Result<Vec<u64>, SourceError> {
        let metadata = self.metadata.metadata();
        let in_parts = |part_rows: u64| (0..rows).step_by(part_rows.max(1) as usize).collect();
        if self.pages.are_in_footer(group, leaves) {
            return Ok(in_parts((rows * TARGET_PART_BYTES / bytes).clamp(1, MAX_BLOCK_ROWS as u64)));
        }
        self.pages.load(object, metadata, (group, leaves), list_rows).await?;
        let page_bytes = |rows: Range<u64>| {
            self.pages
                .page_bytes(metadata, group, leaves, &rows, dictionary_cache::MAX_GROUP_BYTES)
                .unshared()
        };
        let group_bytes = page_bytes(0..rows);
        let mut part_bytes = TARGET_PART_BYTES;
        loop {
            let part_rows = (rows * part_bytes / bytes).max(1);
            let Some(starts) = self.pages.block_starts(metadata, group, leaves, part_rows) else {
                // Each block reads the whole columns whose pages are unknown, so blocks are larger.
                return Ok(in_parts(rows * MAX_WHOLE_GROUP_BYTES / bytes));
            };
            let ends = starts.iter().skip(1).copied().chain([rows]);
            let parts = starts.iter().copied().zip(ends).map(|(start, end)| start..end);
            let read_bytes: u64 = parts.map(page_bytes).sum();
            // Fewer pages belong to two blocks if the blocks are larger.
            if read_bytes <= group_bytes + group_bytes / 16 || part_bytes >= MAX_WHOLE_GROUP_BYTES {
                return Ok(starts);
            }
            part_bytes *= 2;
        }
    }
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

#[cfg(test)]
mod tests;
