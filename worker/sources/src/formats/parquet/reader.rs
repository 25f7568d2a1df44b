//! Implements the file interface of the Parquet crate for shards.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use feedline_compression::{DETECTION_BYTES, detect};
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::thrift::{check_footer, decompressed_bytes, is_encrypted};
use crate::error::SourceError;
use crate::limits::MAX_FOOTER_BYTES;
use crate::object::Object;

/// Number of bytes that are read from the end of a shard to find the footer. These bytes contain the whole footer of
/// most files.
const FOOTER_READ_BYTES: u64 = 64 << 10;
/// Size of the footer length and the magic at the end of a shard.
const TAIL_BYTES: u64 = 8;

/// Reads ranges of a shard. Stores the error of a failed read, because the Parquet crate converts errors to text.
#[derive(Clone)]
pub(crate) struct ObjectReader {
    object: Arc<Object>,
    read_error: Arc<Mutex<Option<SourceError>>>,
    /// The last bytes of the shard, which `with_footer` has read.
    tail: Bytes,
    /// The dictionaries that have been read already, by their offsets.
    dictionaries: Arc<HashMap<u64, Bytes>>,
    /// Remaining number of bytes for decompressed pages. `None` without a limit.
    remaining_page_bytes: Option<Arc<AtomicU64>>,
}

/// The error message for an encrypted file.
const ENCRYPTED: &str = "the file is encrypted, which is not supported: write it without encryption";

