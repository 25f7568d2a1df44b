//! The parts of a batch's buffer to which operators write their tensors.

use bytes::BytesMut;
use feedline_data::schema::ScalarType;

use crate::chunk::Tensor;
use crate::error::OperatorError;

/// Buffers within a batch's buffer, by operator and column. A linear search is fast, because there are few buffers.
#[derive(Debug, Default)]
pub struct OutputBuffers {
    buffers: Vec<(usize, String, BytesMut)>,
}

impl OutputBuffers {
    /// No buffers: every operator allocates its tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the buffer of a column of the operator with this index. The buffer has exactly the size of the rows.
    pub fn insert(&mut self, operator: usize, column: &str, buffer: BytesMut) {
        self.buffers.push((operator, column.to_owned(), buffer));
    }

    /// Removes and returns the buffer of an operator's column.
    pub fn take(&mut self, operator: usize, column: &str) -> Option<BytesMut> {
        let index = self.buffers.iter().position(|(index, name, _)| *index == operator && name == column)?;
        Some(self.buffers.swap_remove(index).2)
    }

    /// A tensor for `rows` rows in the operator's buffer or, without a buffer, in newly allocated zeroed memory.
    ///
    /// The buffer is not cleared: the caller must write every row.
    ///
    /// # Errors
    /// The buffer is too small.
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
