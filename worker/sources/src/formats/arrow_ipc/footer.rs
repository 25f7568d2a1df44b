//! The footer of an Arrow IPC file, with the locations of its record batches and dictionaries. A file without a footer is a
//! stream.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{FileDecoder, read_footer_length};
use arrow::ipc::{Block as IpcBlock, MetadataVersion, Schema as IpcSchema, root_as_footer};
use bytes::Bytes;
use feedline_contained::contained;

use super::compression::{decompressed_bytes, is_compressed, message};
use crate::cache::CachedSize;
use crate::error::SourceError;
use crate::formats::features::FileColumns;
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
    pub(crate) columns: FileColumns,
    /// The record batches of a file; empty for a stream, whose index contains their locations.
    pub(crate) batches: Vec<MessageLocation>,
    pub(crate) is_stream: bool,
    pub(super) version: MetadataVersion,
    pub(super) dictionaries: Vec<(MessageLocation, Buffer)>,
}

/// The location of a message in the shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MessageLocation {
    pub(super) offset: u64,
    pub(super) metadata_bytes: u64,
    pub(super) body_bytes: u64,
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

    /// Returns the size of the message's buffers after decompression. `None` if they are not compressed.
    pub(crate) fn decompressed_bytes(&self, bytes: &[u8]) -> Result<Option<u64>, String> {
        let (metadata, body) =
            bytes.split_at_checked(self.metadata_bytes as usize).ok_or("the message is truncated")?;
        decompressed_bytes(metadata, body)
    }

    fn block(&self) -> IpcBlock {
        IpcBlock::new(self.offset as i64, self.metadata_bytes as i32, self.body_bytes as i64)
    }
}

impl CachedSize for ArrowFooter {
    fn held_bytes(&self) -> usize {
        let dictionaries = self.dictionaries.iter().map(|(_, bytes)| bytes.len());
        size_of_val(self.batches.as_slice()) + dictionaries.sum::<usize>()
    }
}

impl ArrowFooter {
    /// Reads the footer and the dictionaries. Returns `None` for a stream.
    pub(crate) async fn read(object: &Object) -> Result<Option<Self>, SourceError> {
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
            return match is_stream(object).await? {
                true => Ok(None),
                false => Err(SourceError::unsupported(
                    object.shard(),
                    "the file is not an Arrow file: check `source.format`",
                )),
            };
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
        let parsed = without_panic(|| Self::parse(&bytes, size)).map_err(corrupt)?;
        let (mut footer, dictionaries) = parsed.ok_or_else(|| big_endian(object))?;
        check_dictionaries(&dictionaries).map_err(corrupt)?;
        let header_bytes =
            footer.batches.iter().map(|location| location.metadata_bytes).fold(0, u64::saturating_add);
        if header_bytes > MAX_BATCH_HEADERS_BYTES || footer.batches.len() > MAX_BLOCKS {
            return Err(corrupt(format!(
                "the headers of the file's {} record batches exceed the size limit: write larger record batches",
                footer.batches.len()
            )));
        }
        footer.read_dictionaries(object, dictionaries).await?;
        Ok(Some(footer))
    }

    /// Reads the dictionaries, whose total size after decompression is limited.
    pub(super) async fn read_dictionaries(
        &mut self,
        object: &Object,
        dictionaries: Vec<MessageLocation>,
    ) -> Result<(), SourceError> {
        let mut total = 0_u64;
        for location in dictionaries {
            let offset = location.range().start;
            let corrupt = |reason| SourceError::corrupt(object.shard(), offset, reason);
            let bytes = object.read(location.range()).await?;
            let size = location.decompressed_bytes(&bytes).map_err(corrupt)?;
            total = total.saturating_add(size.unwrap_or(location.body_bytes));
            if total > MAX_DICTIONARY_BYTES {
                return Err(corrupt(dictionary_error()));
            }
            self.dictionaries.push((location, Buffer::from(bytes)));
        }
        Ok(())
    }

    /// Creates the footer of a file without record batches and dictionaries. Returns `None` if the numbers are big-endian, because the
    /// Arrow crate decodes them as little-endian numbers.
    pub(super) fn new(schema: IpcSchema<'_>, version: MetadataVersion) -> Result<Option<Self>, String> {
        if !schema.endianness().equals_to_target_endianness() {
            return Ok(None);
        }
        let schema = try_fb_to_schema(schema).map_err(|error| error.to_string())?;
        Ok(Some(Self {
            columns: FileColumns::new(&schema)?,
            schema: Arc::new(schema),
            batches: Vec::new(),
            is_stream: false,
            version,
            dictionaries: Vec::new(),
        }))
    }

