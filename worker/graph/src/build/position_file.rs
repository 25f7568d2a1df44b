//! A temporary file of numbers that is written once and then read in order.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::GraphError;

/// Size of the buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// Numbers in a file.
#[derive(Debug)]
pub(super) struct EdgePositionFile {
    path: PathBuf,
    writer: BufWriter<File>,
    /// `None` until the first read.
    reader: Option<BufReader<File>>,
}

impl EdgePositionFile {
    pub(super) fn create(path: &Path) -> Result<Self, GraphError> {
        let file = File::options().read(true).write(true).create_new(true).open(path);
        let file = file.map_err(|error| GraphError::io("create", path, &error))?;
        let writer = BufWriter::with_capacity(BUFFER_BYTES, file);
        Ok(Self { path: path.to_owned(), writer, reader: None })
    }

    /// Appends numbers as bytes in little-endian order.
    pub(super) fn write(&mut self, numbers: &[u8]) -> Result<(), GraphError> {
        self.writer.write_all(numbers).map_err(|error| GraphError::io("write", &self.path, &error))
    }

    /// Reads the next numbers. No numbers may be written after the first read.
    pub(super) fn next(&mut self, count: usize) -> Result<Vec<u64>, GraphError> {
        let mut bytes = vec![0; count * size_of::<u64>()];
        self.read(&mut bytes).map_err(|error| GraphError::io("read", &self.path, &error))?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
    }

    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<()> {
        if self.reader.is_none() {
            self.writer.flush()?;
            let mut file = self.writer.get_ref().try_clone()?;
            file.rewind()?;
            self.reader = Some(BufReader::with_capacity(BUFFER_BYTES, file));
        }
        self.reader.as_mut().map_or(Ok(()), |reader| reader.read_exact(bytes))
    }

    pub(super) fn remove(self) -> Result<(), GraphError> {
        std::fs::remove_file(&self.path).map_err(|error| GraphError::io("remove", &self.path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("positions");
        let mut file = EdgePositionFile::create(&path).unwrap();
        for number in [3_u64, 1, 2] {
            file.write(&number.to_le_bytes()).unwrap();
        }
        assert_eq!(file.next(2).unwrap(), [3, 1]);
        assert_eq!(file.next(1).unwrap(), [2]);
        assert!(file.next(1).is_err());
        file.remove().unwrap();
        assert!(!path.exists());
    }
}
