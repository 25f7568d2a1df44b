//! Parts of a column chunk that have been read: its dictionary, and some of its pages.

use std::sync::Arc;

use bytes::{Buf, Bytes, buf::Reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, Length};

/// Contiguous parts of a column chunk. They are at offset 0 of an imaginary file, one after another. No page is in two parts.
#[derive(Debug, Clone)]
pub(super) struct PageParts(Arc<Parts>);

#[derive(Debug)]
pub(super) struct Parts {
    /// Each part with the offset of its end.
    parts: Vec<(u64, Bytes)>,
}

impl PageParts {
    pub(super) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let mut end = 0;
        let with_end = |part: Bytes| {
            end += part.len() as u64;
            (end, part)
        };
        let parts = parts.into_iter().filter(|part| !part.is_empty()).map(with_end).collect();
        Self(Arc::new(Parts { parts }))
    }

    pub(super) fn reader(&self) -> Arc<Parts> {
        Arc::clone(&self.0)
    }

    /// Describes the imaginary file, which contains only this column chunk. `None` if the description is invalid.
    pub(super) fn describe(&self, chunk: &ColumnChunkMetaData) -> Option<ColumnChunkMetaData> {
        let builder = chunk.clone().into_builder().set_dictionary_page_offset(None).set_data_page_offset(0);
        builder.set_total_compressed_size(i64::try_from(self.0.len()).ok()?).build().ok()
    }
}

impl Parts {
    /// Returns the bytes from an offset to the end of the part that contains it.
    pub(super) fn bytes_from(&self, offset: u64) -> Result<Bytes> {
        let outside =
            || ParquetError::EOF("a page is outside of its column: the file is corrupted".to_owned());
        let index = self.parts.partition_point(|(end, _)| *end <= offset);
        let (end, part) = self.parts.get(index).ok_or_else(outside)?;
        Ok(part.slice(part.len() - (end - offset) as usize..))
    }
}

impl Length for Parts {
    fn len(&self) -> u64 {
        self.parts.last().map_or(0, |(end, _)| *end)
    }
}

impl ChunkReader for Parts {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.bytes_from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let part = self.bytes_from(start)?;
        if part.len() < length {
            return Err(ParquetError::EOF("a page is truncated: the file is corrupted".to_owned()));
        }
        Ok(part.slice(..length))
    }
}
