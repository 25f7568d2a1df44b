//! The locations of the pages of large row groups, so that a block reads only its pages. Many writers store no page index. In
//! this case, the headers of the pages are read once per column chunk, and the pages of lists while indexing.

use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use arrow::datatypes::{DataType, Schema};
use feedline_contained::contained;
use feedline_data::manifest::ListPages;
use futures::{StreamExt, TryStreamExt};
use parquet::basic::Compression;
use parquet::file::metadata::page_index::PageIndexProvider;
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::page_index::offset_index::{OffsetIndexMetaData, PageLocation};
use tokio::sync::{OnceCell, Semaphore};

use super::chunk_pages::{ChunkPages, MAX_PAGES, read_headers};
use super::list_pages::count_list_rows;
use super::page_bytes::{PageBytes, fixed_bytes, has_views};
use crate::error::SourceError;
use crate::object::Object;

/// Maximum number of pages of lists of a shard whose rows are counted.
const MAX_LIST_PAGES: usize = 1 << 20;
/// Size of an offset of a list in memory, and of the bits of nulls.
const OFFSET_BYTES: u64 = 8;
/// Maximum number of column chunks of a row group whose headers are read at the same time.
const MAX_CONCURRENT_CHUNKS: usize = 8;

/// The pages of a column chunk after its headers were read, or `None` if its pages remain unknown.
type WalkedChunk = OnceCell<Option<ChunkPages>>;

/// The page index of a shard: from its footer, or from the headers of its pages.
#[derive(Debug)]
pub(super) struct PageLocations {
    /// The index in the footer.
    footer: Option<Arc<dyn PageIndexProvider>>,
    /// The column chunks of each row group whose headers were read.
    groups: Vec<OnceLock<Box<[WalkedChunk]>>>,
    /// The number of values in a row of each column. `None` for lists of variable length.
    row_values: Vec<Option<u64>>,
    /// The size of `groups` in memory.
    held_bytes: AtomicUsize,
    /// The pages of one column chunk at a time are decompressed to count their rows.
    counting: Semaphore,
    /// Number of pages of lists whose rows may still be counted.
    countable_pages: AtomicUsize,
}

/// Where the rows of pages of lists come from, if the headers of the pages do not contain their number.
#[derive(Debug, Clone, Copy)]
pub(super) enum ListRows<'a> {
    /// The pages are read and their rows are counted, while the shard is indexed.
    Counted,
    /// The index of the shard contains them.
    Indexed(&'a [ListPages]),
    /// They are not needed, because only the first rows of the shard are read.
    Unneeded,
}

/// Why the pages of a column chunk are unknown.
enum LoadStop {
    Failed(SourceError),
    /// Their rows were not counted.
    NotCounted,
}

impl From<SourceError> for LoadStop {
    fn from(error: SourceError) -> Self {
        Self::Failed(error)
    }
}

/// The pages of a column chunk that contain a range of rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PagesOfRows {
    /// The byte ranges of the dictionary, if there is one, and of the data pages in the file; or that of the whole chunk.
    pub(super) ranges: Vec<Range<u64>>,
    /// The number of rows before those in `ranges`. A row of which `ranges` contain only the end is one of the rows in `ranges`.
    pub(super) skipped_rows: u64,
}

impl PagesOfRows {
    /// Returns all pages of a column chunk. `None` if the metadata is invalid.
    pub(super) fn of_chunk(chunk: &ColumnChunkMetaData) -> Option<Self> {
        let (start, length) = contained(|| Ok(chunk.byte_range()), "the offset is negative").ok()?;
        let range = start..start.checked_add(length)?;
        Some(Self { ranges: vec![range], skipped_rows: 0 })
    }
}

impl PageIndexProvider for PageLocations {
    fn has_offset_indexes(&self) -> bool {
        true
    }

    fn has_column_indexes(&self) -> bool {
        false
    }

    fn column_index(&self, _group: usize, _column: usize) -> Option<&ColumnIndexMetaData> {
        None
    }

