//! The places in a finished batch's buffer that operators write to.

use bytes::BytesMut;
use feedline_data::schema::ScalarType;

use crate::{OperatorError, Tensor};

/// Destinations in the finished batch's buffer, by operator and column. There are few: a list is the fastest map.
#[derive(Debug, Default)]
pub struct OutputBuffers {
    places: Vec<(usize, String, BytesMut)>,
}

impl OutputBuffers {
    /// No destinations: every operator makes its own storage.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the operator at this place the storage for a column: exactly the rows' bytes.
    pub fn put(&mut self, operator: usize, column: &str, storage: BytesMut) {
        self.places.push((operator, column.to_owned(), storage));
    }

    /// Takes the storage for an operator's column, if there is one.
    pub fn take(&mut self, operator: usize, column: &str) -> Option<BytesMut> {
        let index = self.places.iter().position(|(place, name, _)| *place == operator && name == column)?;
        Some(self.places.swap_remove(index).2)
    }

    /// A tensor for `rows` rows in the operator's slot or, without one, in fresh zeroed storage.
    ///
    /// A slot's old content is not cleared: the caller writes every row.
    ///
    /// # Errors
    /// When the slot is too small.
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
            Some(slot) if slot.len() < wanted => {
                return Err(OperatorError::new(format!(
                    "the batch's place for column `{column}` has {} bytes, but {rows} rows need {wanted}",
                    slot.len()
                )));
            }
            Some(slot) => slot,
            None => BytesMut::zeroed(wanted),
        };
        Ok(tensor)
    }
}
