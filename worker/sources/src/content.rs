//! The content of a shard: its bytes, or the decompressed bytes if the shard is compressed. Formats of rows read content, so
//! that they need not know about compression.

mod blocks;
mod content_reader;
mod damage;
mod decoders;
mod decompressing;
mod file_compression;
mod indexing_memory;
mod metrics;
mod points;
mod range;
mod runs;
mod sections;
mod shared_memory;

use std::ops::Range;

use bytes::Bytes;
use feedline_compression::{DETECTION_BYTES, detect, detect_unsupported, is_truncated_magic, may_be_zlib};
use feedline_data::compression::{Codec, ShardCompression};

use crate::error::SourceError;
use crate::formats::tfrecord::is_record;
use crate::object::{BufferSpan, Object};
use crate::reader::BlockRead;
use crate::window::ReadWindow;

pub(crate) use blocks::ContentBlocks;
use damage::describe;
pub use decoders::{Decoders, RunTurn};
use decompressing::DecompressingWindow;
pub(crate) use file_compression::FileCompression;
pub(crate) use indexing_memory::{IndexingMemory, SMALL_BYTES};
pub use metrics::METRICS;
pub(crate) use points::may_begin_run;
use range::RangeSource;
use runs::RunPart;
pub(crate) use runs::group_of_part;

/// Whether a shard is compressed as a whole.
pub(crate) async fn is_compressed(object: &Object) -> Result<bool, SourceError> {
    let start = object.read(0..object.size_bytes().min(DETECTION_BYTES)).await?;
    Ok(codec_of(object, &start)?.is_some())
}

/// The codec of a shard: the declared one, or the one that its first bytes determine. The length of a TFRecord may look like the
/// magic of a codec, but its checksum does not.
fn codec_of(object: &Object, start: &[u8]) -> Result<Option<Codec>, SourceError> {
    let FileCompression { declared, has_records } = object.compression();
    Ok(match declared {
        Some(declared) => declared.codec(),
        None if has_records && is_record(start) => None,
        None if has_records && may_be_zlib(start) => Some(Codec::Zlib),
        None => match detect(start).or_else(|| codec_in_name(object, start)) {
            None => {
                check_supported(object, start)?;
                None
            }
            codec => codec,
        },
    })
}

/// Rejects a shard that begins like a file of another compressed format, whose bytes would otherwise be read as text.
fn check_supported(object: &Object, start: &[u8]) -> Result<(), SourceError> {
    let Some(format) = detect_unsupported(start) else { return Ok(()) };
    let reason = format!(
        "it is {format}: compress its content with gzip, zstd, bzip2 or xz instead, or set `source.compression: none` if it is not \
         compressed"
    );
    Err(SourceError::unsupported(object.shard(), reason))
}

/// The codec in the name of a shard that has fewer bytes than determine a codec, because it is truncated.
fn codec_in_name(object: &Object, start: &[u8]) -> Option<Codec> {
    let codec = match object.shard().url.rsplit('.').next()? {
        "gz" | "tgz" => Codec::Gzip,
        "zst" => Codec::Zstd,
        "bz2" => Codec::Bzip2,
        "xz" => Codec::Xz,
        _ => return None,
    };
    let is_truncated = start.len() as u64 == object.size_bytes() && is_truncated_magic(codec, start);
    is_truncated.then_some(codec)
}

/// The content of a shard, for reads of ranges.
pub(crate) struct Content<'a> {
    object: &'a Object,
    codec: Option<Codec>,
    /// `None` if the shard is not compressed, or is being indexed. Reads then start at the start of the shard.
    compression: Option<&'a ShardCompression>,
    part: Option<RunPart>,
}

impl<'a> Content<'a> {
    /// The content of an indexed shard.
    pub(crate) fn indexed(object: &'a Object, compression: Option<&'a ShardCompression>) -> Self {
        Self { object, codec: compression.map(|compression| compression.codec), compression, part: None }
    }

    /// The content of the shard of a block.
    pub(crate) fn of_block(object: &'a Object, read: &BlockRead<'a>) -> Self {
        let part = read.compression().and_then(|_| RunPart::of_group(read.block.group));
        Self { part, ..Self::indexed(object, read.compression()) }
    }

