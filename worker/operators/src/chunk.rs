//! The rows that one task processes in a stage.

use arrow::array::{ArrayRef, BooleanArray};
use bytes::{Bytes, BytesMut};
use feedline_data::schema::ScalarType;

use crate::error::OperatorError;

/// The rows that one task processes in a stage.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// The columns in order. Each column has one entry per row.
    pub columns: Vec<(String, Column)>,
    /// The id of each row, which determines the row's random draws.
    pub row_ids: Vec<u64>,
    /// The pass of each row, counted over all epochs.
    pub passes: Vec<u32>,
    /// The index that each row had in the original chunk, before operators removed rows.
    pub origins: Vec<u32>,
    /// The failed rows: the index in the original chunk, and the error message. A row has at most one entry.
    pub failures: Vec<(u32, String)>,
}

/// The values of a column.
#[derive(Debug, Clone)]
pub enum Column {
    /// Scalars, text, bytes and lists, and the tensors of a source until an operator or the batch needs them.
    Arrow(ArrayRef),
    /// Decoded images of varying size.
    Images(Vec<Image>),
    /// Fixed-shape tensors.
    Tensor(Tensor),
}

/// A decoded image. A failed row has an empty image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// RGB8 pixels, row by row from the top. A cache may share the buffer.
    pub data: Bytes,
}

/// One tensor per row, in one contiguous buffer.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Element type.
    pub scalar: ScalarType,
    /// The shape of one row's tensor.
    pub shape: Vec<u32>,
    /// The elements in native byte order, at least `rows * row_bytes()` bytes. The buffer may be a part of the finished batch, so code
    /// must not shrink, split or reallocate it.
    pub data: BytesMut,
    /// The number of rows.
    pub rows: usize,
}

impl Tensor {
    /// The size of one row in bytes.
    pub fn row_bytes(&self) -> usize {
        self.scalar.width_bytes() * self.shape.iter().map(|&extent| extent as usize).product::<usize>()
    }

    /// The bytes of one row.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..(row + 1) * bytes]
    }

    /// The mutable bytes of one row.
    pub fn row_mut(&mut self, row: usize) -> &mut [u8] {
        let bytes = self.row_bytes();
        &mut self.data[row * bytes..(row + 1) * bytes]
    }

    fn retain(&mut self, keep: &[bool]) {
        let bytes = self.row_bytes();
        let mut kept = 0;
        for row in (0..self.rows).filter(|&row| keep[row]) {
            if row != kept {
                self.data.copy_within(row * bytes..(row + 1) * bytes, kept * bytes);
            }
            kept += 1;
        }
        self.rows = kept;
    }
}

impl Column {
    /// The number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Arrow(array) => array.len(),
            Self::Images(images) => images.len(),
            Self::Tensor(tensor) => tensor.rows,
        }
    }

    /// Describes the type of the values for error messages.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Arrow(array) => format!("{}", array.data_type()),
            Self::Images(_) => "images".to_owned(),
            Self::Tensor(tensor) => format!("{} tensors {:?}", tensor.scalar.name(), tensor.shape),
        }
    }

    fn retain(&mut self, keep: &[bool]) {
        match self {
            Self::Arrow(array) => {
                let keep = BooleanArray::from(keep.to_vec());
                *array = arrow::compute::filter(array.as_ref(), &keep)
                    .expect("the mask has one entry per row, and `filter` supports every type");
            }
            Self::Images(images) => {
                let mut kept = keep.iter();
                images.retain(|_| *kept.next().expect("the mask has one entry per row"));
            }
            Self::Tensor(tensor) => tensor.retain(keep),
        }
    }
}

impl Chunk {
    /// Creates a chunk.
    pub fn new(columns: Vec<(String, Column)>, row_ids: Vec<u64>, passes: Vec<u32>) -> Self {
        debug_assert_eq!(row_ids.len(), passes.len());
        debug_assert!(columns.iter().all(|(_, column)| column.rows() == row_ids.len()));
        let origins = (0..row_ids.len() as u32).collect();
        Self { columns, row_ids, passes, origins, failures: Vec::new() }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.row_ids.len()
    }

    /// Returns the column with this name.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, column)| column)
    }

    /// Removes the rows for which `keep` is false.
    pub fn retain(&mut self, keep: &[bool]) {
        assert_eq!(keep.len(), self.rows(), "a mask has one entry per row");
        if keep.iter().all(|&keep| keep) {
            return;
        }
        for (_, column) in &mut self.columns {
            column.retain(keep);
        }
        retain_rows(&mut self.row_ids, keep);
        retain_rows(&mut self.passes, keep);
        retain_rows(&mut self.origins, keep);
    }

    /// Records a failed row. Ignores later failures of the same row.
    pub fn fail(&mut self, row: usize, reason: impl Into<String>) {
        let origin = self.origins[row];
        if !self.failures.iter().any(|(failed, _)| *failed == origin) {
            self.failures.push((origin, reason.into()));
        }
    }

    /// The rows that have failed so far.
    pub fn failed_rows(&self) -> FailedRows {
        if self.failures.is_empty() {
            return FailedRows(Vec::new());
        }
        let failed = |origin: &u32| self.failures.iter().any(|(failed, _)| failed == origin);
        FailedRows(self.origins.iter().map(failed).collect())
    }

    pub(crate) fn column_index(&self, name: &str) -> Result<usize, OperatorError> {
        self.columns.iter().position(|(column, _)| column == name).ok_or_else(|| {
            let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
            OperatorError::new(format!("the chunk has no column `{name}`, only {}", names.join(", ")))
        })
    }

    pub(crate) fn arrow(&self, name: &str) -> Result<&ArrayRef, OperatorError> {
        match &self.columns[self.column_index(name)?].1 {
            Column::Arrow(array) => Ok(array),
            other => {
                Err(OperatorError::new(format!("unsupported type of column `{name}`: {}", other.describe())))
            }
        }
    }

    /// Replaces or appends a column.
    pub fn set(&mut self, name: &str, column: Column) {
        match self.columns.iter_mut().find(|(present, _)| present == name) {
            Some((_, present)) => *present = column,
            None => self.columns.push((name.to_owned(), column)),
        }
    }

    pub(crate) fn fail_all(&mut self, failures: Vec<(usize, String)>) {
        for (row, reason) in failures {
            self.fail(row, reason);
        }
    }
}

/// The rows of a chunk that have failed so far.
#[derive(Debug, Clone)]
pub struct FailedRows(Vec<bool>);

impl FailedRows {
    /// Whether this row has failed.
    pub fn contains(&self, row: usize) -> bool {
        self.0.get(row).copied().unwrap_or(false)
    }
}

fn retain_rows<T>(values: &mut Vec<T>, keep: &[bool]) {
    let mut kept = keep.iter();
    values.retain(|_| *kept.next().expect("the mask has one entry per row"));
}

#[cfg(test)]
mod tests;
