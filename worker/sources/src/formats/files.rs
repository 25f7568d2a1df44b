//! Arbitrary files: each object is one row with the columns `bytes` and `path`.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringViewArray};
use async_trait::async_trait;
use feedline_data::manifest::{Block, ShardIndex};
use feedline_data::schema::ColumnType;

use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::cast_values;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows;
use crate::select::{InferenceNotes, Selection};
use crate::views::Views;

const BYTES_COLUMN: &str = "bytes";
const PATH_COLUMN: &str = "path";

/// Reads each object as one row.
#[derive(Default)]
pub(super) struct FilesReader;

#[async_trait]
impl FormatReader for FilesReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let found = [
            (BYTES_COLUMN.to_owned(), Ok(ColumnType::Binary)),
            (PATH_COLUMN.to_owned(), Ok(ColumnType::Utf8)),
        ];
        let (schema, _) = selection.resolve_fixed(shard, &found, &InferenceNotes::default())?;
        if shard.size_bytes > i32::MAX as u64 {
            return Err(SourceError::unsupported(
                shard,
                "the file is larger than 2 GiB, which is the limit: split the file",
            ));
        }
        let row_bytes = vec![shard.size_bytes as u32];
        let block = Block { rows: 1, offset: 0, bytes: shard.size_bytes, group: 0, row_bytes };
        // The path is not a column of the data, so it is not listed as ignored.
        Ok(ShardIndex { blocks: vec![block], schema: Some(schema), ..ShardIndex::default() })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = if read.rows.is_some_and(<[u32]>::is_empty) { 0 } else { 1 };
        let names = selection.data_names(read.schema);
        let mut held_bytes = 0;
        let mut columns: Vec<ArrayRef> = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(names) {
            let values: ArrayRef = match name {
                PATH_COLUMN => {
                    Arc::new(StringViewArray::from_iter_values(std::iter::repeat_n(&read.shard.url, rows)))
                }
                BYTES_COLUMN => {
                    let set =
                        rows::fetch(object, read, |bytes| Ok(std::iter::once(0..bytes.len()).collect()))
                            .await?;
                    let mut views = Views::binary(&set.buffers, rows);
                    for row in &set.rows {
                        views
                            .append(row.span)
                            .map_err(|reason| SourceError::corrupt(read.shard, 0, reason))?;
                    }
                    held_bytes += set.held_bytes();
                    views.finish()
                }
                _ => null_column(&field.column_type, rows),
            };
            // Other datasets of a mix contain lists. Values become lists of one value.
            let values = cast_values(&values, &arrow_type(&field.column_type));
            columns.push(values.map_err(|error| SourceError::corrupt(read.shard, 0, error.to_string()))?);
        }
        let batch = build_batch(read.schema, columns, rows)
            .map_err(|reason| SourceError::corrupt(read.shard, 0, reason))?;
        Ok(DecodedBlock {
            batch,
            failures: Vec::new(),
            held_bytes: held_bytes + rows * (32 + read.shard.url.len()),
        })
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::pipeline::Format;
    use feedline_data::schema::Schema;

    use crate::BlockRead;
    use crate::testing::{fixture, lines};

    use super::*;

    #[tokio::test]
    async fn bytes_are_lists_if_other_datasets_have_lists() {
        let fixture = fixture(b"content", Format::Files, &[("x", "bytes")]);
        let indexed = fixture.index().await.unwrap();
        let schema = Schema::new([("x", ColumnType::List(Box::new(ColumnType::Binary)))]);
        let (shard, block) = (&indexed.object, &indexed.index.blocks[0]);
        let read = BlockRead { shard, block, schema: &schema, rows: None, index: Some(&indexed.index) };
        assert_eq!(lines(&fixture.dataset.read_block(&read).await.unwrap().batch), ["[content]"]);
    }
}
