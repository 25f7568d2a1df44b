//! TFRecord files of `tf.train.Example`.

mod builders;
mod example;
mod framing;
mod scan;
mod sparse;

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{ColumnNotes, Defect, ShardIndex, ShardRef};

use crate::content::{ContentBlocks, ContentWindow};
use crate::error::SourceError;
use crate::formats::lines::more_memory;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows::{self, SplitError};
use crate::select::{InferenceNotes, Selection};
use crate::window::SPARSE_STEP_BYTES;

pub(super) use builders::decode_examples;
#[cfg(feature = "kafka")]
pub(crate) use builders::decode_payloads;
pub(crate) use framing::is_record;
use framing::{FOOTER_BYTES, HEADER_BYTES, next_record, truncated};
pub(super) use scan::SchemaScan;

/// Number of payloads of a topic that are sampled to infer the columns.
#[cfg(feature = "kafka")]
const SAMPLED_PAYLOADS: usize = 16;

/// Reads TFRecord files.
pub(super) struct TfRecordReader;

#[async_trait]
impl FormatReader for TfRecordReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstRows)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let shard = object.shard();
        let mut window = ContentWindow::open(object).await?;
        let mut builder = ContentBlocks::new(&window, 0);
        let mut scan = SchemaScan::new(selection);
        let mut defects = Vec::new();
        let (mut rows, mut largest) = (0, 0);
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
            if framed_bytes > largest && matches!(window, ContentWindow::Compressed(_)) {
                // The window keeps its size until the shard is indexed.
                window.hold_row(framed_bytes).await;
                largest = framed_bytes;
            }
            scan_record(&mut window, offset, framed_bytes, &mut scan).await?;
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
        let (schema, columns) = match (rows, scan.columns()) {
            (0, _) => (None, ColumnNotes::default()),
            (_, Some(found)) => {
                let resolved = selection.resolve_inferred(shard, &found, &InferenceNotes::default())?;
                (Some(resolved.0), resolved.1)
            }
            (_, None) => {
                let reason = "none of the records is a valid tf.train.Example: check `source.format`, and the contents of the file";
                return Err(SourceError::unsupported(shard, reason));
            }
        };
        let (blocks, compression) = builder.finish(&window);
        Ok(ShardIndex { blocks, schema, defects, columns, compression, ..ShardIndex::default() })
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

/// Returns the ranges of all records in a block.
fn split(bytes: &[u8]) -> Result<Vec<Range<usize>>, SplitError> {
    let mut spans = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let framed_bytes = next_record(&bytes[at..], (bytes.len() - at) as u64)
            .map_err(|reason| SplitError { at, reason })?;
        spans.push(at..at + framed_bytes as usize);
        at += framed_bytes as usize;
    }
    Ok(spans)
}

/// Adds a record to the columns. A truncated or damaged record adds nothing.
async fn scan_record(
    window: &mut ContentWindow<'_>,
    offset: u64,
    framed_bytes: u64,
    scan: &mut SchemaScan<'_>,
) -> Result<(), SourceError> {
    let object = window.content().object();
    // The large values of a shard that is not compressed are not read.
    if framed_bytes > SPARSE_STEP_BYTES
        && let ContentWindow::Plain(plain, _) = &mut *window
    {
        let (start, end) = (offset + HEADER_BYTES as u64, offset + framed_bytes - FOOTER_BYTES as u64);
        if sparse::knows(plain, start, end, scan).await? {
            return Ok(());
        }
    }
    let limit = object.decoders().sampled_row_limit();
    if framed_bytes > limit {
        let reason = format!(
            "the record has {framed_bytes} bytes, more than the limit of {limit} bytes for records that determine the columns: write large values to a file that is not compressed, or into several records{}",
            more_memory(object)
        );
        return Err(SourceError::corrupt(object.shard(), offset, reason));
    }
    let bytes = window.read_from(offset, framed_bytes).await?;
    let Some(record) = bytes.get(..framed_bytes as usize) else { return Ok(()) };
    if scan.knows(&record[HEADER_BYTES..record.len() - FOOTER_BYTES]) {
        return Ok(());
    }
    scan.add(record).map_err(|reason| SourceError::corrupt(object.shard(), offset, reason))
}

/// Returns the columns of examples without framing; `None` without examples.
#[cfg(feature = "kafka")]
pub(crate) fn example_columns(
    samples: &[&[u8]],
) -> Result<Option<Vec<crate::select::ResolvedColumn>>, String> {
    // The pipeline may name the columns of payloads differently.
    let selection = Selection::default();
    let mut scan = SchemaScan::new(&selection);
    samples.iter().take(SAMPLED_PAYLOADS).try_for_each(|sample| scan.add_example(sample).map(drop))?;
    match scan.columns() {
        None if !samples.is_empty() => {
            Err("none of the sampled payloads is a valid tf.train.Example: check `payload`".to_owned())
        }
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests;
