//! `cast`: converts the element type of a column.
//!
//! Arrow casts scalars, lists and text. A row fails if a value does not fit the new type, such as text that is not a number, or
//! 300 as `uint8`. Fractions are truncated towards zero.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use feedline_data::pipeline::Cast;
use feedline_data::schema::ScalarType;
use half::f16;

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::{arrow_type, as_type, text_at};
use crate::{Chunk, Column, FailedRows, OperatorError, OperatorKernel, OutputBuffers, Tensor};

impl KernelDefinition for Cast {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(CastOperator {
            index: context.index,
            column: self.column.clone(),
            dtype: self.dtype,
            arrow: context.output.get(&self.column).and_then(arrow_type),
        }))
    }

    fn written_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Converts a column's element type.
#[derive(Debug)]
pub(crate) struct CastOperator {
    /// The key of the output buffers.
    pub(crate) index: usize,
    pub(crate) column: String,
    pub(crate) dtype: ScalarType,
    /// The Arrow type of the result; `None` for tensors.
    pub(crate) arrow: Option<DataType>,
}

impl OperatorKernel for CastOperator {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let place = chunk.column_index(&self.column)?;
        let failed = chunk.failed_rows();
        let (column, failures) = match (&chunk.columns[place].1, &self.arrow) {
            (Column::Arrow(array), Some(wanted)) => {
                let (array, failures) = self.cast_array(array, wanted, &failed)?;
                (Column::Arrow(array), failures)
            }
            (Column::Tensor(tensor), None) => {
                let wanted = (self.dtype, tensor.shape.as_slice());
                let mut out = buffers.tensor(self.index, &self.column, wanted, tensor.rows)?;
                let failures = self.cast_rows(tensor, &mut out, &failed);
                (Column::Tensor(out), failures)
            }
            (other, _) => {
                let message =
                    format!("column `{}` holds {}, which cannot be cast", self.column, other.describe());
                return Err(OperatorError::new(message));
            }
        };
        chunk.columns[place].1 = column;
        chunk.fail_all(failures);
        Ok(())
    }
}

type Failures = Vec<(usize, String)>;

impl CastOperator {
    fn cast_array(
        &self,
        array: &ArrayRef,
        wanted: &DataType,
        failed: &FailedRows,
    ) -> Result<(ArrayRef, Failures), OperatorError> {
        let cast = safe_cast(array, wanted)?;
        let mut failures = Vec::new();
        if nulls_within(&cast) == nulls_within(array) {
            return Ok((cast, failures));
        }
        for row in (0..array.len()).filter(|&row| !failed.contains(row)) {
            let lost = (array.is_valid(row) && cast.is_null(row))
                || element_nulls(&cast, row) > element_nulls(array, row);
            if lost {
                let value = display_value(array, row);
                failures
                    .push((row, format!("column `{}`: {value} is not {}", self.column, self.dtype.name())));
            }
        }
        Ok((cast, failures))
    }

    fn cast_rows(&self, tensor: &Tensor, out: &mut Tensor, failed: &FailedRows) -> Failures {
        let mut failures = Vec::new();
        for row in 0..tensor.rows {
            if failed.contains(row) {
                out.row_mut(row).fill(0);
            } else if !convert(tensor.scalar, self.dtype, tensor.row(row), out.row_mut(row)) {
                out.row_mut(row).fill(0);
                let wanted = self.dtype.name();
                failures.push((row, format!("column `{}`: a value does not fit {wanted}", self.column)));
            }
        }
        failures
    }
}

/// Casts with Arrow. Values that do not fit become null. If Arrow has no direct cast, the values are cast to 32-bit floats first.
fn safe_cast(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, OperatorError> {
    if arrow::compute::can_cast_types(array.data_type(), wanted) {
        return as_type(array, wanted);
    }
    as_type(&as_type(array, &DataType::Float32)?, wanted)
}

/// The number of nulls at every nesting depth.
fn nulls_within(array: &ArrayRef) -> usize {
    let inner = array.as_list_opt::<i32>().map_or(0, |lists| nulls_within(lists.values()));
    array.null_count() + inner
}

/// The number of nulls among the elements of one row's list.
fn element_nulls(array: &ArrayRef, row: usize) -> usize {
    match array.as_list_opt::<i32>() {
        Some(lists) if lists.is_valid(row) => nulls_within(&lists.value(row)),
        _ => 0,
    }
}

/// A row's value for messages.
fn display_value(array: &ArrayRef, row: usize) -> String {
    if let Some(Some(text)) = text_at(array.as_ref(), row) {
        let cut: String = text.chars().take(40).collect();
        return format!("{cut:?}");
    }
    match array.data_type() {
        DataType::List(_) => "an element".to_owned(),
        _ => arrow::util::display::array_value_to_string(array.as_ref(), row)
            .unwrap_or_else(|_| "a value".to_owned()),
    }
}

/// An intermediate value of a conversion between element types. Integers are exact, and floats have 64 bits.
#[derive(Clone, Copy)]
enum Number {
    Whole(i128),
    Float(f64),
}

trait Element: Sized {
    fn number(self) -> Number;
    /// `None` if the number does not fit the type.
    fn of(number: Number) -> Option<Self>;
}

macro_rules! whole_element {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            fn number(self) -> Number {
                Number::Whole(self.into())
            }
            fn of(number: Number) -> Option<Self> {
                match number {
                    Number::Whole(value) => value.try_into().ok(),
                    // Every bound of an integer type is below 2^100. NaN fails the comparison.
                    Number::Float(value) => (value.abs() < 1e30).then_some(value as i128)?.try_into().ok(),
                }
            }
        }
    )*};
}

