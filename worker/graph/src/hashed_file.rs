//! Files of a graph that are written in order, with the hash of each block.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use feedline_data::graph::description::StoredFile;
use feedline_data::schema::ScalarType;

use crate::block_hasher::BlockHasher;
use crate::error::GraphError;
use crate::npy;

/// Size of the buffer of a file.
const BUFFER_BYTES: usize = 1 << 20;

/// A file that is written in order.
pub(crate) struct HashedFile {
    file: File,
    /// The path in the folder of the graph.
    path: String,
    full_path: PathBuf,
    buffer: Vec<u8>,
    hasher: BlockHasher,
    bytes: u64,
}

impl HashedFile {
    /// Creates a file in the folder of a graph. Creates its parent directory.
    pub(crate) fn create(folder: &Path, path: String) -> Result<Self, GraphError> {
        let full_path = folder.join(&path);
        let parent = full_path.parent().unwrap_or(folder);
        let created = std::fs::create_dir_all(parent).and_then(|()| File::create_new(&full_path));
        let file = created.map_err(|error| GraphError::io("create", &full_path, &error))?;
        let buffer = Vec::with_capacity(BUFFER_BYTES);
        Ok(Self { file, path, full_path, buffer, hasher: BlockHasher::new(), bytes: 0 })
    }

    /// Writes a header, which is not hashed.
    fn write_header(&mut self, header: &[u8]) {
        self.buffer.extend_from_slice(header);
        self.bytes += header.len() as u64;
    }

    /// Writes bytes at the end.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        self.hasher.update(bytes);
        self.bytes += bytes.len() as u64;
        if self.buffer.len() + bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.flush_buffer()?;
        if bytes.len() < BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.file.write_all(bytes).map_err(|error| GraphError::io("write", &self.full_path, &error))
    }

    fn flush_buffer(&mut self) -> Result<(), GraphError> {
        let written = self.file.write_all(&self.buffer);
        written.map_err(|error| GraphError::io("write", &self.full_path, &error))?;
        self.buffer.clear();
        Ok(())
    }

    /// Writes the rest, and returns the description of the file.
    pub(crate) fn finish(mut self) -> Result<StoredFile, GraphError> {
        self.flush_buffer()?;
        Ok(StoredFile { path: self.path, bytes: self.bytes, blocks: self.hasher.finish() })
    }
}

/// Lets other libraries write a file.
impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flush_buffer().map_err(|error| io::Error::other(error.to_string()))
    }
}

/// A NumPy file whose rows are written in order.
pub(crate) struct ArrayWriter {
    file: HashedFile,
    dtype: ScalarType,
    row_shape: Vec<u32>,
    header_bytes: u64,
    scratch: Vec<u8>,
}

impl ArrayWriter {
    /// Creates a file for rows of this shape. `path` is relative to the folder of the graph.
    pub(crate) fn create(
        folder: &Path,
        path: String,
        dtype: ScalarType,
        row_shape: &[u32],
    ) -> Result<Self, GraphError> {
        let mut file = HashedFile::create(folder, path)?;
        let header = npy::header(dtype, 0, row_shape);
        file.write_header(&header);
        let header_bytes = header.len() as u64;
        Ok(Self { file, dtype, row_shape: row_shape.to_vec(), header_bytes, scratch: Vec::new() })
    }

    /// Writes rows.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        self.file.append(bytes)
    }

    /// Writes numbers. Their type is that of the array.
    pub(crate) fn write_numbers<T: LittleEndian>(&mut self, numbers: &[T]) -> Result<(), GraphError> {
        /// The number of elements that are converted at a time.
        const CHUNK: usize = 1 << 16;
        for chunk in numbers.chunks(CHUNK) {
            let mut scratch = std::mem::take(&mut self.scratch);
            T::convert(chunk, &mut scratch);
            let written = self.write(&scratch);
            self.scratch = scratch;
            written?;
        }
        Ok(())
    }

    /// Writes the number of rows into the header, and returns the description of the file.
    pub(crate) fn finish(self) -> Result<StoredFile, GraphError> {
        let elements: u64 = self.row_shape.iter().map(|&extent| u64::from(extent)).product();
        let row_bytes = elements * self.dtype.width_bytes() as u64;
        let rows = (self.file.bytes - self.header_bytes) / row_bytes.max(1);
        let header = npy::header(self.dtype, rows, &self.row_shape);
        let (file, full_path) = (self.file.file.try_clone(), self.file.full_path.clone());
        let stored = self.file.finish()?;
        file.and_then(|file| file.write_all_at(&header, 0))
            .map_err(|error| GraphError::io("write", &full_path, &error))?;
        Ok(stored)
    }
}

/// Numbers that are written in little-endian order.
pub(crate) trait LittleEndian: Sized {
    /// Replaces the contents of `bytes` by the numbers.
    fn convert(numbers: &[Self], bytes: &mut Vec<u8>);
}

macro_rules! little_endian {
    ($($number:ty),+) => {
        $(impl LittleEndian for $number {
            fn convert(numbers: &[Self], bytes: &mut Vec<u8>) {
                bytes.resize(size_of_val(numbers), 0);
                for (slot, number) in bytes.chunks_exact_mut(size_of::<Self>()).zip(numbers) {
                    slot.copy_from_slice(&number.to_le_bytes());
                }
            }
        })+
    };
}

little_endian!(u32, u64, i64, half::f16);

#[cfg(test)]
mod tests {
    use feedline_sources::NpyArrayHeader;

    use super::*;
    use crate::block_hasher::hash_block;

    #[test]
    fn an_array_has_a_header_with_its_rows_and_the_hash_of_its_data() {
        let folder = tempfile::tempdir().unwrap();
        let numbers: Vec<u32> = (0..700_000).collect();
        let mut writer =
            ArrayWriter::create(folder.path(), "a/b.npy".to_owned(), ScalarType::UInt32, &[2]).unwrap();
        for chunk in numbers.chunks(999) {
            writer.write_numbers(chunk).unwrap();
        }
        let stored = writer.finish().unwrap();
        let bytes = std::fs::read(folder.path().join("a/b.npy")).unwrap();
        let header = NpyArrayHeader::parse(&bytes).unwrap();
        assert_eq!((header.scalar, header.shape), (ScalarType::UInt32, vec![350_000, 2]));
        assert_eq!((stored.bytes, stored.path.as_str()), (bytes.len() as u64, "a/b.npy"));
        let data = &bytes[header.data_start as usize..];
        assert_eq!(data, numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>());
        assert_eq!(stored.blocks, [hash_block(data)]);
    }

    #[test]
    fn other_libraries_write_through_the_hasher() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = HashedFile::create(folder.path(), "x".to_owned()).unwrap();
        let bytes = vec![7; (BUFFER_BYTES * 5) / 2];
        file.write_all(&bytes[..10]).unwrap();
        file.write_all(&bytes[10..]).unwrap();
        file.flush().unwrap();
        let stored = file.finish().unwrap();
        assert_eq!((stored.bytes, stored.blocks), (bytes.len() as u64, vec![hash_block(&bytes)]));
        assert_eq!(std::fs::read(folder.path().join("x")).unwrap(), bytes);
        assert!(HashedFile::create(folder.path(), "x".to_owned()).is_err(), "the file exists");
    }
}
