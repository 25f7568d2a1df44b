//! Text files: each line is one row with the column `text`.

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::schema::ColumnType;

use super::lines::{self, IndexedLines, LineRule};
use crate::columns::build_batch;
use crate::content::ContentWindow;
use crate::error::SourceError;
use crate::object::{BufferSpan, Object};
use crate::reader::{BlockRead, DecodedBlock, FormatReader, RowFailure, SampleMethod, SampleTraits};
use crate::rows::{self, RowSet};
use crate::select::{InferenceNotes, Selection};
use crate::views::Views;

const TEXT_COLUMN: &str = "text";

/// Reads text files.
pub(super) struct TextReader;

#[async_trait]
impl FormatReader for TextReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstLines)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let mut window = ContentWindow::open(object).await?;
        let start = lines::first_row_offset(&mut window).await?;
        let IndexedLines { blocks, defects, compression } =
            lines::index(&mut window, LineRule::Text, start, None).await?;
        let found = [(TEXT_COLUMN.to_owned(), Ok(ColumnType::Utf8))];
        let (schema, columns) =
            selection.resolve_fixed(object.shard(), &found, &InferenceNotes::default())?;
        let schema = (!blocks.is_empty()).then_some(schema);
        Ok(ShardIndex { blocks, schema, defects, columns, compression, ..ShardIndex::default() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = rows::fetch(object, read, |bytes| lines::split(LineRule::Text, bytes)).await?;
        let mut columns = Vec::new();
        let mut failures = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(selection.data_names(read.schema)) {
            if name != TEXT_COLUMN {
                columns.push(crate::columns::null_column(&field.column_type, rows.rows.len()));
                continue;
            }
            failures.clear();
            columns.push(text_column(&rows, &mut failures).finish());
        }
        let held_bytes = rows.held_bytes() + rows.rows.len() * 17;
        let batch = build_batch(read.schema, columns, rows.rows.len())
            .map_err(|reason| SourceError::corrupt(read.shard, read.block.offset, reason))?;
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

fn text_column(rows: &RowSet, failures: &mut Vec<RowFailure>) -> Views {
    let mut views = Views::text(&rows.buffers, rows.rows.len());
    for (index, row) in rows.rows.iter().enumerate() {
        let line = rows.bytes(index);
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Err(reason) = views.append(BufferSpan { len: line.len(), ..row.span }) {
            views.append_null();
            failures.push(RowFailure { row: index as u32, offset: row.offset, reason });
        }
    }
    views
}
