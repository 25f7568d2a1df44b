//! The result of evaluating an expression for the rows of a chunk.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Datum, PrimitiveArray, Scalar};
use arrow::datatypes::UInt32Type;
use arrow::error::ArrowError;

/// The values of an expression: one value per row, or a scalar that applies to all rows.
#[derive(Debug, Clone)]
pub(super) struct ExprValues {
    pub(super) array: ArrayRef,
    pub(super) is_scalar: bool,
}

impl ExprValues {
    pub(super) fn per_row(array: ArrayRef) -> Self {
        Self { array, is_scalar: false }
    }

    pub(super) fn datum(&self) -> Box<dyn Datum> {
        if self.is_scalar { Box::new(Scalar::new(self.array.clone())) } else { Box::new(self.array.clone()) }
    }

    /// Returns one value per row. A scalar is repeated.
    pub(super) fn into_rows(self, rows: usize) -> Result<ArrayRef, ArrowError> {
        if !self.is_scalar {
            return Ok(self.array);
        }
        let first = PrimitiveArray::<UInt32Type>::from(vec![0; rows]);
        arrow::compute::take(&self.array, &first, None)
    }

    /// Replaces the values. The new array must have the same length.
    pub(super) fn with_array(&self, array: ArrayRef) -> Self {
        Self { array, is_scalar: self.is_scalar }
    }

    /// Applies a kernel to boolean values.
    pub(super) fn map_bool(
        self,
        kernel: impl Fn(&BooleanArray) -> Result<BooleanArray, ArrowError>,
    ) -> Result<Self, ArrowError> {
        kernel(self.array.as_boolean()).map(|mapped| self.with_array(Arc::new(mapped)))
    }
}
