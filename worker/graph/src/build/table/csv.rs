//! CSV files, also compressed with gzip. All columns are text. The rows are read in order, because the number of rows before a
//! position in a file is unknown.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray, UInt64Array};
use arrow::csv::ReaderBuilder;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use flate2::read::MultiGzDecoder;

use super::column::ColumnChoice;
use super::row_chunk::RowChunk;
use crate::error::GraphError;

/// Number of rows of a chunk.
const CHUNK_ROWS: usize = 1 << 14;
/// Lines that begin with this character are comments.
const COMMENT: u8 = b'#';
/// Maximum length of the first line.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// The typical length of a line with two ids, for estimates.
const LINE_BYTES: u64 = 16;

/// CSV files with equal columns.
#[derive(Debug)]
pub(super) struct CsvFiles {
    paths: Vec<PathBuf>,
    bytes: u64,
    /// The fields of the first line of the first file.
    first_fields: Vec<String>,
    delimiter: u8,
}

impl CsvFiles {
    pub(super) fn open(paths: Vec<PathBuf>) -> Result<Self, GraphError> {
        let mut bytes = 0;
        for path in &paths {
            let file = std::fs::metadata(path).map_err(|error| GraphError::io("open", path, &error))?;
            bytes += file.len();
        }
        let line = first_line(&paths[0])?;
        let delimiter = [b'\t', b',', b';'].into_iter().find(|byte| line.bytes().any(|other| other == *byte));
        let delimiter = delimiter.unwrap_or(b' ');
        let fields = line.split(char::from(delimiter));
        let first_fields = fields.map(|field| field.trim().trim_matches('"').to_owned()).collect();
        Ok(Self { paths, bytes, first_fields, delimiter })
    }

    pub(super) fn estimated_rows(&self) -> u64 {
        self.bytes / LINE_BYTES
    }

    /// Returns the names of the columns. If no column is chosen by its name, the positions are the names.
    pub(super) fn column_names(&self, has_names: bool) -> Vec<String> {
        if has_names {
            return self.first_fields.clone();
        }
        (0..self.first_fields.len()).map(|index| index.to_string()).collect()
    }

    /// Whether the first line contains names. It contains no names if its first field is a number.
    fn has_header(&self) -> bool {
        self.first_fields.first().is_none_or(|field| field.parse::<f64>().is_err())
    }

    pub(super) fn read(
        &self,
        columns: &[ColumnChoice],
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        let mut first_row = 0;
        for path in &self.paths {
            if !self.read_file(path, columns, &mut first_row, on_chunk)? {
                break;
            }
        }
        Ok(())
    }

    /// Reads a file. Returns whether to continue.
    fn read_file(
        &self,
        path: &Path,
        columns: &[ColumnChoice],
        first_row: &mut u64,
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<bool, GraphError>,
    ) -> Result<bool, GraphError> {
        let name: Arc<str> = path.display().to_string().into();
        let invalid = |error: arrow::error::ArrowError| {
            let reason = format!("the file is not valid CSV: {error}: write the file again");
            GraphError::file(name.as_ref(), reason)
        };
        let reader = ReaderBuilder::new(self.schema())
            .with_header(self.has_header())
            .with_delimiter(self.delimiter)
            .with_comment(COMMENT)
            .with_batch_size(CHUNK_ROWS)
            .build(open(path)?)
            .map_err(invalid)?;
        let mut file_row = 0;
        for batch in reader {
            let batch = batch.map_err(invalid)?;
            let rows = batch.num_rows();
            let columns = columns.iter().map(|column| column_of(&batch, column, *first_row)).collect();
            let file = Arc::clone(&name);
            let chunk = RowChunk { first_row: *first_row, rows, columns, file, file_row };
            *first_row += rows as u64;
            file_row += rows as u64;
            if !on_chunk(&chunk)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn schema(&self) -> SchemaRef {
        let fields = (0..self.first_fields.len())
            .map(|index| Field::new(index.to_string(), DataType::Utf8, true))
            .collect::<Vec<_>>();
        Arc::new(Schema::new(fields))
    }
}

fn column_of(batch: &RecordBatch, column: &ColumnChoice, first_row: u64) -> ArrayRef {
    match column {
        ColumnChoice::Index(index) => trimmed(batch.column(*index)),
        ColumnChoice::Name(_) | ColumnChoice::Row => {
            Arc::new(UInt64Array::from_iter_values(first_row..first_row + batch.num_rows() as u64))
        }
    }
}

/// Removes spaces around the fields, so that `a, b` and `a,b` contain the same ids.
fn trimmed(column: &ArrayRef) -> ArrayRef {
    let texts = column.as_string::<i32>();
    if texts.iter().flatten().all(|text| text.len() == text.trim().len()) {
        return Arc::clone(column);
    }
    Arc::new(texts.iter().map(|text| text.map(str::trim)).collect::<StringArray>())
}

/// Opens a file as text, and decompresses it if its name ends in `.gz`.
pub(in crate::build) fn open(path: &Path) -> Result<Box<dyn Read>, GraphError> {
    let file = File::open(path).map_err(|error| GraphError::io("open", path, &error))?;
    let is_gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
    Ok(if is_gzip { Box::new(MultiGzDecoder::new(BufReader::new(file))) } else { Box::new(file) })
}

/// Returns the first line that is not a comment.
fn first_line(path: &Path) -> Result<String, GraphError> {
    let mut reader = BufReader::new(open(path)?);
    loop {
        let mut line = String::new();
        let length = (&mut reader).take(MAX_LINE_BYTES).read_line(&mut line);
        let length = length.map_err(|error| GraphError::io("read", path, &error))?;
        let is_comment = line.as_bytes().first() == Some(&COMMENT);
        if length == 0 {
            let reason = "the file is empty: expected lines with the same number of columns";
            return Err(GraphError::file(path.display().to_string(), reason));
        }
        if !is_comment && !line.trim().is_empty() {
            return Ok(line.trim_end_matches(['\r', '\n']).to_owned());
        }
    }
}