    fn source(&self, codec: Codec) -> RangeSource<'a> {
        RangeSource { object: self.object, codec, compression: self.compression, part: self.part }
    }

    pub(crate) fn object(&self) -> &'a Object {
        self.object
    }

    /// Reads a range completely.
    pub(crate) async fn read(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        let Some(codec) = self.codec else { return self.object.read(range).await };
        let length = range.end.saturating_sub(range.start);
        let bytes = self.source(codec).read(range.clone()).await?;
        if bytes.len() as u64 == length {
            return Ok(bytes);
        }
        let reason =
            "the index contains a range beyond the end of the content: run `feedline index --rebuild`";
        Err(SourceError::corrupt(self.object.shard(), range.end, reason))
    }

    /// Reads the first `max_bytes` bytes, or fewer if the content is smaller, or damaged.
    pub(crate) async fn read_start(&self, max_bytes: u64) -> Result<Bytes, SourceError> {
        match self.codec {
            Some(codec) => {
                let end = self.compression.map_or(max_bytes, |known| max_bytes.min(known.content_bytes));
                RangeSource { compression: None, part: None, ..self.source(codec) }.read(0..end).await
            }
            None => self.object.read(0..max_bytes.min(self.object.size_bytes())).await,
        }
    }

    /// Reads several ascending and disjoint ranges. Returns the buffers, and the position of each range in a buffer.
    pub(crate) async fn read_ranges(
        &self,
        ranges: &[Range<u64>],
    ) -> Result<(Vec<Bytes>, Vec<BufferSpan>), SourceError> {
        let (Some(_), Some(first), Some(last)) = (self.codec, ranges.first(), ranges.last()) else {
            return self.object.read_ranges(ranges).await;
        };
        // Everything between the ranges must be decompressed anyway.
        let buffer = self.read(first.start..last.end).await?;
        let span = |range: &Range<u64>| {
            let start = (range.start - first.start) as usize;
            BufferSpan { buffer: 0, start, len: (range.end - range.start) as usize }
        };
        Ok((vec![buffer], ranges.iter().map(span).collect()))
    }
}

/// A part of the content in memory, which moves forward. Used to index a shard.
pub(crate) enum ContentWindow<'a> {
    Plain(ReadWindow<'a>, IndexingMemory<'a>),
    Compressed(Box<DecompressingWindow<'a>>),
}

impl<'a> ContentWindow<'a> {
    /// Opens the shard and determines its compression.
    pub(crate) async fn open(object: &'a Object) -> Result<Self, SourceError> {
        let mut window = ReadWindow::new(object);
        let start = window.read_from(0, DETECTION_BYTES).await?;
        let Some(codec) = codec_of(object, start)? else {
            return Ok(Self::Plain(window, IndexingMemory::new(object.decoders())));
        };
        let decoder = feedline_compression::start(codec)
            .map_err(|error| SourceError::unsupported(object.shard(), error.reason))?;
        let start = start.to_vec();
        Ok(Self::Compressed(Box::new(DecompressingWindow::new(object, codec, decoder, start))))
    }

    /// The content, for reads of ranges before the index exists.
    pub(crate) fn content(&self) -> Content<'a> {
        let (object, codec) = match self {
            Self::Plain(window, _) => (window.object(), None),
            Self::Compressed(window) => (window.object(), Some(window.codec())),
        };
        Content { object, codec, compression: None, part: None }
    }

    /// Makes the bytes from `offset` available, at least `min_bytes`, except at the end of the content. Bytes before `offset`
    /// are no longer available.
    pub(crate) async fn fill(&mut self, offset: u64, min_bytes: u64) -> Result<(), SourceError> {
        match self {
            Self::Plain(window, _) => window.read_from(offset, min_bytes).await.map(|_| ()),
            Self::Compressed(window) => window.fill(offset, min_bytes).await,
        }
    }

    /// Waits until a row of this size may be in memory beside the decoder. The previous row is no longer counted.
    pub(crate) async fn hold_row(&mut self, bytes: u64) {
        match self {
            Self::Plain(_, memory) => memory.hold_row(bytes).await,
            Self::Compressed(window) => window.memory.hold_row(bytes).await,
        }
    }

    /// The memory of the shard. The window and the decoder end.
    pub(crate) fn into_memory(self) -> IndexingMemory<'a> {
        match self {
            Self::Plain(_, memory) => memory,
            Self::Compressed(window) => window.memory,
        }
    }

    /// The available bytes from `offset`. Empty at the end of the content.
    pub(crate) fn bytes(&self, offset: u64) -> &[u8] {
        match self {
            Self::Plain(window, _) => window.bytes(offset),
            Self::Compressed(window) => window.bytes(offset),
        }
    }

    /// Makes the bytes from `offset` available, and returns them.
    pub(crate) async fn read_from(&mut self, offset: u64, min_bytes: u64) -> Result<&[u8], SourceError> {
        self.fill(offset, min_bytes).await?;
        Ok(self.bytes(offset))
    }

    /// Whether the content has at least `offset` bytes. Moves the window to `offset` if that must be found out.
    pub(crate) async fn reaches(&mut self, offset: u64) -> Result<bool, SourceError> {
        match self {
            Self::Plain(window, _) => Ok(offset <= window.object().size_bytes()),
            Self::Compressed(window) => {
                window.fill(offset, 0).await?;
                Ok(offset <= window.end())
            }
        }
    }

    /// Number of bytes from `offset` to the end of the content. If the end is unknown, the result is larger than any content.
    pub(crate) fn max_remaining(&self, offset: u64) -> u64 {
        match self {
            Self::Plain(window, _) => window.object().size_bytes().saturating_sub(offset),
            Self::Compressed(window) => {
                window.known_end().map_or(u64::MAX >> 1, |end| end.saturating_sub(offset))
            }
        }
    }

    /// The reason why the content ends early.
    pub(crate) fn error(&self) -> Option<String> {
        match self {
            Self::Plain(..) => None,
            Self::Compressed(window) => window.error().map(describe),
        }
    }
}

#[cfg(test)]
mod tests;
