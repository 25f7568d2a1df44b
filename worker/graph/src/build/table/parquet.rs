//! Parquet files. Each row group is a part.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, UInt64Array};
use feedline_contained::contained;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use parquet::file::statistics::Statistics;

use super::column::ColumnChoice;
use super::row_chunk::RowChunk;
use crate::error::GraphError;

/// Number of rows of a chunk.
const CHUNK_ROWS: usize = 1 << 16;
/// Approximate maximum size of a chunk. Chunks of long rows have fewer rows.
const CHUNK_BYTES: u64 = 4 << 20;
/// The message for a panic of the decoder.
const DAMAGED: &str = "the Parquet data is invalid: write the file again";

/// Parquet files with their metadata.
#[derive(Debug)]
pub(super) struct ParquetFiles {
    files: Vec<ParquetFile>,
    groups: Vec<RowGroup>,
    rows: u64,
}

#[derive(Debug)]
struct ParquetFile {
    path: PathBuf,
    name: Arc<str>,
    metadata: ArrowReaderMetadata,
}

/// A row group that is not empty.
#[derive(Debug)]
struct RowGroup {
    file: usize,
    group: usize,
    /// The position of the first row in the table and in the file.
    first_row: u64,
    file_row: u64,
}

impl ParquetFiles {
    pub(super) fn open(paths: Vec<PathBuf>) -> Result<Self, GraphError> {
        let mut table = Self { files: Vec::new(), groups: Vec::new(), rows: 0 };
        for path in paths {
            table.add(path)?;
        }
        Ok(table)
    }

    fn add(&mut self, path: PathBuf) -> Result<(), GraphError> {
        let name: Arc<str> = path.display().to_string().into();
        let invalid = |reason: String| GraphError::file(name.as_ref(), reason);
        let file = File::open(&path).map_err(|error| GraphError::io("open", &path, &error))?;
        let load =
            || ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|error| error.to_string());
        let metadata = contained(load, DAMAGED).map_err(invalid)?;
        if let Some(first) = self.files.first()
            && first.metadata.schema().fields() != metadata.schema().fields()
        {
            let reason =
                format!("its columns differ from those of `{}`: pass files with equal columns", first.name);
            return Err(invalid(reason));
        }
        let mut file_row = 0;
        for (group, row_group) in metadata.metadata().row_groups().iter().enumerate() {
            let rows = u64::try_from(row_group.num_rows()).map_err(|_| invalid(DAMAGED.to_owned()))?;
            if rows > 0 {
                let first_row = self.rows;
                self.groups.push(RowGroup { file: self.files.len(), group, first_row, file_row });
            }
            file_row = u64::saturating_add(file_row, rows);
            self.rows = self.rows.saturating_add(rows);
        }
        self.files.push(ParquetFile { path, name, metadata });
        Ok(())
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn parts(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn column_names(&self) -> Vec<String> {
        let schema = self.files.first().map(|file| file.metadata.schema());
        let fields = schema.into_iter().flat_map(|schema| schema.fields().iter());
        fields.map(|field| field.name().clone()).collect()
    }

    /// Returns the largest number in a column without nested values, if all row groups have this statistic.
    pub(super) fn maximum(&self, column: usize) -> Option<i64> {
        let mut maximum = None;
        for group in &self.groups {
            let metadata = self.files[group.file].metadata.metadata();
            let schema = metadata.file_metadata().schema_descr();
            let leaf = (0..schema.num_columns()).find(|&leaf| schema.get_column_root_idx(leaf) == column)?;
            let value = match metadata.row_group(group.group).column(leaf).statistics()? {
                Statistics::Int32(statistics) => i64::from(*statistics.max_opt()?),
                Statistics::Int64(statistics) => *statistics.max_opt()?,
                _ => return None,
            };
            // Unsigned numbers are stored as signed ones.
            if value < 0 {
                return None;
            }
            maximum = maximum.max(Some(value));
        }
        maximum
    }

    pub(super) fn read_part(
        &self,
        part: usize,
        columns: &[ColumnChoice],
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        let group = &self.groups[part];
        let file = &self.files[group.file];
        let mut roots: Vec<usize> = columns.iter().filter_map(root).collect();
        roots.sort_unstable();
        roots.dedup();
        let mut reader = file.read_group(group.group, &roots)?;
        let mut rows = 0;
        while let Some(batch) = file.next_batch(&mut reader)? {
            let first_row = group.first_row + rows;
            let count = batch.num_rows();
            let chosen = columns.iter().map(|column| match root(column) {
                Some(index) => {
                    let position = roots.binary_search(&index).expect("the list contains all chosen columns");
                    Arc::clone(batch.column(position))
                }
                None => row_numbers(first_row, count),
            });
            let chunk = RowChunk {
                first_row,
                rows: count,
                columns: chosen.collect(),
                file: Arc::clone(&file.name),
                file_row: group.file_row + rows,
            };
            rows += count as u64;
            if !on_chunk(&chunk)? {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl ParquetFile {
    fn read_group(&self, group: usize, roots: &[usize]) -> Result<ParquetRecordBatchReader, GraphError> {
        let file = File::open(&self.path).map_err(|error| GraphError::io("open", &self.path, &error))?;
        let chunk_rows = self.chunk_rows(group, roots);
        let build = || {
            let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
            let mask = ProjectionMask::roots(builder.parquet_schema(), roots.iter().copied());
            let builder =
                builder.with_projection(mask).with_row_groups(vec![group]).with_batch_size(chunk_rows);
            builder.build().map_err(|error| error.to_string())
        };
        contained(build, DAMAGED).map_err(|reason| GraphError::file(self.name.as_ref(), reason))
    }

    /// Returns the number of rows of a chunk.
    fn chunk_rows(&self, group: usize, roots: &[usize]) -> usize {
        let metadata = self.metadata.metadata();
        let schema = metadata.file_metadata().schema_descr();
        let row_group = metadata.row_group(group);
        let leaves =
            (0..schema.num_columns()).filter(|&leaf| roots.contains(&schema.get_column_root_idx(leaf)));
        let sizes = leaves.map(|leaf| u64::try_from(row_group.column(leaf).uncompressed_size()).unwrap_or(0));
        let rows = u64::try_from(row_group.num_rows()).unwrap_or(0).max(1);
        let row_bytes = sizes.fold(0, u64::saturating_add) / rows;
        (CHUNK_BYTES / row_bytes.max(1)).clamp(1, CHUNK_ROWS as u64) as usize
    }

    fn next_batch(&self, reader: &mut ParquetRecordBatchReader) -> Result<Option<RecordBatch>, GraphError> {
        contained(|| reader.next().transpose().map_err(|error| error.to_string()), DAMAGED)
            .map_err(|reason| GraphError::file(self.name.as_ref(), reason))
    }
}

/// The position of a column that is read from the file.
fn root(column: &ColumnChoice) -> Option<usize> {
    match column {
        ColumnChoice::Index(index) => Some(*index),
        ColumnChoice::Name(_) | ColumnChoice::Row => None,
    }
}

fn row_numbers(first_row: u64, rows: usize) -> ArrayRef {
    Arc::new(UInt64Array::from_iter_values(first_row..first_row + rows as u64))
}
