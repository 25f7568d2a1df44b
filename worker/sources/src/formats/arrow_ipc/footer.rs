//! The footer of an Arrow IPC file, with the locations of its record batches and dictionaries.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block as IpcBlock, MetadataVersion, root_as_footer, root_as_message};
use bytes::Bytes;
use feedline_contained::contained;

use crate::error::SourceError;
use crate::limits::{MAX_BLOCKS, MAX_DICTIONARY_BYTES, MAX_FOOTER_BYTES, MAX_HEADS_BYTES};
use crate::object::Object;

const MAGIC: &[u8] = b"ARROW1";
/// The size of the shard's end that contains most footers.
const FOOTER_READ_BYTES: u64 = 64 << 10;
const TAIL_BYTES: u64 = 10;

/// A shard's footer, with the dictionaries that its batches refer to.
pub(crate) struct ArrowFooter {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<MessageLocation>,
    version: MetadataVersion,
    dictionaries: Vec<(MessageLocation, Buffer)>,
}

/// The location of one message in the shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLocation {
    offset: u64,
    metadata_bytes: u64,
    body_bytes: u64,
}

impl MessageLocation {
    /// The location from the footer. An error if the location exceeds the shard.
    fn new(block: &IpcBlock, size: u64) -> Result<Self, String> {
        let part = |value: i64| u64::try_from(value).ok().filter(|&value| value <= size);
        let bad = || "the footer points outside the file: it is damaged".to_owned();
        let place = Self {
            offset: part(block.offset()).ok_or_else(bad)?,
            metadata_bytes: part(i64::from(block.metaDataLength())).ok_or_else(bad)?,
            body_bytes: part(block.bodyLength()).ok_or_else(bad)?,
        };
        if place.range().end > size || place.metadata_bytes < 8 { Err(bad()) } else { Ok(place) }
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.metadata_bytes + self.body_bytes
    }

    fn block(&self) -> IpcBlock {
        IpcBlock::new(self.offset as i64, self.metadata_bytes as i32, self.body_bytes as i64)
    }
}

impl ArrowFooter {
    /// Reads the footer and the dictionaries.
    pub(crate) async fn read(object: &Object) -> Result<Self, SourceError> {
        let size = object.size_bytes();
        let corrupt = |reason: String| SourceError::corrupt(object.shard(), size, reason);
        if size < TAIL_BYTES + MAGIC.len() as u64 {
            return Err(corrupt(format!("{size} bytes are not an Arrow file: write it again or remove it")));
        }
        let tail_start = size.saturating_sub(FOOTER_READ_BYTES);
        let tail = object.read(tail_start..size).await?;
        let end: [u8; TAIL_BYTES as usize] =
            *tail.last_chunk().expect("the tail is at least as long as its end");
        if !end.ends_with(MAGIC) {
            return Err(refuse_stream(object).await?);
        }
        let length = read_footer_length(end).map_err(|error| corrupt(error.to_string()))? as u64;
        if length > size - TAIL_BYTES {
            return Err(corrupt("the footer's length is wrong: the file is damaged".to_owned()));
        }
        if length > MAX_FOOTER_BYTES {
            return Err(corrupt(format!(
                "its footer has {length} bytes, more than {MAX_FOOTER_BYTES}: write larger record batches"
            )));
        }
        let start = size - TAIL_BYTES - length;
        let bytes = if start >= tail_start {
            tail.slice((start - tail_start) as usize..tail.len() - TAIL_BYTES as usize)
        } else {
            object.read(start..size - TAIL_BYTES).await?
        };
        let (mut footer, dictionaries) = without_panic(|| Self::parse(&bytes, size)).map_err(corrupt)?;
        let bytes = |place: &MessageLocation| place.range().end - place.range().start;
        if dictionaries.iter().map(bytes).fold(0, u64::saturating_add) > MAX_DICTIONARY_BYTES {
            return Err(corrupt(format!(
                "its dictionaries have more than {MAX_DICTIONARY_BYTES} bytes: write the columns without dictionaries"
            )));
        }
        let heads = footer.batches.iter().map(|place| place.metadata_bytes).fold(0, u64::saturating_add);
        if heads > MAX_HEADS_BYTES || footer.batches.len() > MAX_BLOCKS {
            return Err(corrupt(format!(
                "its {} record batches are more than can be looked through: write larger ones",
                footer.batches.len()
            )));
        }
        for place in dictionaries {
            footer.dictionaries.push((place, Buffer::from(object.read(place.range()).await?)));
        }
        Ok(footer)
    }

