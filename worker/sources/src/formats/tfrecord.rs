//! TFRecord files of `tf.train.Example`.

mod builders;
mod example;
mod framing;

use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{Defect, ShardIndex};

use crate::blocks::BlockBuilder;
use crate::error::SourceError;
use crate::limits::MAX_SAMPLED_ROW_BYTES;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows;
use crate::select::Selection;
use crate::window::ReadWindow;

use example::SchemaScan;
use framing::{HEADER_BYTES, next_record, split, verified_data};

/// Number of records that are sampled to infer the columns.
const SAMPLED_ROWS: u64 = 16;

/// Reads TFRecord files.
pub(super) struct TfRecordReader;

#[async_trait]
impl FormatReader for TfRecordReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let mut window = ReadWindow::new(object);
        let mut builder = BlockBuilder::new(0);
        let mut scan = SchemaScan::default();
        let mut defects = Vec::new();
        let mut rows = 0;
        while builder.end() < shard.size_bytes {
            let offset = builder.end();
            let framed_bytes = match next_record(
                window.read_from(offset, HEADER_BYTES as u64).await?,
                shard.size_bytes - offset,
            ) {
                Ok(framed_bytes) => framed_bytes,
                Err(reason) => {
                    reject_compressed(object, window.read_from(offset, 4).await?, offset)?;
                    defects.push(Defect { offset, reason });
                    break;
                }
            };
            if let Err(reason) = builder.push(framed_bytes) {
                defects.push(Defect { offset, reason });
                break;
            }
            if rows < SAMPLED_ROWS && framed_bytes <= MAX_SAMPLED_ROW_BYTES {
                let record = &window.read_from(offset, framed_bytes).await?[..framed_bytes as usize];
                if let Ok(data) = verified_data(record) {
                    scan.add(data).map_err(|reason| SourceError::corrupt(shard, offset, reason))?;
                }
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
        Ok(ShardIndex { blocks: builder.finish(), schema, defects })
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

fn reject_compressed(object: &Object, start: &[u8], offset: u64) -> Result<(), SourceError> {
    match super::lines::detect_compression(start) {
        Some(name) if offset == 0 => {
            Err(SourceError::unsupported(object.shard(), super::lines::compression_error(name)))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
