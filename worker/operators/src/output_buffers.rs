//! The parts of a batch's buffer that operators write tensors to.

use bytes::BytesMut;
use feedline_data::schema::ScalarType;

use crate::chunk::Tensor;
use crate::error::OperatorError;

/// The output buffers of the operators, which are parts of a batch's buffer.
#[derive(Debug, Default)]
pub struct OutputBuffers {
    /// Operator index, column and buffer. There are few entries, so a linear search is fast.
    buffers: Vec<(usize, String, BytesMut)>,
}

impl OutputBuffers {
    /// Creates an empty set. Operators without a buffer allocate memory for their tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the buffer of an operator's column. The buffer has exactly the size of the rows.
    pub fn insert(&mut self, operator: usize, column: &str, buffer: BytesMut) {
        self.buffers.push((operator, column.to_owned(), buffer));
    }

    /// Removes and returns the buffer of an operator's column.
    pub fn take(&mut self, operator: usize, column: &str) -> Option<BytesMut> {
        let index = self.buffers.iter().position(|(index, name, _)| *index == operator && name == column)?;
        Some(self.buffers.swap_remove(index).2)
    }

    /// Returns a tensor for `rows` rows, which uses the operator's buffer. Allocates memory if the operator has no buffer.
    ///
    /// The buffer may contain arbitrary bytes, so the caller must write every row.
    ///
    /// # Errors
    /// Returns an error if the buffer is too small.
    pub fn tensor(
        &mut self,
        operator: usize,
        column: &str,
        (scalar, shape): (ScalarType, &[u32]),
        rows: usize,
    ) -> Result<Tensor, OperatorError> {
        let mut tensor = Tensor { scalar, shape: shape.to_vec(), data: BytesMut::new(), rows };
        let wanted = rows * tensor.row_bytes();
        tensor.data = match self.take(operator, column) {
            Some(buffer) if buffer.len() < wanted => {
                return Err(OperatorError::new(format!(
                    "the output buffer of column `{column}` has {} bytes, but {rows} rows need {wanted}",
                    buffer.len()
                )));
            }
            Some(buffer) => buffer,
            None => BytesMut::zeroed(wanted),
        };
        Ok(tensor)
    }
}