impl ObjectReader {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        Self {
            object,
            read_error: Arc::default(),
            tail: Bytes::new(),
            dictionaries: Arc::default(),
            remaining_page_bytes: None,
        }
    }

    /// Reads and checks the shard's footer.
    pub(crate) async fn with_footer(mut self) -> std::result::Result<Self, SourceError> {
        let size = self.object.size_bytes();
        let corrupt = |reason: String| SourceError::corrupt(self.object.shard(), size, reason);
        let start = size.saturating_sub(FOOTER_READ_BYTES);
        let mut tail = self.object.read(start..size).await?;
        let Some([l0, l1, l2, l3, magic @ ..]) = tail.last_chunk::<{ TAIL_BYTES as usize }>() else {
            return Err(corrupt("the file is not a Parquet file: check `source.format`".to_owned()));
        };
        if magic == b"PARE" {
            return Err(SourceError::unsupported(self.object.shard(), ENCRYPTED));
        }
        if magic != b"PAR1" {
            self.check_uncompressed().await?;
        }
        // The Parquet crate rejects any other magic.
        if magic == b"PAR1" {
            let length = u64::from(u32::from_le_bytes([*l0, *l1, *l2, *l3]));
            let footer_start = size.checked_sub(TAIL_BYTES + length);
            if length > MAX_FOOTER_BYTES {
                return Err(corrupt(format!(
                    "the footer is {length} bytes long; the limit is {MAX_FOOTER_BYTES} bytes: write larger row groups, or fewer columns"
                )));
            }
            if let Some(footer_start) = footer_start {
                if footer_start < start {
                    tail = self.object.read(footer_start..size).await?;
                }
                let from_end = (TAIL_BYTES + length) as usize;
                let footer = &tail[tail.len() - from_end..tail.len() - TAIL_BYTES as usize];
                check_footer(footer).map_err(corrupt)?;
                if is_encrypted(footer) {
                    return Err(SourceError::unsupported(self.object.shard(), ENCRYPTED));
                }
            }
        }
        self.tail = tail;
        Ok(self)
    }

    /// Rejects a shard that is compressed as a whole.
    async fn check_uncompressed(&self) -> std::result::Result<(), SourceError> {
        let start = self.object.read(0..self.object.size_bytes().min(DETECTION_BYTES)).await?;
        let Some(codec) = detect(&start) else { return Ok(()) };
        let reason = format!(
            "it is a {} file, and a Parquet file that is compressed as a whole cannot be read: decompress it, and compress its pages \
             instead, or check `source.format`",
            codec.name()
        );
        Err(SourceError::unsupported(self.object.shard(), reason))
    }

    /// Adds dictionaries that have been read already, by their offsets.
    pub(super) fn with_dictionaries(self, dictionaries: HashMap<u64, Bytes>) -> Self {
        Self { dictionaries: Arc::new(dictionaries), ..self }
    }

    /// Returns a dictionary that has been read already. `None` for all other ranges.
    fn dictionary(&self, range: &Range<u64>) -> Option<Bytes> {
        let dictionary = self.dictionaries.get(&range.start)?;
        (range.start + dictionary.len() as u64 == range.end).then(|| dictionary.clone())
    }

    /// Limits the total size of the decompressed pages.
    pub(crate) fn with_page_limit(self, bytes: u64) -> Self {
        Self { remaining_page_bytes: Some(Arc::new(AtomicU64::new(bytes))), ..self }
    }

    /// Counts the decompressed sizes in the page headers towards the limit. Fails if they exceed the limit.
    fn check_page_sizes(&self, pages: &[Bytes]) -> Result<()> {
        let Some(remaining_page_bytes) = &self.remaining_page_bytes else { return Ok(()) };
        let page_bytes = pages.iter().map(|part| decompressed_bytes(part)).fold(0, u64::saturating_add);
        let subtract = |remaining: u64| remaining.checked_sub(page_bytes);
        if remaining_page_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, subtract).is_ok() {
            return Ok(());
        }
        let reason = format!(
            "the pages decompress to {page_bytes} bytes, much more than the footer declares: the file is corrupted"
        );
        Err(self.store_error(SourceError::corrupt(self.object.shard(), 0, reason)))
    }

    /// Returns a range of the shard if `tail` contains the range.
    fn tail_part(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = self.object.size_bytes() - self.tail.len() as u64;
        let at = range.start.checked_sub(start)? as usize;
        let end = at.checked_add(range.end.checked_sub(range.start)? as usize)?;
        (end <= self.tail.len()).then(|| self.tail.slice(at..end))
    }

    /// Converts an error of the Parquet crate. Returns the stored error of a failed read, if there is one.
    pub(crate) fn error(&self, error: &ParquetError, offset: u64) -> SourceError {
        let read_error = self.read_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        read_error.unwrap_or_else(|| SourceError::corrupt(self.object.shard(), offset, error.to_string()))
    }

    fn store_error(&self, error: SourceError) -> ParquetError {
        let text = error.to_string();
        *self.read_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        ParquetError::General(text)
    }
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            if let Some(bytes) = self.tail_part(&range) {
                return Ok(bytes);
            }
            let bytes = self.object.read(range).await.map_err(|error| self.store_error(error))?;
            self.check_page_sizes(std::slice::from_ref(&bytes))?;
            Ok(bytes)
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            let mut parts = vec![Bytes::new(); ranges.len()];
            let mut order = Vec::with_capacity(ranges.len());
            for (at, range) in ranges.iter().enumerate() {
                match self.dictionary(range) {
                    Some(dictionary) => parts[at] = dictionary,
                    None => order.push(at),
                }
            }
            // Sort the ranges, which are in column order, by their offset in the file.
            order.sort_by_key(|&at| ranges[at].start);
            let sorted: Vec<Range<u64>> = order.iter().map(|&at| ranges[at].clone()).collect();
            let (buffers, spans) =
                self.object.read_ranges(&sorted).await.map_err(|error| self.store_error(error))?;
            for (at, span) in order.into_iter().zip(spans) {
                parts[at] = buffers[span.buffer].slice(span.start..span.start + span.len);
            }
            self.check_page_sizes(&parts)?;
            Ok(parts)
        }
        .boxed()
    }

    fn get_metadata<'a>(
        &'a mut self,
        options: Option<&'a ArrowReaderOptions>,
    ) -> BoxFuture<'a, Result<Arc<ParquetMetaData>>> {
        async move {
            let size = self.object.size_bytes();
            let metadata = ParquetMetaDataReader::new()
                .with_arrow_reader_options(options)
                .with_prefetch_hint(Some(FOOTER_READ_BYTES as usize))
                .load_and_finish(&mut *self, size)
                .await?;
            Ok(Arc::new(metadata))
        }
        .boxed()
    }
}
