//! Rows of a fixed size that are written in any order and read in the order of their indexes. Rows that do not fit in memory are
//! first divided into ranges of indexes, each of which fits.

use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};

use crate::error::GraphError;

/// Maximum number of ranges, each of which has an open file.
const MAX_RANGES: u64 = 512;
/// Size of an index in a file.
const INDEX_BYTES: usize = 8;
/// Smallest and largest size of the buffer of a range.
const BUFFER_BYTES: std::ops::RangeInclusive<usize> = 1 << 10..=1 << 18;

/// Receives rows in any order.
#[derive(Debug)]
pub(super) struct RowScatter {
    row_bytes: usize,
    rows: u64,
    rows_per_range: u64,
    ranges: Vec<RangeFile>,
    buffer_bytes: usize,
    /// All rows, if they fit in memory. Then there are no ranges.
    memory: Vec<u8>,
}

#[derive(Debug)]
struct RangeFile {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl RowScatter {
    /// Creates a scatter of `rows` rows that uses about `memory_bytes`, and stores ranges in a folder. Rows that are not written are
    /// zero.
    ///
    /// # Errors
    /// Returns an error if the memory is too small, or a file cannot be created.
    pub(super) fn create(
        folder: &Path,
        rows: u64,
        row_bytes: usize,
        memory_bytes: u64,
    ) -> Result<Self, GraphError> {
        let total = rows.saturating_mul(row_bytes as u64);
        let mut scatter = Self {
            row_bytes,
            rows,
            rows_per_range: rows.max(1),
            ranges: Vec::new(),
            buffer_bytes: 0,
            memory: Vec::new(),
        };
        if total <= memory_bytes {
            scatter.memory = vec![0; total as usize];
            return Ok(scatter);
        }
        // Half of the memory is for the buffers.
        let ranges = total.div_ceil((memory_bytes / 2).max(1)).min(rows);
        if ranges > MAX_RANGES {
            return Err(GraphError::Setting(format!(
                "rows of {total} bytes cannot be sorted in {memory_bytes} bytes of memory: pass `--memory` with at least {} bytes",
                total / MAX_RANGES * 4
            )));
        }
        scatter.rows_per_range = rows.div_ceil(ranges);
        let buffer_bytes = (memory_bytes / 2 / ranges) as usize;
        scatter.buffer_bytes = buffer_bytes.clamp(*BUFFER_BYTES.start(), *BUFFER_BYTES.end());
        for range in 0..rows.div_ceil(scatter.rows_per_range) {
            let path = folder.join(format!("rows-{range}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.map_err(|error| GraphError::io("create", &path, &error))?;
            scatter.ranges.push(RangeFile { path, file, buffer: Vec::new() });
        }
        Ok(scatter)
    }

    /// Writes a row. The index is below the number of rows.
    pub(super) fn write(&mut self, index: u64, row: &[u8]) -> Result<(), GraphError> {
        if self.ranges.is_empty() {
            let start = index as usize * self.row_bytes;
            self.memory[start..start + self.row_bytes].copy_from_slice(row);
            return Ok(());
        }
        let range = &mut self.ranges[(index / self.rows_per_range) as usize];
        range.buffer.extend_from_slice(&(index % self.rows_per_range).to_le_bytes());
        range.buffer.extend_from_slice(row);
        if range.buffer.len() >= self.buffer_bytes { range.flush() } else { Ok(()) }
    }

    /// Passes all rows to `on_rows` in order, many at a time.
    pub(super) fn finish(
        mut self,
        on_rows: &mut dyn FnMut(&[u8]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        if self.ranges.is_empty() {
            return on_rows(&self.memory);
        }
        for range in &mut self.ranges {
            range.flush()?;
            range.buffer = Vec::new();
        }
        let mut first = 0;
        for range in self.ranges {
            let rows = (self.rows - first).min(self.rows_per_range);
            on_rows(&range.load(rows as usize, self.row_bytes)?)?;
            first += rows;
        }
        Ok(())
    }
}

impl RangeFile {
    fn flush(&mut self) -> Result<(), GraphError> {
        let written = self.file.write_all(&self.buffer);
        written.map_err(|error| GraphError::io("write", &self.path, &error))?;
        self.buffer.clear();
        Ok(())
    }

    /// Reads the rows of the range in order, and removes the file.
    fn load(self, rows: usize, row_bytes: usize) -> Result<Vec<u8>, GraphError> {
        let failed = |error: std::io::Error| GraphError::io("read", &self.path, &error);
        let file = File::open(&self.path).map_err(failed)?;
        std::fs::remove_file(&self.path).map_err(failed)?;
        let count = file.metadata().map_err(failed)?.len() / (INDEX_BYTES + row_bytes) as u64;
        let mut reader = BufReader::with_capacity(1 << 20, file);
        let mut memory = vec![0; rows * row_bytes];
        for _ in 0..count {
            let mut index = [0; INDEX_BYTES];
            reader.read_exact(&mut index).map_err(failed)?;
            let start = u64::from_le_bytes(index) as usize * row_bytes;
            reader.read_exact(&mut memory[start..start + row_bytes]).map_err(failed)?;
        }
        Ok(memory)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn rows_are_read_in_order(
            indexes in Just((0_u64..300).collect::<Vec<_>>()).prop_shuffle(), row_bytes in 1_usize..9, memory_bytes in 32_u64..4_000,
        ) {
            let folder = tempfile::tempdir().unwrap();
            let row = |index: u64| vec![(index % 251) as u8; row_bytes];
            let mut scatter = RowScatter::create(folder.path(), 300, row_bytes, memory_bytes).unwrap();
            for &index in &indexes {
                scatter.write(index, &row(index)).unwrap();
            }
            let mut found = Vec::new();
            scatter.finish(&mut |rows| {
                found.extend_from_slice(rows);
                Ok(())
            }).unwrap();
            prop_assert_eq!(found, (0..300).flat_map(row).collect::<Vec<_>>());
            prop_assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn no_rows_and_too_little_memory_are_accepted_or_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let scatter = RowScatter::create(folder.path(), 0, 8, 0).unwrap();
        scatter
            .finish(&mut |rows| {
                assert!(rows.is_empty());
                Ok(())
            })
            .unwrap();
        let error = RowScatter::create(folder.path(), 1 << 20, 8, 1 << 10).unwrap_err();
        assert!(error.to_string().contains("pass `--memory` with at least 65536 bytes"), "{error}");
    }
}
