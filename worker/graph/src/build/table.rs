//! Tables that a build reads: Parquet and CSV files, and NumPy arrays. A table is read in chunks of columns. Parts of a table are
//! read in parallel, if their first rows are known without reading the rows before them.

mod column;
mod csv;
mod numpy;
mod parquet;
mod row_chunk;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::DataType;

use self::csv::CsvFiles;
use self::numpy::NumpyTable;
use self::parquet::ParquetFiles;
use super::run::BuildSettings;
use super::values::{is_text, texts};
use crate::error::GraphError;

pub(super) use self::column::ColumnChoice;
pub(super) use self::csv::open as open_text;
pub(super) use self::numpy::{NumpyAxes, number_array, open_array};
pub(super) use self::row_chunk::RowChunk;

/// Files with the same columns, in order.
#[derive(Debug)]
pub(super) struct Table {
    files: TableFiles,
    /// The paths as one text for messages.
    name: String,
}

#[derive(Debug)]
enum TableFiles {
    Parquet(ParquetFiles),
    Csv(CsvFiles),
    Numpy(NumpyTable),
}

impl Table {
    /// Opens the files that match the patterns. The files of one pattern are sorted by name. `axes` states the meaning of the axes
    /// of a NumPy array.
    ///
    /// # Errors
    /// Returns an error if a pattern matches nothing, a file cannot be read, or the formats of the files differ.
    pub(super) fn open(patterns: &[String], axes: NumpyAxes) -> Result<Self, GraphError> {
        let name = patterns.join(", ");
        let mut paths = Vec::new();
        for pattern in patterns {
            paths.extend(matching_files(pattern)?);
        }
        let mut kinds = paths.iter().map(|path| TableFileKind::of(path));
        let kind = kinds.next().flatten();
        if kinds.any(|other| other != kind) {
            return Err(GraphError::file(name, "the files have different formats: pass files of one format"));
        }
        let files = match kind {
            Some(TableFileKind::Parquet) => TableFiles::Parquet(ParquetFiles::open(paths)?),
            Some(TableFileKind::Csv) => TableFiles::Csv(CsvFiles::open(paths)?),
            Some(TableFileKind::Numpy) => TableFiles::Numpy(NumpyTable::open(&paths, axes)?),
            None => {
                let reason = "the format is unknown: expected .parquet, .csv, .tsv, .txt, .csv.gz or .npy";
                return Err(GraphError::file(name, reason));
            }
        };
        Ok(Self { files, name })
    }

    /// The paths of the table for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether all columns are text, whatever their contents.
    pub(super) fn is_csv(&self) -> bool {
        matches!(self.files, TableFiles::Csv(_))
    }

    /// The number of rows; `None` if the files must be read to count them.
    pub(super) fn rows(&self) -> Option<u64> {
        match &self.files {
            TableFiles::Parquet(files) => Some(files.rows()),
            TableFiles::Csv(_) => None,
            TableFiles::Numpy(table) => Some(table.rows()),
        }
    }

    /// Returns an estimate of the number of rows.
    pub(super) fn estimated_rows(&self) -> u64 {
        match &self.files {
            TableFiles::Csv(files) => files.estimated_rows(),
            _ => self.rows().unwrap_or(0),
        }
    }

    /// Whether a column identifies nodes by text. In CSV files, the first row decides.
    ///
    /// # Errors
    /// Returns an error if the first row cannot be read.
    pub(super) fn has_text(&self, column: &ColumnChoice) -> Result<bool, GraphError> {
        let is_csv = self.is_csv();
        let mut has_text = false;
        if self.parts() > 0 {
            self.read_part(0, std::slice::from_ref(column), &mut |chunk| {
                let array = &chunk.columns[0];
                has_text = is_text(array.data_type());
                if is_csv
                    && has_text
                    && let Ok(texts) = texts(array)
                {
                    let first = texts.iter().flatten().next().unwrap_or_default();
                    has_text = first.trim().parse::<i64>().is_err();
                }
                Ok(false)
            })?;
        }
        Ok(has_text)
    }

    /// Whether a column contains booleans.
    ///
    /// # Errors
    /// Returns an error if the first row cannot be read.
    pub(super) fn has_booleans(&self, column: &ColumnChoice) -> Result<bool, GraphError> {
        let mut has_booleans = false;
        if self.parts() > 0 {
            self.read_part(0, std::slice::from_ref(column), &mut |chunk| {
                has_booleans = *chunk.columns[0].data_type() == DataType::Boolean;
                Ok(false)
            })?;
        }
        Ok(has_booleans)
    }