    fn parse(bytes: &Bytes, size: u64) -> Result<(Self, Vec<MessageLocation>), String> {
        let footer = root_as_footer(bytes).map_err(|error| format!("the footer cannot be read: {error}"))?;
        let schema = footer.schema().ok_or("the footer has no schema: the file is damaged")?;
        let place = |block: &IpcBlock| MessageLocation::new(block, size);
        let batches: Result<Vec<MessageLocation>, String> =
            footer.recordBatches().iter().flatten().map(place).collect();
        let dictionaries: Result<Vec<MessageLocation>, String> =
            footer.dictionaries().iter().flatten().map(place).collect();
        let this = Self {
            schema: Arc::new(fb_to_schema(schema)),
            batches: batches?,
            version: footer.version(),
            dictionaries: Vec::new(),
        };
        Ok((this, dictionaries?))
    }

    /// The number of rows of each record batch, from the headers of the messages.
    pub(crate) async fn batch_rows(&self, object: &Object) -> Result<Vec<u32>, SourceError> {
        let mut order: Vec<usize> = (0..self.batches.len()).collect();
        order.sort_by_key(|&at| self.batches[at].offset);
        let ranges: Vec<Range<u64>> = order
            .iter()
            .map(|&at| self.batches[at].offset..self.batches[at].offset + self.batches[at].metadata_bytes)
            .collect();
        let (buffers, spans) = object.read_ranges(&ranges).await?;
        let mut rows = vec![0; self.batches.len()];
        for (at, span) in order.into_iter().zip(spans) {
            let head = &buffers[span.buffer][span.start..span.start + span.len];
            rows[at] = message_rows(head)
                .map_err(|reason| SourceError::corrupt(object.shard(), self.batches[at].offset, reason))?;
        }
        Ok(rows)
    }

    /// Decodes the record batch at this location.
    pub(crate) fn decode(
        &self,
        place: &MessageLocation,
        bytes: &Buffer,
        names: &[&str],
    ) -> Result<RecordBatch, String> {
        let text = |error: arrow::error::ArrowError| error.to_string();
        let is_wanted = |field: &str| {
            names.iter().any(|name| {
                name.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let fields = self.schema.fields().iter().enumerate();
        let projection: Vec<usize> =
            fields.filter(|(_, field)| is_wanted(field.name())).map(|(at, _)| at).collect();
        without_panic(|| {
            let mut decoder = FileDecoder::new(self.schema.clone(), self.version).with_projection(projection);
            for (place, bytes) in &self.dictionaries {
                decoder.read_dictionary(&place.block(), bytes).map_err(text)?;
            }
            let batch = decoder.read_record_batch(&place.block(), bytes).map_err(text)?;
            batch.ok_or_else(|| {
                "there is no record batch where the footer says: the file is damaged".to_owned()
            })
        })
    }
}

/// Converts panics to errors. The Arrow crate panics on some damaged schemas and messages, which must not stop a worker.
fn without_panic<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    contained(decode, "the Arrow data makes no sense: the file is damaged")
}

fn message_rows(head: &[u8]) -> Result<u32, String> {
    let bad = || "a record batch's head cannot be read: the file is damaged".to_owned();
    // The length of the message, which follows a continuation marker since version 5.
    let message = match head.strip_prefix(&[0xff; 4]) {
        Some(rest) => rest.get(4..),
        None => head.get(4..),
    };
    let message = root_as_message(message.ok_or_else(bad)?).map_err(|_| bad())?;
    let rows = message.header_as_record_batch().ok_or_else(bad)?.length();
    u32::try_from(rows).map_err(|_| format!("a record batch of {rows} rows is too large: write smaller ones"))
}

/// The error for a file that does not end with the magic.
async fn refuse_stream(object: &Object) -> Result<SourceError, SourceError> {
    let start = object.read(0..object.size_bytes().min(6)).await?;
    let reason = if start.starts_with(&[0xff; 4]) {
        "it is in the Arrow stream format: write it in the file format (pyarrow: `ipc.new_file`)"
    } else if start.starts_with(MAGIC) {
        "the Arrow file is truncated: write it again"
    } else {
        "it is not an Arrow file: check the format"
    };
    Ok(SourceError::unsupported(object.shard(), reason))
}
