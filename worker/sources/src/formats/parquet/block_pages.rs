//! Decodes the rows of a block from the pages that contain them: if rows are in several pages, because the Parquet crate would read
//! the pages of such columns from the start of their chunk, and if the crate does not limit the size of pages with their codec.

use std::ops::Range;

use arrow::array::RecordBatch;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ParquetRecordBatchReader, RowGroups, RowSelection, RowSelector,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};

use super::bounded_pages::page_reader;
use super::page_parts::PageParts;

/// The pages of a column that contain the rows of a block.
pub(super) struct ColumnPages {
    /// The leaf column.
    pub(super) leaf: usize,
    /// The dictionary, which may be empty, and the data pages.
    pub(super) parts: PageParts,
    /// The number of rows of the row group before those in `parts`, at most the first row of the block. A row of which the pages
    /// contain only the end is one of the rows in `parts`.
    pub(super) skipped_rows: usize,
}

/// The pages of a block. They appear as a row group in which the rows before the block are pages that can only be skipped.
pub(super) struct BlockPages<'a> {
    pub(super) metadata: &'a ArrowReaderMetadata,
    /// The index of the row group.
    pub(super) group: usize,
    pub(super) columns: Vec<ColumnPages>,
}

impl BlockPages<'_> {
    /// Decodes these rows of the row group, in one or more batches.
    pub(super) fn decode(&self, rows: Range<usize>) -> Result<Vec<RecordBatch>> {
        let schema = self.metadata.parquet_schema();
        let mask = ProjectionMask::leaves(schema, self.columns.iter().map(|column| column.leaf));
        let levels = parquet_to_arrow_field_levels(schema, mask, Some(self.metadata.schema().fields()))?;
        let selectors = vec![RowSelector::skip(rows.start), RowSelector::select(rows.len())];
        let selection = Some(RowSelection::from(selectors));
        let reader = ParquetRecordBatchReader::try_new_with_row_groups(&levels, self, rows.len(), selection)?;
        reader.map(|batch| batch.map_err(ParquetError::from)).collect()
    }

    fn row_group(&self) -> &RowGroupMetaData {
        self.metadata.metadata().row_group(self.group)
    }
}

impl RowGroups for BlockPages<'_> {
    fn num_rows(&self) -> usize {
        usize::try_from(self.row_group().num_rows()).unwrap_or(0)
    }

    fn column_chunks(&self, leaf: usize) -> Result<Box<dyn PageIterator>> {
        let Some(column) = self.columns.iter().find(|column| column.leaf == leaf) else {
            return Err(ParquetError::General(format!("the pages of column {leaf} were not read")));
        };
        let pages = page_reader(&column.parts, self.row_group().column(leaf))?;
        Ok(Box::new(OneChunk(Some(SkippingReader { pages, skipped_rows: column.skipped_rows }))))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.row_group()))
    }

    fn metadata(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }
}

/// The reader of the only chunk of a column.
struct OneChunk(Option<SkippingReader>);

impl Iterator for OneChunk {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(Ok(Box::new(self.0.take()?)))
    }
}

impl PageIterator for OneChunk {}

/// Reads a dictionary, a page that can only be skipped, and data pages.
struct SkippingReader {
    pages: Box<dyn PageReader>,
    /// The number of rows in the page that can only be skipped; 0 if there is none, or after it.
    skipped_rows: usize,
}

impl SkippingReader {
    /// Whether the next page can only be skipped.
    fn skips(&mut self) -> Result<bool> {
        let is_dictionary = |page: PageMetadata| page.is_dict;
        Ok(self.skipped_rows > 0 && !self.pages.peek_next_page()?.is_some_and(is_dictionary))
    }
}

impl Iterator for SkippingReader {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for SkippingReader {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        if self.skips()? {
            return Err(ParquetError::General("rows before the block were requested".to_owned()));
        }
        self.pages.get_next_page()
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        if self.skips()? {
            let rows = Some(self.skipped_rows);
            return Ok(Some(PageMetadata { num_rows: rows, num_levels: None, is_dict: false }));
        }
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if self.skips()? {
            self.skipped_rows = 0;
            return Ok(());
        }
        self.pages.skip_next_page()
    }

    fn supports_deferred_dictionary(&self) -> bool {
        self.pages.supports_deferred_dictionary()
    }

    fn take_deferred_dictionary(&mut self) -> Result<Option<Page>> {
        self.pages.take_deferred_dictionary()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        Ok(self.skips()? || self.pages.at_record_boundary()?)
    }
}
