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
    parts: Vec<Bytes>,
    bytes: usize,
}

impl PageParts {
    pub(super) fn new(parts: impl IntoIterator<Item = Bytes>) -> Self {
        let parts: Vec<Bytes> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        let bytes = parts.iter().map(Bytes::len).sum();
        Self(Arc::new(Parts { parts, bytes }))
    }

    pub(super) fn reader(&self) -> Arc<Parts> {
        Arc::clone(&self.0)
    }

    /// Describes the imaginary file, which contains only this column chunk. `None` if the description is invalid.
    pub(super) fn describe(&self, chunk: &ColumnChunkMetaData) -> Option<ColumnChunkMetaData> {
        let builder = chunk.clone().into_builder().set_dictionary_page_offset(None).set_data_page_offset(0);
        builder.set_total_compressed_size(i64::try_from(self.0.bytes).ok()?).build().ok()
    }
}

impl Parts {
    fn from(&self, offset: u64) -> Result<Bytes> {
        let mut at = usize::try_from(offset)?;
        for part in &self.parts {
            if at < part.len() {
                return Ok(part.slice(at..));
            }
            at -= part.len();
        }
        Err(ParquetError::EOF("a page is outside of its column: the file is corrupted".to_owned()))
    }
}

impl Length for Parts {
    fn len(&self) -> u64 {
        self.bytes as u64
    }
}

impl ChunkReader for Parts {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        Ok(self.from(start)?.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        let part = self.from(start)?;
        if part.len() < length {
            return Err(ParquetError::EOF("a page is truncated: the file is corrupted".to_owned()));
        }
        Ok(part.slice(..length))
    }
}