macro_rules! float_element {
    ($($kind:ty: $from_f64:expr),*) => {$(
        impl Element for $kind {
            fn number(self) -> Number {
                Number::Float(self.into())
            }
            fn of(number: Number) -> Option<Self> {
                Some(match number {
                    Number::Whole(value) => $from_f64(value as f64),
                    Number::Float(value) => $from_f64(value),
                })
            }
        }
    )*};
}

whole_element!(i8, i16, i32, i64, u8, u16, u32, u64);
float_element!(f16: f16::from_f64, f32: |value| value as f32, f64: |value| value);

/// A boolean, stored as one byte.
struct Truth(bool);

impl Element for Truth {
    fn number(self) -> Number {
        Number::Whole(self.0.into())
    }
    fn of(number: Number) -> Option<Self> {
        Some(Self(match number {
            Number::Whole(value) => value != 0,
            Number::Float(value) => value != 0.0,
        }))
    }
}

/// Converts a row of elements. Returns false if an element does not fit.
fn convert(from: ScalarType, to: ScalarType, source: &[u8], out: &mut [u8]) -> bool {
    macro_rules! from_bytes {
        ($kind:ty) => {
            source_to(to, source, out, <$kind>::from_ne_bytes)
        };
    }
    match from {
        ScalarType::Bool => source_to(to, source, out, |[byte]: [u8; 1]| Truth(byte != 0)),
        ScalarType::Int8 => from_bytes!(i8),
        ScalarType::Int16 => from_bytes!(i16),
        ScalarType::Int32 => from_bytes!(i32),
        ScalarType::Int64 => from_bytes!(i64),
        ScalarType::UInt8 => from_bytes!(u8),
        ScalarType::UInt16 => from_bytes!(u16),
        ScalarType::UInt32 => from_bytes!(u32),
        ScalarType::UInt64 => from_bytes!(u64),
        ScalarType::Float16 => from_bytes!(f16),
        ScalarType::Float32 => from_bytes!(f32),
        ScalarType::Float64 => from_bytes!(f64),
    }
}

fn source_to<S: Element, const FROM: usize>(
    to: ScalarType,
    source: &[u8],
    out: &mut [u8],
    read: impl Fn([u8; FROM]) -> S,
) -> bool {
    macro_rules! to_bytes {
        ($kind:ty) => {
            each(source, out, read, <$kind>::to_ne_bytes)
        };
    }
    match to {
        ScalarType::Bool => each(source, out, read, |truth: Truth| [u8::from(truth.0)]),
        ScalarType::Int8 => to_bytes!(i8),
        ScalarType::Int16 => to_bytes!(i16),
        ScalarType::Int32 => to_bytes!(i32),
        ScalarType::Int64 => to_bytes!(i64),
        ScalarType::UInt8 => to_bytes!(u8),
        ScalarType::UInt16 => to_bytes!(u16),
        ScalarType::UInt32 => to_bytes!(u32),
        ScalarType::UInt64 => to_bytes!(u64),
        ScalarType::Float16 => to_bytes!(f16),
        ScalarType::Float32 => to_bytes!(f32),
        ScalarType::Float64 => to_bytes!(f64),
    }
}

fn each<S: Element, T: Element, const FROM: usize, const TO: usize>(
    source: &[u8],
    out: &mut [u8],
    read: impl Fn([u8; FROM]) -> S,
    write: impl Fn(T) -> [u8; TO],
) -> bool {
    for (bytes, out) in source.as_chunks::<FROM>().0.iter().zip(out.as_chunks_mut::<TO>().0) {
        let Some(value) = T::of(read(*bytes).number()) else { return false };
        *out = write(value);
    }
    true
}

#[cfg(test)]
mod tests;
