//! TFRecord files of `tf.train.Example`.

mod builders;
mod example;
mod framing;

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{Defect, ShardIndex, ShardRef};

use crate::content::{ContentBlocks, ContentWindow};
use crate::error::SourceError;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows;
use crate::select::Selection;

pub(super) use builders::decode_examples;
pub(super) use example::SchemaScan;
pub(crate) use framing::is_record;
use framing::{HEADER_BYTES, next_record, split, truncated, verified_data};

/// Number of records that are sampled to infer the columns.
const SAMPLED_ROWS: u64 = 16;

/// Reads TFRecord files.
pub(super) struct TfRecordReader;

#[async_trait]
impl FormatReader for TfRecordReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstRows)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let mut window = ContentWindow::open_unless(object, is_record).await?;
        let mut builder = ContentBlocks::new(&window, 0);
        let mut scan = SchemaScan::default();
        let mut defects = Vec::new();
        let mut rows = 0;
        loop {
            let offset = builder.end();
            window.fill(offset, HEADER_BYTES as u64).await?;
            let header = window.bytes(offset);
            if header.is_empty() {
                defects.extend(window.error().map(|reason| Defect { offset, reason }));
                break;
            }
            let framed_bytes = match next_record(header, window.max_remaining(offset)) {
                Ok(framed_bytes) => framed_bytes,
                Err(reason) => {
                    defects.push(Defect { offset, reason: window.error().unwrap_or(reason) });
                    break;
                }
            };
            if rows < SAMPLED_ROWS && framed_bytes <= MAX_SAMPLED_ROW_BYTES {
                let record = window.read_from(offset, framed_bytes).await?;
                if let Some(Ok(data)) = record.get(..framed_bytes as usize).map(verified_data) {
                    scan.add(data).map_err(|reason| SourceError::corrupt(shard, offset, reason))?;
                }
            }
            let pushed = match window.reaches(offset + framed_bytes).await? {
                true => builder.push(framed_bytes, &window),
                false => Err(window.error().unwrap_or_else(truncated)),
            };
            if let Err(reason) = pushed {
                defects.push(Defect { offset, reason });
                break;
            }
            rows += 1;
        }
        let schema = match (rows, scan.columns()) {
            (0, _) => None,
            (_, Some(found)) => Some(selection.schema(shard, &found)?),
            (_, None) => {
                let reason = "none of the first records is a valid tf.train.Example: check `source.format`, and the contents of the file";
                return Err(SourceError::unsupported(shard, reason));
            }
        };
        let (blocks, compression) = builder.finish(&window);
        Ok(ShardIndex { blocks, schema, defects, compression, graph: None })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = rows::fetch(object, read, split).await?;
        builders::decode(&rows, read, selection)
    }
}

/// Returns the columns of examples without framing; `None` without examples.
#[cfg(feature = "kafka")]
pub(crate) fn example_columns(
    samples: &[&[u8]],
) -> Result<Option<Vec<crate::select::ResolvedColumn>>, String> {
    let mut scan = SchemaScan::default();
    samples.iter().take(SAMPLED_ROWS as usize).try_for_each(|sample| scan.add(sample))?;
    match scan.columns() {
        None if !samples.is_empty() => {
            Err("none of the sampled payloads is a valid tf.train.Example: check `payload`".to_owned())
        }
        found => Ok(found),
    }
}

/// Decodes the examples of messages to columns, which are given by the names of features and their types.
#[cfg(feature = "kafka")]
pub(crate) fn decode_payloads(
    rows: &rows::RowSet,
    columns: &[(&str, &feedline_data::schema::ColumnType)],
) -> Result<(Vec<arrow::array::ArrayRef>, Vec<crate::reader::RowFailure>), String> {
    let decoded = builders::decode_columns(rows, columns, |record| Ok(record));
    decoded.map_err(|name| format!("column `{name}` has a type that features do not support"))
}

#[cfg(test)]
mod tests;
