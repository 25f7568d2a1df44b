//! Gives the Parquet crate access to the ranges of a shard.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use super::thrift::{check_footer, decompressed_bytes};
use crate::error::SourceError;
use crate::limits::MAX_FOOTER_BYTES;
use crate::object::Object;

/// A shard's tail that most footers fit into.
const FOOTER_READ_BYTES: u64 = 64 << 10;
/// The size of the footer's length and the magic at the end of the shard.
const TAIL_BYTES: u64 = 8;

/// Reads ranges of a shard. Stores the error of a failed read, because the Parquet crate converts errors to text.
#[derive(Clone)]
pub(crate) struct ObjectReader {
    object: Arc<Object>,
    failed: Arc<Mutex<Option<SourceError>>>,
    /// The end of the shard, if it was read before.
    tail: Bytes,
    /// The remaining number of bytes that decompressed pages may have.
    room: Option<Arc<AtomicU64>>,
}

impl ObjectReader {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        Self { object, failed: Arc::default(), tail: Bytes::new(), room: None }
    }

    /// Reads and checks the shard's footer.
    pub(crate) async fn with_footer(mut self) -> std::result::Result<Self, SourceError> {
        let size = self.object.size_bytes();
        let corrupt = |reason: String| SourceError::corrupt(self.object.shard(), size, reason);
        let start = size.saturating_sub(FOOTER_READ_BYTES);
        let mut tail = self.object.read(start..size).await?;
        let Some([l0, l1, l2, l3, magic @ ..]) = tail.last_chunk::<{ TAIL_BYTES as usize }>() else {
            return Err(corrupt("it is not a Parquet file: check the format".to_owned()));
        };
        // The Parquet crate rejects any other magic.
        if magic == b"PAR1" {
            let length = u64::from(u32::from_le_bytes([*l0, *l1, *l2, *l3]));
            let footer_start = size.checked_sub(TAIL_BYTES + length);
            if length > MAX_FOOTER_BYTES {
                return Err(corrupt(format!(
                    "its footer has {length} bytes, more than {MAX_FOOTER_BYTES}: write larger row groups, or fewer columns"
                )));
            }
            if let Some(footer_start) = footer_start {
                if footer_start < start {
                    tail = self.object.read(footer_start..size).await?;
                }
                let from_end = (TAIL_BYTES + length) as usize;
                let footer = &tail[tail.len() - from_end..tail.len() - TAIL_BYTES as usize];
                check_footer(footer).map_err(corrupt)?;
            }
        }
        self.tail = tail;
        Ok(self)
    }

    /// Limits the total size of all pages after decompression.
    pub(crate) fn with_room(self, bytes: u64) -> Self {
        Self { room: Some(Arc::new(AtomicU64::new(bytes))), ..self }
    }

    /// Subtracts the claimed sizes of these pages from the remaining size.
    fn check_room(&self, pages: &[Bytes]) -> Result<()> {
        let Some(room) = &self.room else { return Ok(()) };
        let wanted = pages.iter().map(|part| decompressed_bytes(part)).fold(0, u64::saturating_add);
        let take = |left: u64| left.checked_sub(wanted);
        if room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
            return Ok(());
        }
        let reason = format!(
            "its pages claim {wanted} bytes once they are decompressed, far more than its footer says: the file is damaged, or made \
             to fill memory"
        );
        Err(self.keep(SourceError::corrupt(self.object.shard(), 0, reason)))
    }

    /// A part of the tail that was read before.
    fn tail_part(&self, range: &Range<u64>) -> Option<Bytes> {
        let start = self.object.size_bytes() - self.tail.len() as u64;
        let at = range.start.checked_sub(start)? as usize;
        let end = at.checked_add(range.end.checked_sub(range.start)? as usize)?;
        (end <= self.tail.len()).then(|| self.tail.slice(at..end))
    }

    /// The error to report for one that the Parquet crate returned.
    pub(crate) fn error(&self, error: &ParquetError, offset: u64) -> SourceError {
        let failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.unwrap_or_else(|| SourceError::corrupt(self.object.shard(), offset, error.to_string()))
    }

    fn keep(&self, error: SourceError) -> ParquetError {
        let text = error.to_string();
        *self.failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        ParquetError::General(text)
    }
}

impl AsyncFileReader for ObjectReader {
    fn get_bytes(&mut self, range: Range<u64>) -> BoxFuture<'_, Result<Bytes>> {
        async move {
            if let Some(bytes) = self.tail_part(&range) {
                return Ok(bytes);
            }
            let bytes = self.object.read(range).await.map_err(|error| self.keep(error))?;
            self.check_room(std::slice::from_ref(&bytes))?;
            Ok(bytes)
        }
        .boxed()
    }

    fn get_byte_ranges(&mut self, ranges: Vec<Range<u64>>) -> BoxFuture<'_, Result<Vec<Bytes>>> {
        async move {
            // Ranges come in column order, which need not be file order.
            let mut order: Vec<usize> = (0..ranges.len()).collect();
            order.sort_by_key(|&at| ranges[at].start);
            let sorted: Vec<Range<u64>> = order.iter().map(|&at| ranges[at].clone()).collect();
            let (buffers, spans) =
                self.object.read_ranges(&sorted).await.map_err(|error| self.keep(error))?;
            let mut parts = vec![Bytes::new(); ranges.len()];
            for (at, span) in order.into_iter().zip(spans) {
                parts[at] = buffers[span.buffer].slice(span.start..span.start + span.len);
            }
            self.check_room(&parts)?;
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
