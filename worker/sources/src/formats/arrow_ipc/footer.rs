//! The footer of an Arrow IPC file, with the locations of its record batches and dictionaries.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block as IpcBlock, MetadataVersion, root_as_footer, root_as_message};
use bytes::Bytes;
use feedline_contained::contained;

use crate::error::SourceError;
use crate::limits::{MAX_BATCH_HEADERS_BYTES, MAX_BLOCKS, MAX_DICTIONARY_BYTES, MAX_FOOTER_BYTES};
use crate::object::Object;

const MAGIC: &[u8] = b"ARROW1";
/// Number of bytes that are read from the end of a shard to find the footer. These bytes contain the whole footer of
/// most files.
const FOOTER_READ_BYTES: u64 = 64 << 10;
/// Size of the footer length and the magic at the end of a shard.
const TAIL_BYTES: u64 = 10;

/// The footer of a shard, and the dictionaries of its record batches.
pub(crate) struct ArrowFooter {
    pub(crate) schema: SchemaRef,
    pub(crate) batches: Vec<MessageLocation>,
    version: MetadataVersion,
    dictionaries: Vec<(MessageLocation, Buffer)>,
}

/// The location of a message in the shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLocation {
    offset: u64,
    metadata_bytes: u64,
    body_bytes: u64,
}

impl MessageLocation {
    /// Converts a location from the footer. Fails if the location is outside of the shard.
    fn new(block: &IpcBlock, size: u64) -> Result<Self, String> {
        let part = |value: i64| u64::try_from(value).ok().filter(|&value| value <= size);
        let bad = || "the footer contains a location outside the file: the file is corrupted".to_owned();
        let location = Self {
            offset: part(block.offset()).ok_or_else(bad)?,
            metadata_bytes: part(i64::from(block.metaDataLength())).ok_or_else(bad)?,
            body_bytes: part(block.bodyLength()).ok_or_else(bad)?,
        };
        if location.range().end > size || location.metadata_bytes < 8 { Err(bad()) } else { Ok(location) }
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
            return Err(corrupt(format!(
                "the file is only {size} bytes long and cannot be an Arrow file: write the file again, or remove it"
            )));
        }
        let tail_start = size.saturating_sub(FOOTER_READ_BYTES);
        let tail = object.read(tail_start..size).await?;
        let end: [u8; TAIL_BYTES as usize] = *tail.last_chunk().expect("the shard has at least TAIL_BYTES");
        if !end.ends_with(MAGIC) {
            return Err(stream_error(object).await?);
        }
        let length = read_footer_length(end).map_err(|error| corrupt(error.to_string()))? as u64;
        if length > size - TAIL_BYTES {
            return Err(corrupt("the length of the footer is invalid: the file is corrupted".to_owned()));
        }
        if length > MAX_FOOTER_BYTES {
            return Err(corrupt(format!(
                "the footer is {length} bytes long; the limit is {MAX_FOOTER_BYTES} bytes: write larger record batches"
            )));
        }
        let start = size - TAIL_BYTES - length;
        let bytes = if start >= tail_start {
            tail.slice((start - tail_start) as usize..tail.len() - TAIL_BYTES as usize)
        } else {
            object.read(start..size - TAIL_BYTES).await?
        };
        let (mut footer, dictionaries) = without_panic(|| Self::parse(&bytes, size)).map_err(corrupt)?;
        let bytes = |location: &MessageLocation| location.range().end - location.range().start;
        if dictionaries.iter().map(bytes).fold(0, u64::saturating_add) > MAX_DICTIONARY_BYTES {
            return Err(corrupt(format!(
                "the dictionaries exceed the limit of {MAX_DICTIONARY_BYTES} bytes: write the columns without dictionaries"
            )));
        }
        let header_bytes =
            footer.batches.iter().map(|location| location.metadata_bytes).fold(0, u64::saturating_add);
        if header_bytes > MAX_BATCH_HEADERS_BYTES || footer.batches.len() > MAX_BLOCKS {
            return Err(corrupt(format!(
                "the headers of the file's {} record batches exceed the size limit: write larger record batches",
                footer.batches.len()
            )));
        }
        for location in dictionaries {
            footer.dictionaries.push((location, Buffer::from(object.read(location.range()).await?)));
        }
        Ok(footer)
    }

    fn parse(bytes: &Bytes, size: u64) -> Result<(Self, Vec<MessageLocation>), String> {
        let footer = root_as_footer(bytes).map_err(|error| format!("the footer is corrupted: {error}"))?;
        let schema = footer.schema().ok_or("the footer has no schema: the file is corrupted")?;
        let location = |block: &IpcBlock| MessageLocation::new(block, size);
        let batches: Result<Vec<MessageLocation>, String> =
            footer.recordBatches().iter().flatten().map(location).collect();
        let dictionaries: Result<Vec<MessageLocation>, String> =
            footer.dictionaries().iter().flatten().map(location).collect();
        let this = Self {
            schema: Arc::new(try_fb_to_schema(schema).map_err(|error| error.to_string())?),
            batches: batches?,
            version: footer.version(),
            dictionaries: Vec::new(),
        };
        Ok((this, dictionaries?))
    }

    /// Reads the number of rows of each record batch from the headers of the messages.
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
            let header = &buffers[span.buffer][span.start..span.start + span.len];
            rows[at] = message_rows(header)
                .map_err(|reason| SourceError::corrupt(object.shard(), self.batches[at].offset, reason))?;
        }
        Ok(rows)
    }

    /// Decodes the record batch at this location.
    pub(crate) fn decode(
        &self,
        location: &MessageLocation,
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
            for (location, bytes) in &self.dictionaries {
                decoder.read_dictionary(&location.block(), bytes).map_err(text)?;
            }
            let batch = decoder.read_record_batch(&location.block(), bytes).map_err(text)?;
            batch.ok_or_else(|| {
                "the footer points to a record batch, but the file contains another message at that location: the file is corrupted"
                    .to_owned()
            })
        })
    }
}

/// Converts panics to errors. The Arrow crate panics on some corrupted schemas and messages.
fn without_panic<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    contained(decode, "the Arrow data is invalid: the file is corrupted")
}

fn message_rows(header: &[u8]) -> Result<u32, String> {
    let bad = || "the header of a record batch cannot be read: the file is corrupted".to_owned();
    // Skip the length of the message. Since version 5, a continuation marker precedes the length.
    let message = match header.strip_prefix(&[0xff; 4]) {
        Some(rest) => rest.get(4..),
        None => header.get(4..),
    };
    let message = root_as_message(message.ok_or_else(bad)?).map_err(|_| bad())?;
    let rows = message.header_as_record_batch().ok_or_else(bad)?.length();
    u32::try_from(rows).map_err(|_| {
        format!("a record batch has {rows} rows, more than the limit of 2^32: write smaller record batches")
    })
}

/// Returns the error for a file that does not end with the magic bytes.
async fn stream_error(object: &Object) -> Result<SourceError, SourceError> {
    let start = object.read(0..object.size_bytes().min(6)).await?;
    let reason = if start.starts_with(&[0xff; 4]) {
        "the file has the Arrow stream format: write the file format, such as with `pyarrow.ipc.new_file`"
    } else if start.starts_with(MAGIC) {
        "the Arrow file is truncated: write the file again"
    } else {
        "the file is not an Arrow file: check `source.format`"
    };
    Ok(SourceError::unsupported(object.shard(), reason))
}
