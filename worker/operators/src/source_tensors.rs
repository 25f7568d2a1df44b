//! Reads the tensors of a source, which are Arrow arrays of fixed-size lists. Such an array may contain nulls, which a [`Tensor`]
//! cannot represent.

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray};
use arrow::buffer::{Buffer, NullBuffer};
use bytes::BytesMut;
use feedline_data::schema::ScalarType;

use crate::{Chunk, Column, OperatorError, Tensor};

/// A column of tensors as a source returns it.
#[derive(Debug, Clone, Copy)]
pub struct SourceTensors<'a> {
    lists: &'a FixedSizeListArray,
    scalar: ScalarType,
    column: &'a str,
}

/// The part of a row that is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MissingPart {
    Row,
    Elements,
}

impl<'a> SourceTensors<'a> {
    /// Reads an array whose rows are tensors with this element type and shape.
    ///
    /// # Errors
    /// Returns an error if the array contains other values.
    pub fn new(
        array: &'a ArrayRef,
        (scalar, shape): (ScalarType, &[u32]),
        column: &'a str,
    ) -> Result<Self, OperatorError> {
        let elements = shape.iter().map(|&extent| u64::from(extent)).product::<u64>();
        let is_tensor = |lists: &&FixedSizeListArray| {
            u64::try_from(lists.value_length()) == Ok(elements)
                && lists.value_type() == crate::arrow_scalar(scalar)
        };
        let lists = array.as_fixed_size_list_opt().filter(is_tensor).ok_or_else(|| {
            let scalar = scalar.name();
            OperatorError::new(format!(
                "column `{column}` contains {} instead of {scalar} tensors {shape:?}; please report this",
                array.data_type()
            ))
        })?;
        Ok(Self { lists, scalar, column })
    }

    /// The number of elements of a row.
    pub fn elements_per_row(&self) -> usize {
        self.lists.value_length() as usize
    }

    /// The size of a row in bytes.
    pub(crate) fn row_bytes(&self) -> usize {
        self.elements_per_row() * self.scalar.width_bytes()
    }

    /// Returns the elements of all rows in native byte order. Elements that are null have arbitrary values.
    pub fn bytes(&self) -> Buffer {
        let values = self.lists.values();
        if self.scalar == ScalarType::Bool {
            // Arrow stores eight booleans in a byte, but a tensor stores one boolean per byte.
            return Buffer::from_vec(values.as_boolean().values().iter().map(u8::from).collect::<Vec<u8>>());
        }
        let (data, width) = (values.to_data(), self.scalar.width_bytes());
        data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
    }

    /// Returns the part of a row that is null. `None` if the row is complete.
    pub(crate) fn missing_part(&self, row: usize) -> Option<MissingPart> {
        let elements = self.elements_per_row();
        let has_null = || {
            let nulls = self.lists.values().nulls()?;
            Some(nulls.slice(row * elements, elements).null_count() > 0)
        };
        if self.lists.is_null(row) {
            return Some(MissingPart::Row);
        }
        (has_null() == Some(true)).then_some(MissingPart::Elements)
    }

    /// Returns which elements are null, because they or their rows are null. `None` if all rows are complete.
    pub fn element_nulls(&self) -> Option<NullBuffer> {
        let of_rows = self.lists.nulls().map(|nulls| nulls.expand(self.elements_per_row()));
        NullBuffer::union(of_rows.as_ref(), self.lists.values().nulls())
    }

    /// Whether an element is null.
    pub(crate) fn is_null_element(&self, row: usize, element: usize) -> bool {
        self.lists.values().is_null(row * self.elements_per_row() + element)
    }

    /// Returns the rows that are not complete, with the reason why they fail.
    pub fn incomplete_rows(&self) -> Vec<(usize, String)> {
        if self.lists.null_count() == 0 && self.lists.values().null_count() == 0 {
            return Vec::new();
        }
        let reason = |part| match part {
            MissingPart::Row => format!("column `{}` is null, which a tensor cannot represent", self.column),
            MissingPart::Elements => {
                format!("column `{}` contains a null element, which a tensor cannot represent", self.column)
            }
        };
        (0..self.lists.len()).filter_map(|row| Some((row, reason(self.missing_part(row)?)))).collect()
    }

    /// Copies the rows to a tensor. `incomplete` are the rows that are not complete, which become zeros.
    pub(crate) fn to_tensor(self, shape: &[u32], incomplete: &[(usize, String)]) -> Tensor {
        let data = BytesMut::from(self.bytes().as_slice());
        let mut tensor = Tensor { scalar: self.scalar, shape: shape.to_vec(), data, rows: self.lists.len() };
        incomplete.iter().for_each(|(row, _)| tensor.row_mut(*row).fill(0));
        tensor
    }
}

impl Chunk {
    /// Converts a column of tensors that comes unchanged from the source. Rows with nulls fail. Other columns are unchanged.
    ///
    /// # Errors
    /// Returns an error if the column contains other values.
    pub fn convert_source_tensors(
        &mut self,
        name: &str,
        (scalar, shape): (ScalarType, &[u32]),
    ) -> Result<(), OperatorError> {
        let Some(Column::Arrow(array)) = self.column(name) else { return Ok(()) };
        let tensors = SourceTensors::new(array, (scalar, shape), name)?;
        let incomplete = tensors.incomplete_rows();
        let tensor = tensors.to_tensor(shape, &incomplete);
        self.set(name, Column::Tensor(tensor));
        self.fail_all(incomplete);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