    /// Finds the columns. Without a choice, returns the first `count` columns.
    ///
    /// # Errors
    /// Returns an error that lists the columns, if one is missing.
    pub(super) fn choose(
        &self,
        choices: Option<&[ColumnChoice]>,
        count: usize,
    ) -> Result<Vec<ColumnChoice>, GraphError> {
        let first: Vec<ColumnChoice> = (0..count).map(ColumnChoice::Index).collect();
        let names = match &self.files {
            TableFiles::Parquet(files) => files.column_names(),
            TableFiles::Csv(files) => files.column_names(choices.is_some_and(has_name)),
            TableFiles::Numpy(table) => table.column_names(),
        };
        let resolve = |choice: &ColumnChoice| choice.resolve(&names);
        choices
            .unwrap_or(&first)
            .iter()
            .map(resolve)
            .collect::<Result<_, _>>()
            .map_err(|reason| GraphError::file(&self.name, reason))
    }

    /// Returns the largest number in a column, if the files contain it as a statistic.
    pub(super) fn maximum(&self, column: &ColumnChoice) -> Option<i64> {
        match (&self.files, column) {
            (TableFiles::Parquet(files), ColumnChoice::Index(index)) => files.maximum(*index),
            (_, ColumnChoice::Row) => {
                self.rows().and_then(|rows| i64::try_from(rows).ok()).map(|rows| rows - 1)
            }
            _ => None,
        }
    }

    /// The number of parts that can be read independently.
    pub(super) fn parts(&self) -> usize {
        match &self.files {
            TableFiles::Parquet(files) => files.parts(),
            TableFiles::Csv(_) => 1,
            TableFiles::Numpy(table) => table.parts(),
        }
    }

    /// Reads the columns of a part. `on_chunk` returns whether to continue. The columns are those that [`Table::choose`] returned.
    pub(super) fn read_part(
        &self,
        part: usize,
        columns: &[ColumnChoice],
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        match &self.files {
            TableFiles::Parquet(files) => files.read_part(part, columns, on_chunk),
            TableFiles::Csv(files) => files.read(columns, on_chunk),
            TableFiles::Numpy(table) => table.read_part(part, columns, on_chunk),
        }
    }

    /// Reads rows of a NumPy array with one column.
    ///
    /// # Errors
    /// Returns an error if the file has another format or too few rows.
    pub(super) fn read_rows(&self, first_row: u64, rows: usize) -> Result<ArrayRef, GraphError> {
        match &self.files {
            TableFiles::Numpy(table) if first_row + rows as u64 <= table.rows() => {
                table.column(&ColumnChoice::Index(0), first_row, rows)
            }
            TableFiles::Numpy(table) => {
                let reason = format!("the array has only {} rows: save one row for each", table.rows());
                Err(GraphError::file(&self.name, reason))
            }
            _ => Err(GraphError::file(&self.name, "expected a .npy file")),
        }
    }

    /// Reads the columns of all rows from several threads.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn scan<S: Send>(
        &self,
        settings: &BuildSettings,
        columns: &[ColumnChoice],
        create: impl Fn() -> S + Sync,
        on_chunk: impl Fn(&mut S, &RowChunk) -> Result<(), GraphError> + Sync,
    ) -> Result<Vec<S>, GraphError> {
        settings.for_each_index(settings.threads, self.parts(), create, |state, part| {
            self.read_part(part, columns, &mut |chunk| {
                settings.check_stop()?;
                on_chunk(state, chunk).map(|()| true)
            })
        })
    }

    /// Reads the columns of all rows in order.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn scan_in_order(
        &self,
        settings: &BuildSettings,
        columns: &[ColumnChoice],
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        for part in 0..self.parts() {
            self.read_part(part, columns, &mut |chunk| {
                settings.check_stop()?;
                on_chunk(chunk).map(|()| true)
            })?;
        }
        Ok(())
    }
}

fn has_name(choices: &[ColumnChoice]) -> bool {
    choices.iter().any(|choice| matches!(choice, ColumnChoice::Name(_)))
}

/// Whether a file contains text in columns, by its name.
pub(super) fn is_csv_file(path: &Path) -> bool {
    TableFileKind::of(path) == Some(TableFileKind::Csv)
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TableFileKind {
    Parquet,
    Csv,
    Numpy,
}

impl TableFileKind {
    fn of(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let plain = name.strip_suffix(".gz").unwrap_or(&name);
        let has_extension =
            |extensions: &[&str]| extensions.iter().any(|extension| plain.ends_with(extension));
        if has_extension(&[".csv", ".tsv", ".txt"]) {
            Some(Self::Csv)
        } else if name.ends_with(".parquet") {
            Some(Self::Parquet)
        } else {
            name.ends_with(".npy").then_some(Self::Numpy)
        }
    }
}

/// Returns the files that match a pattern, sorted by name.
fn matching_files(pattern: &str) -> Result<Vec<PathBuf>, GraphError> {
    let exact = PathBuf::from(pattern);
    if exact.is_file() {
        return Ok(vec![exact]);
    }
    let invalid = |reason: String| GraphError::file(pattern, reason);
    let paths = glob::glob(pattern).map_err(|error| invalid(format!("invalid pattern: {error}")))?;
    let mut files = Vec::new();
    for path in paths {
        let path = path.map_err(|error| invalid(format!("cannot read the directory: {error}")))?;
        if path.is_file() {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(invalid("the file does not exist: check the path".to_owned()));
    }
    Ok(files)
}
