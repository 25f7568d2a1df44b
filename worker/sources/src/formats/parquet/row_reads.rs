//! Reads rows of a row group with the Parquet crate.

use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::task::Poll;

use arrow::array::RecordBatch;
use feedline_contained::contained;
use futures::TryStreamExt;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ArrowReaderMetadata, RowSelection, RowSelector};
use parquet::arrow::async_reader::{AsyncFileReader, ParquetRecordBatchStreamBuilder};
use parquet::errors::ParquetError;

use super::block_pages::{BlockPages, ColumnPages};
use super::page_locations::PagesOfRows;
use super::page_parts::PageParts;
use super::reader::ObjectReader;

/// The message for invalid metadata, and for a panic of the Parquet crate.
pub(super) const INVALID_DATA: &str = "the Parquet data is invalid: the file is corrupted";

/// Completes a read of the Parquet library. Converts a panic to an error, because the library panics on some corrupted files.
pub(super) async fn contained_read<T>(
    read: impl Future<Output = Result<T, ParquetError>> + Send,
) -> Result<T, ParquetError> {
    let mut read = pin!(read);
    poll_fn(|context| {
        contained(|| Ok(read.as_mut().poll(context)), INVALID_DATA)
            .unwrap_or_else(|reason| Poll::Ready(Err(ParquetError::General(reason))))
    })
    .await
}

/// Reads rows of a row group whose pages begin with rows, or are unknown.
pub(super) async fn read_rows(
    metadata: &ArrowReaderMetadata,
    reader: ObjectReader,
    (group, leaves): (usize, &[usize]),
    rows: Range<usize>,
) -> Result<Vec<RecordBatch>, ParquetError> {
    let row_group = metadata.metadata().row_group(group);
    let group_rows = usize::try_from(row_group.num_rows()).unwrap_or(0);
    let mask = ProjectionMask::leaves(metadata.parquet_schema(), leaves.iter().copied());
    let mut builder = ParquetRecordBatchStreamBuilder::new_with_metadata(reader, metadata.clone())
        .with_row_groups(vec![group])
        .with_projection(mask)
        .with_batch_size(rows.len());
    if rows.len() < group_rows {
        builder = builder.with_row_selection(RowSelection::from(vec![
            RowSelector::skip(rows.start),
            RowSelector::select(rows.len()),
            RowSelector::skip(group_rows - rows.end),
        ]));
    }
    builder.build()?.try_collect().await
}

/// Reads rows of a row group from these pages of each leaf column.
pub(super) async fn read_rows_of_pages(
    metadata: &ArrowReaderMetadata,
    mut reader: ObjectReader,
    (group, pages): (usize, Vec<(usize, PagesOfRows)>),
    rows: Range<usize>,
) -> Result<Vec<RecordBatch>, ParquetError> {
    let ranges = pages.iter().flat_map(|(_, pages)| pages.ranges.iter().cloned()).collect();
    let mut parts = reader.get_byte_ranges(ranges).await?.into_iter();
    let column = |(leaf, pages): (usize, PagesOfRows)| ColumnPages {
        leaf,
        parts: PageParts::new(parts.by_ref().take(pages.ranges.len())),
        skipped_rows: usize::try_from(pages.skipped_rows).unwrap_or(usize::MAX),
    };
    let columns = pages.into_iter().map(column).collect();
    BlockPages { metadata, group, columns }.decode(rows)
}
