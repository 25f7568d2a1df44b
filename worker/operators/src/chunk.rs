//! A chunk: some rows of a batch on their way through the operators.

use arrow::array::{ArrayRef, BooleanArray};
use bytes::{Bytes, BytesMut};
use feedline_data::schema::ScalarType;

use crate::OperatorError;

/// Rows on their way through the operators.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// Columns in order; each has one entry per row.
    pub columns: Vec<(String, Column)>,
    /// One id per row: what the row's random draws are keyed by.
    pub row_ids: Vec<u64>,
    /// One pass number per row, counted over all epochs.
    pub passes: Vec<u32>,
    /// Each row's place in the chunk as it entered; shrinks where rows leave.
    pub origins: Vec<u32>,
    /// Rows that failed, by origin, each once, with the reason.
    pub failures: Vec<(u32, String)>,
}

/// The values of a column.
#[derive(Debug, Clone)]
pub enum Column {
    /// Scalars, text, bytes and lists.
    Arrow(ArrayRef),
    /// Decoded images of varying size.
    Images(Vec<Image>),
    /// Fixed-shape tensors.
    Tensor(Tensor),
}

/// A decoded image. An empty one stands for a row that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Image {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// RGB8 in rows from the top; may be shared with a cache.
    pub data: Bytes,
}

/// One tensor per row, one behind the other.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Element type.
    pub scalar: ScalarType,
    /// Extents of one row's tensor.
    pub shape: Vec<u32>,
    /// The elements, native byte order: at least `rows * row_bytes()` bytes. Never shrunk, split or reallocated, since it may
    /// be a part of the finished batch.
    pub data: BytesMut,
    /// Rows.
    pub rows: usize,
}

impl Tensor {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.scalar.width_bytes() * self.shape.iter().map(|&extent| extent as usize).product::<usize>()
    }

    /// The bytes of one row.
    pub fn row(&self, row: usize) -> &[u8] {
        let bytes = self.row_bytes();
        &self.data[row * bytes..(row + 1) * bytes]
    }

    /// The bytes of one row, to write to.
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
    /// Rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Arrow(array) => array.len(),
            Self::Images(images) => images.len(),
            Self::Tensor(tensor) => tensor.rows,
        }
    }

    /// What the column holds, in messages.
    pub(crate) fn kind(&self) -> String {
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
                    .expect("the mask has one entry per row, and filter takes every type");
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
    /// A chunk of these columns whose rows entered in this order.
    pub fn new(columns: Vec<(String, Column)>, row_ids: Vec<u64>, passes: Vec<u32>) -> Self {
        debug_assert_eq!(row_ids.len(), passes.len());
        debug_assert!(columns.iter().all(|(_, column)| column.rows() == row_ids.len()));
        let origins = (0..row_ids.len() as u32).collect();
        Self { columns, row_ids, passes, origins, failures: Vec::new() }
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.row_ids.len()
    }

    /// The named column.
    pub fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|(column, _)| column == name).map(|(_, column)| column)
    }

    /// Keeps the rows whose entry in `keep` is true, in order.
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

    /// Notes that a row failed. The first reason stays.
    pub fn fail(&mut self, row: usize, reason: impl Into<String>) {
        let origin = self.origins[row];
        if !self.failures.iter().any(|(failed, _)| *failed == origin) {
            self.failures.push((origin, reason.into()));
        }
    }

    /// Which rows have failed so far.
    pub fn failed_rows(&self) -> FailedRows {
        if self.failures.is_empty() {
            return FailedRows(Vec::new());
        }
        let failed = |origin: &u32| self.failures.iter().any(|(failed, _)| failed == origin);
        FailedRows(self.origins.iter().map(failed).collect())
    }

    pub(crate) fn place_of(&self, name: &str) -> Result<usize, OperatorError> {
        self.columns.iter().position(|(column, _)| column == name).ok_or_else(|| {
            let names: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
            OperatorError::new(format!("the chunk has no column `{name}`; it has {}", names.join(", ")))
        })
    }

    pub(crate) fn arrow(&self, name: &str) -> Result<&ArrayRef, OperatorError> {
        match &self.columns[self.place_of(name)?].1 {
            Column::Arrow(array) => Ok(array),
            other => Err(OperatorError::new(format!("column `{name}` holds {}", other.kind()))),
        }
    }

    /// Replaces the named column, or appends it.
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