    /// The Parquet crate assumes that pages begin with rows.
    fn offset_index(&self, group: usize, column: usize) -> Option<&OffsetIndexMetaData> {
        self.located(group, column).filter(|_| !self.has_divided_rows(group, &[column]))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PageLocations {
    pub(super) fn new(metadata: &ParquetMetaData, schema: &Schema) -> Self {
        let groups = (0..metadata.num_row_groups()).map(|_| OnceLock::new()).collect();
        let columns = metadata.file_metadata().schema_descr();
        let row_values = |column: usize| match columns.column(column).max_rep_level() {
            0 => Some(1),
            1 => match schema.fields().get(columns.get_column_root_idx(column))?.data_type() {
                DataType::FixedSizeList(_, length) => {
                    u64::try_from(*length).ok().filter(|length| *length > 0)
                }
                _ => None,
            },
            _ => None,
        };
        let row_values = (0..columns.num_columns()).map(row_values).collect();
        Self {
            footer: metadata.page_index().cloned(),
            groups,
            row_values,
            held_bytes: AtomicUsize::new(0),
            counting: Semaphore::new(1),
            countable_pages: AtomicUsize::new(MAX_LIST_PAGES),
        }
    }

    /// The size of the locations that were not in the footer, in memory.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes.load(Ordering::Relaxed)
    }

    fn chunk(&self, group: usize, column: usize) -> Option<&ChunkPages> {
        self.groups.get(group)?.get()?.get(column)?.get()?.as_ref()
    }

    /// Returns the locations of the pages of a column chunk; `None` if they are unknown.
    fn located(&self, group: usize, column: usize) -> Option<&OffsetIndexMetaData> {
        let footer = self.footer.as_ref().and_then(|footer| footer.offset_index(group, column));
        footer.or_else(|| self.chunk(group, column).map(|pages| &pages.index))
    }

    /// Whether rows of one of these columns may be in several pages, all of which are known.
    pub(super) fn has_divided_rows(&self, group: usize, columns: &[usize]) -> bool {
        let mut chunks = columns.iter().filter_map(|&column| self.chunk(group, column));
        chunks.any(|pages| !pages.begins_within_row.is_empty())
    }

    /// Returns the pages of lists whose rows were counted, for the index of the shard.
    pub(super) fn list_pages(&self, group: usize, columns: &[usize]) -> impl Iterator<Item = ListPages> {
        columns.iter().filter_map(move |&column| self.chunk(group, column)?.lists((group, column)))
    }

    /// Returns the pages that contain these rows: the whole chunk if its pages are unknown. `None` if the metadata is invalid.
    pub(super) fn pages_of_rows(
        &self,
        metadata: &ParquetMetaData,
        (group, column): (usize, usize),
        rows: &Range<u64>,
    ) -> Option<PagesOfRows> {
        let chunk = metadata.row_group(group).column(column);
        let Some(located) = self.located(group, column) else { return PagesOfRows::of_chunk(chunk) };
        let locations = located.page_locations();
        let within = self.chunk(group, column).map_or(&[][..], |pages| &pages.begins_within_row);
        let pages = page_range((locations, within), rows);
        let is_within_row = within.get(pages.start).is_some_and(|is_within| *is_within);
        let pages = locations.get(pages)?;
        let rows_before = u64::try_from(pages.first()?.first_row_index).ok()?;
        let range = |page: &PageLocation| {
            let start = u64::try_from(page.offset).ok()?;
            Some(start..start.checked_add(u64::try_from(page.compressed_page_size).ok()?)?)
        };
        let data: Option<Vec<Range<u64>>> = pages.iter().map(range).collect();
        let mut ranges = vec![dictionary_range(chunk, locations)];
        ranges.extend(data?);
        ranges.retain(|range| !range.is_empty());
        Some(PagesOfRows { ranges, skipped_rows: rows_before.saturating_sub(is_within_row.into()) })
    }

    /// Whether the footer contains the locations of all these columns.
    pub(super) fn are_in_footer(&self, group: usize, columns: &[usize]) -> bool {
        let Some(footer) = &self.footer else { return false };
        columns.iter().all(|&column| footer.offset_index(group, column).is_some())
    }

    /// Reads the headers of the pages that the footer does not locate. The first version of pages does not contain the number of
    /// rows, and its pages of lists may end within a row: their rows are taken from `list_rows`. Pages without rows remain unknown.
    pub(super) async fn load(
        &self,
        object: &Object,
        metadata: &ParquetMetaData,
        (group, columns): (usize, &[usize]),
        list_rows: ListRows<'_>,
    ) -> Result<(), SourceError> {
        if self.are_in_footer(group, columns) {
            return Ok(());
        }
        let row_group = metadata.row_group(group);
        let cells = || {
            let cells: Box<[_]> = self.row_values.iter().map(|_| OnceCell::new()).collect();
            self.held_bytes.fetch_add(std::mem::size_of_val(&*cells), Ordering::Relaxed);
            cells
        };
        let Some(cells) = self.groups.get(group).map(|group| group.get_or_init(cells)) else { return Ok(()) };
        let rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
        let missing = columns.iter().filter(|&&column| {
            self.footer.as_ref().is_none_or(|footer| footer.offset_index(group, column).is_none())
        });
        let read = missing.map(|&column| {
            let row_values = self.row_values[column];
            let chunk = row_group.column(column);
            let read = async move || {
                let pages = match indexed_pages(list_rows, chunk, (group, column), rows) {
                    Some(lists) => Some(ChunkPages::of_lists(lists, rows)),
                    None => match (read_headers(object, chunk, (rows, row_values)).await?, list_rows) {
                        (None, _) if chunk.column_descr().max_rep_level() == 0 => None,
                        (None, ListRows::Counted) => self.count(object, chunk, (group, column), rows).await?,
                        // Another read may know them.
                        (None, _) => return Err(LoadStop::NotCounted),
                        (pages, _) => pages,
                    },
                };
                let held_bytes = pages.as_ref().map_or(0, ChunkPages::held_bytes);
                self.held_bytes.fetch_add(held_bytes, Ordering::Relaxed);
                Ok::<_, LoadStop>(pages)
            };
            async move {
                match cells[column].get_or_try_init(read).await {
                    Err(LoadStop::Failed(error)) => Err(error),
                    Ok(_) | Err(LoadStop::NotCounted) => Ok(()),
                }
            }
        });
        let read: Vec<_> = read.collect();
        futures::stream::iter(read)
            .buffer_unordered(MAX_CONCURRENT_CHUNKS)
            .try_for_each(async |()| Ok(()))
            .await
    }

    /// Counts the rows in the pages of a column chunk of lists.
    async fn count(
        &self,
        object: &Object,
        chunk: &ColumnChunkMetaData,
        place: (usize, usize),
        rows: u64,
    ) -> Result<Option<ChunkPages>, SourceError> {
        let _turn = self.counting.acquire().await.expect("the semaphore is never closed");
        let max_pages = self.countable_pages.load(Ordering::Relaxed).min(MAX_PAGES);
        let lists = count_list_rows(object, chunk, place, (rows, max_pages)).await?;
        let pages = lists.as_ref().map_or(0, |lists| lists.pages.len());
        self.countable_pages.fetch_sub(pages, Ordering::Relaxed);
        Ok(lists.map(|lists| ChunkPages::of_lists(&lists, rows)))
    }

    /// Returns the sizes of the pages that a read of these rows needs, with a cache for dictionaries of `max_cached_bytes`.
    pub(super) fn page_bytes(
        &self,
        metadata: &ParquetMetaData,
        group: usize,
        columns: &[usize],
        rows: &Range<u64>,
        max_cached_bytes: u64,
    ) -> PageBytes {
        let row_group = metadata.row_group(group);
        let group_rows = u64::try_from(row_group.num_rows()).unwrap_or(0);
        let is_whole = *rows == (0..group_rows);
        let block_rows = rows.end - rows.start;
        let mut sum = PageBytes::default();
        for &column in columns {
            let chunk = row_group.column(column);
            let stored = u64::try_from(chunk.compressed_size()).unwrap_or(0);
            let decompressed = u64::try_from(chunk.uncompressed_size()).unwrap_or(0);
            let part = match self.located(group, column).filter(|_| !is_whole) {
                Some(index) => {
                    let walked = self.chunk(group, column);
                    bytes_of_rows(chunk, (index.page_locations(), walked), rows, (stored, decompressed))
                }
                None => (stored, decompressed),
            };
            sum.is_estimated |= is_whole || self.chunk(group, column).is_none();
            if let Some(dictionary) = self.dictionary(metadata, group, column).filter(|_| !is_whole) {
                let cached = sum.dictionaries.saturating_add(dictionary.end - dictionary.start);
                sum.dictionaries = if cached <= max_cached_bytes { cached } else { sum.dictionaries };
            }
            sum.stored = sum.stored.saturating_add(part.0);
            sum.decompressed = sum.decompressed.saturating_add(part.1);
            let part_of_rows = |all: u64| {
                let part = u128::from(all) * u128::from(block_rows) / u128::from(group_rows.max(1));
                u64::try_from(part).unwrap_or(u64::MAX)
            };
            // A repeated value needs little space in its page.
            let fixed = part_of_rows(fixed_bytes(chunk));
            // Rows differ in length.
            let copied = part_of_rows(decompressed).max(part.1);
            let values = if has_views(chunk) { fixed } else { fixed.max(copied) };
            sum.decoded = sum.decoded.saturating_add(values).saturating_add(block_rows * OFFSET_BYTES);
            if chunk.compression() == Compression::UNCOMPRESSED {
                sum.shared = sum.shared.saturating_add(part.1.min(part.0));
            }
        }
        sum
    }

    /// Returns the location of the dictionary of a column whose pages are known, if it has one.
    pub(super) fn dictionary(
        &self,
        metadata: &ParquetMetaData,
        group: usize,
        column: usize,
    ) -> Option<Range<u64>> {
        let locations = self.located(group, column)?.page_locations();
        let range = dictionary_range(metadata.row_group(group).column(column), locations);
        (!range.is_empty()).then_some(range)
    }

    /// Returns the first rows of blocks that contain about `target_rows` rows. They are at the starts of pages of the largest
    /// column, so that few pages belong to two blocks. `None` if the pages of a column are unknown.
    pub(super) fn block_starts(
        &self,
        metadata: &ParquetMetaData,
        group: usize,
        columns: &[usize],
        target_rows: u64,
    ) -> Option<Vec<u64>> {
        let row_group = metadata.row_group(group);
        let is_known = columns.iter().all(|&column| self.located(group, column).is_some());
        let largest = columns.iter().max_by_key(|&&column| row_group.column(column).compressed_size());
        let locations = self.located(group, *largest.filter(|_| is_known)?)?.page_locations();
        let mut starts = vec![0];
        for location in locations {
            let row = u64::try_from(location.first_row_index).ok()?;
            let is_within = i64::try_from(row).is_ok_and(|row| row < row_group.num_rows());
            if is_within && starts.last().is_some_and(|start| row >= start + target_rows) {
                starts.push(row);
            }
        }
        Some(starts)
    }
}

/// Returns the pages of a column chunk in the index of the shard, if they can be its pages.
fn indexed_pages<'a>(
    list_rows: ListRows<'a>,
    chunk: &ColumnChunkMetaData,
    (group, column): (usize, usize),
    rows: u64,
) -> Option<&'a ListPages> {
    let ListRows::Indexed(lists) = list_rows else { return None };
    let is_wanted = |lists: &&ListPages| (lists.group as usize, lists.column as usize) == (group, column);
    let lists = lists.iter().find(is_wanted).filter(|lists| !lists.pages.is_empty())?;
    let (start, bytes) = contained(|| Ok(chunk.byte_range()), "the offset is negative").ok()?;
    lists.check(rows, start..start.saturating_add(bytes)).is_ok().then_some(lists)
}

