//! What the Parquet crate reads shards through.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use parquet::arrow::arrow_reader::ArrowReaderOptions;
use parquet::arrow::async_reader::AsyncFileReader;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};

use crate::error::SourceError;
use crate::object::Object;

/// A shard's tail that most footers fit into.
const FOOTER_READ_BYTES: usize = 64 << 10;

/// Reads ranges of a shard, and keeps why a read failed, which the Parquet crate would turn into text.
#[derive(Clone)]
pub(crate) struct ObjectReader {
    object: Arc<Object>,
    failed: Arc<Mutex<Option<SourceError>>>,
}

impl ObjectReader {
    pub(crate) fn new(object: Arc<Object>) -> Self {
        Self { object, failed: Arc::default() }
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
        async move { self.object.read(range).await.map_err(|error| self.keep(error)) }.boxed()
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
                .with_prefetch_hint(Some(FOOTER_READ_BYTES))
                .load_and_finish(&mut *self, size)
                .await?;
            Ok(Arc::new(metadata))
        }
        .boxed()
    }
}