    /// Parses a footer. Returns `None` if the numbers of the file are big-endian.
    fn parse(bytes: &Bytes, size: u64) -> Result<Option<(Self, Vec<MessageLocation>)>, String> {
        let footer = root_as_footer(bytes).map_err(|error| format!("the footer is corrupted: {error}"))?;
        let schema = footer.schema().ok_or("the footer has no schema: the file is corrupted")?;
        let location = |block: &IpcBlock| MessageLocation::new(block, size);
        let batches: Result<Vec<MessageLocation>, String> =
            footer.recordBatches().iter().flatten().map(location).collect();
        let dictionaries: Result<Vec<MessageLocation>, String> =
            footer.dictionaries().iter().flatten().map(location).collect();
        let Some(mut this) = Self::new(schema, footer.version())? else { return Ok(None) };
        this.batches = batches?;
        Ok(Some((this, dictionaries?)))
    }

    /// Reads the number of rows of each record batch from the headers of the messages, and whether the first batch is compressed.
    pub(crate) async fn batch_rows(&self, object: &Object) -> Result<(Vec<u32>, bool), SourceError> {
        let mut order: Vec<usize> = (0..self.batches.len()).collect();
        order.sort_by_key(|&at| self.batches[at].offset);
        let ranges: Vec<Range<u64>> = order
            .iter()
            .map(|&at| self.batches[at].offset..self.batches[at].offset + self.batches[at].metadata_bytes)
            .collect();
        let (buffers, spans) = object.read_ranges(&ranges).await?;
        let mut rows = vec![0; self.batches.len()];
        let mut is_first_compressed = false;
        for (at, span) in order.into_iter().zip(spans) {
            let header = &buffers[span.buffer][span.start..span.start + span.len];
            rows[at] = message_rows(header)
                .map_err(|reason| SourceError::corrupt(object.shard(), self.batches[at].offset, reason))?;
            is_first_compressed |= at == 0 && is_compressed(header);
        }
        Ok((rows, is_first_compressed))
    }

    /// Returns the ratio of the decompressed to the stored size of the first record batch that is not empty.
    pub(crate) async fn sample_ratio(&self, object: &Object, rows: &[u32]) -> Result<f64, SourceError> {
        let Some((location, _)) = self.batches.iter().zip(rows).find(|(_, rows)| **rows > 0) else {
            return Ok(1.0);
        };
        message_ratio(object, location).await
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
            // In a stream, a later dictionary belongs to later record batches.
            let is_earlier =
                |dictionary: &MessageLocation| !self.is_stream || dictionary.offset < location.offset;
            for (location, bytes) in self.dictionaries.iter().filter(|(location, _)| is_earlier(location)) {
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

/// Returns the ratio of the decompressed to the stored size of a message.
pub(super) async fn message_ratio(object: &Object, location: &MessageLocation) -> Result<f64, SourceError> {
    let bytes = object.read(location.range()).await?;
    let size = location
        .decompressed_bytes(&bytes)
        .map_err(|reason| SourceError::corrupt(object.shard(), location.offset, reason))?;
    Ok(size.map_or(1.0, |size| size as f64 / bytes.len().max(1) as f64).max(1.0))
}

/// The error for a file whose numbers are big-endian.
pub(super) fn big_endian(object: &Object) -> SourceError {
    let reason = "its numbers are in big-endian byte order: read it with pyarrow, which converts them, and write it again";
    SourceError::unsupported(object.shard(), reason)
}

/// Checks the total size of dictionaries.
pub(super) fn check_dictionaries(dictionaries: &[MessageLocation]) -> Result<(), String> {
    let bytes = |location: &MessageLocation| location.range().end - location.range().start;
    if dictionaries.iter().map(bytes).fold(0, u64::saturating_add) <= MAX_DICTIONARY_BYTES {
        return Ok(());
    }
    Err(dictionary_error())
}

fn dictionary_error() -> String {
    format!(
        "the dictionaries exceed the limit of {MAX_DICTIONARY_BYTES} bytes: write the columns without dictionaries"
    )
}

/// Converts panics to errors. The Arrow crate panics on some corrupted schemas and messages.
pub(super) fn without_panic<T>(decode: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    contained(decode, "the Arrow data is invalid: the file is corrupted")
}

pub(super) fn message_rows(header: &[u8]) -> Result<u32, String> {
    let bad = || "the header of a record batch cannot be read: the file is corrupted".to_owned();
    let message = message(header).ok_or_else(bad)?;
    let rows = message.header_as_record_batch().ok_or_else(bad)?.length();
    u32::try_from(rows).map_err(|_| {
        format!("a record batch has {rows} rows, more than the limit of 2^32: write smaller record batches")
    })
}

/// Whether a file that does not end with the magic bytes is a stream.
async fn is_stream(object: &Object) -> Result<bool, SourceError> {
    let start = object.read(0..object.size_bytes().min(6)).await?;
    if start.starts_with(MAGIC) {
        let reason = "the Arrow file is truncated: write the file again";
        return Err(SourceError::unsupported(object.shard(), reason));
    }
    Ok(start.starts_with(&[0xff; 4]))
}