/// Returns the indices of the pages that contain these rows. The first one contains the start of the first row.
fn page_range((locations, within): (&[PageLocation], &[bool]), rows: &Range<u64>) -> Range<usize> {
    let first_row = |location: &PageLocation| u64::try_from(location.first_row_index).unwrap_or(0);
    let first = locations.partition_point(|location| first_row(location) <= rows.start).saturating_sub(1);
    let mut end = locations.partition_point(|location| first_row(location) < rows.end).max(first);
    // The last row may continue in these pages.
    while within.get(end) == Some(&true) && first_row(&locations[end]) == rows.end {
        end += 1;
    }
    first..end
}

/// Returns the stored and the decompressed size of the dictionary and of the pages that contain these rows.
fn bytes_of_rows(
    chunk: &ColumnChunkMetaData,
    (locations, walked): (&[PageLocation], Option<&ChunkPages>),
    rows: &Range<u64>,
    (chunk_stored, chunk_decompressed): (u64, u64),
) -> (u64, u64) {
    let within = walked.map_or(&[][..], |pages| &pages.begins_within_row);
    let Range { start: first, end } = page_range((locations, within), rows);
    let size = |location: &PageLocation| u64::try_from(location.compressed_page_size).unwrap_or(0);
    let mut stored: u64 = locations[first..end].iter().map(size).sum();
    let dictionary = dictionary_range(chunk, locations);
    stored = stored.saturating_add(dictionary.end - dictionary.start);
    let decompressed = match walked {
        Some(pages) => {
            let data: u64 = pages.decompressed_bytes[first..end].iter().map(|&bytes| u64::from(bytes)).sum();
            data + pages.dictionary_bytes
        }
        // The page index of a footer does not contain the decompressed sizes.
        None => {
            let scaled =
                u128::from(stored) * u128::from(chunk_decompressed) / u128::from(chunk_stored.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        }
    };
    (stored, decompressed)
}

/// Returns the bytes before the first data page, as the Parquet crate does.
fn dictionary_range(chunk: &ColumnChunkMetaData, locations: &[PageLocation]) -> Range<u64> {
    let start = contained(|| Ok(chunk.byte_range().0), "the offset is negative").unwrap_or(0);
    let first = locations.first().and_then(|location| u64::try_from(location.offset).ok());
    start..first.unwrap_or(start).max(start)
}

#[cfg(test)]
mod tests;
