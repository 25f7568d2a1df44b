//! `cast`: converts the element type of a column.
//!
//! Scalars, lists and text are cast with Arrow. A row fails if the new type cannot represent a value, such as text that is not a
//! number, 300 as `uint8`, or 1e300 as `float32`. Fractions are truncated towards zero.

pub(super) mod float16;
mod infinities;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field};
use feedline_data::pipeline::Cast;
use feedline_data::schema::ScalarType;
use half::f16;

use float16::{rounded_f16, rounded_to_odd};
use infinities::without_new_infinities;

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::{arrow_type, cast_to, text_at};
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

/// Converts the element type of a column.
#[derive(Debug)]
pub(crate) struct CastOperator {
    /// The key of the output buffers.
    pub(crate) index: usize,
    pub(crate) column: String,
    pub(crate) dtype: ScalarType,
    /// The Arrow type of the result. `None` for tensors.
    pub(crate) arrow: Option<DataType>,
}

impl OperatorKernel for CastOperator {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let column_index = chunk.column_index(&self.column)?;
        let failed = chunk.failed_rows();
        let (column, failures) = match (&chunk.columns[column_index].1, &self.arrow) {
            (Column::Arrow(array), Some(target_type)) => {
                let (array, failures) = self.cast_array(array, target_type, &failed)?;
                (Column::Arrow(array), failures)
            }
            (Column::Tensor(tensor), None) => {
                let target_type = (self.dtype, tensor.shape.as_slice());
                let mut out = buffers.tensor(self.index, &self.column, target_type, tensor.rows)?;
                let failures = self.cast_rows(tensor, &mut out, &failed);
                (Column::Tensor(out), failures)
            }
            (other, _) => {
                let message =
                    format!("column `{}` contains {}, which cannot be cast", self.column, other.describe());
                return Err(OperatorError::new(message));
            }
        };
        chunk.columns[column_index].1 = column;
        chunk.fail_all(failures);
        Ok(())
    }
}

type Failures = Vec<(usize, String)>;

impl CastOperator {
    fn cast_array(
        &self,
        array: &ArrayRef,
        target_type: &DataType,
        failed: &FailedRows,
    ) -> Result<(ArrayRef, Failures), OperatorError> {
        let cast = safe_cast(array, target_type)?;
        let mut failures = Vec::new();
        if count_nulls(&cast) == count_nulls(array) {
            return Ok((cast, failures));
        }
        for row in (0..array.len()).filter(|&row| !failed.contains(row)) {
            let has_new_null = (array.is_valid(row) && cast.is_null(row))
                || count_element_nulls(&cast, row) > count_element_nulls(array, row);
            if has_new_null {
                let value = display_value(array, row);
                failures.push((
                    row,
                    format!("column `{}`: cannot cast {value} to {}", self.column, self.dtype.name()),
                ));
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
                let dtype = self.dtype.name();
                failures
                    .push((row, format!("column `{}`: a value is out of range for {dtype}", self.column)));
            }
        }
        failures
    }
}

/// Casts an array with Arrow. Values that the type cannot represent become null. If Arrow has no direct cast, the values are first
/// cast to 32-bit floats.
fn safe_cast(array: &ArrayRef, target_type: &DataType) -> Result<ArrayRef, OperatorError> {
    let failed = |error| OperatorError::new(format!("cannot round numbers to float16: {error}"));
    let is_float = matches!(element_type(array.data_type()), DataType::Float16 | DataType::Float32);
    let cast = if *element_type(target_type) == DataType::Float16 && !is_float {
        let doubles = cast_to(array, &with_elements(target_type, &DataType::Float64))?;
        cast_to(&rounded_to_odd(&doubles).map_err(failed)?, target_type)?
    } else if arrow::compute::can_cast_types(array.data_type(), target_type) {
        cast_to(array, target_type)?
    } else {
        cast_to(&cast_to(array, &with_elements(target_type, &DataType::Float32))?, target_type)?
    };
    without_new_infinities(array, cast)
}

/// Returns the type of the innermost elements.
fn element_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::List(item) | DataType::FixedSizeList(item, _) => element_type(item.data_type()),
        other => other,
    }
}

/// Replaces the type of the innermost elements.
fn with_elements(data_type: &DataType, elements: &DataType) -> DataType {
    let replaced =
        |item: &Field| Arc::new(item.clone().with_data_type(with_elements(item.data_type(), elements)));
    match data_type {
        DataType::List(item) => DataType::List(replaced(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(replaced(item), *length),
        _ => elements.clone(),
    }
}

/// Counts the nulls at all nesting depths.
fn count_nulls(array: &ArrayRef) -> usize {
    let inner = match array.data_type() {
        DataType::List(_) => count_nulls(array.as_list::<i32>().values()),
        DataType::FixedSizeList(..) => count_nulls(array.as_fixed_size_list().values()),
        _ => 0,
    };
    array.null_count() + inner
}

/// Counts the nulls in the list of one row.
fn count_element_nulls(array: &ArrayRef, row: usize) -> usize {
    match array.as_list_opt::<i32>() {
        Some(lists) if lists.is_valid(row) => count_nulls(&lists.value(row)),
        _ => 0,
    }
}

/// Formats the value of a row for error messages.
fn display_value(array: &ArrayRef, row: usize) -> String {
    if let Some(Some(text)) = text_at(array.as_ref(), row) {
        let start: String = text.chars().take(40).collect();
        return format!("{start:?}");
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
    Integer(i128),
    Float(f64),
}

trait Element: Sized {
    fn to_number(self) -> Number;
    /// Returns `None` if the type cannot represent the number.
    fn from_number(to_number: Number) -> Option<Self>;
}

macro_rules! integer_element {
    ($($kind:ty),*) => {$(
        impl Element for $kind {
            fn to_number(self) -> Number {
                Number::Integer(self.into())
            }
            fn from_number(to_number: Number) -> Option<Self> {
                match to_number {
                    Number::Integer(value) => value.try_into().ok(),
                    // All integer types have smaller bounds. NaN fails the comparison.
                    Number::Float(value) => (value.abs() < 1e30).then_some(value as i128)?.try_into().ok(),
                }
            }
        }
    )*};
}

macro_rules! float_element {
    ($($kind:ty: $from_f64:expr),*) => {$(
        impl Element for $kind {
            fn to_number(self) -> Number {
                Number::Float(self.into())
            }
            fn from_number(to_number: Number) -> Option<Self> {
                let value = match to_number {
                    Number::Integer(value) => value as f64,
                    Number::Float(value) => value,
                };
                let narrow: Self = $from_f64(value);
                // A finite number that is too large would become infinite.
                (!narrow.is_infinite() || value.is_infinite()).then_some(narrow)
            }
        }
    )*};
}

integer_element!(i8, i16, i32, i64, u8, u16, u32, u64);
float_element!(f16: rounded_f16, f32: |value| value as f32, f64: |value| value);

/// A boolean in a tensor, which occupies one byte.
struct StoredBool(bool);

impl Element for StoredBool {
    fn to_number(self) -> Number {
        Number::Integer(self.0.into())
    }
    fn from_number(to_number: Number) -> Option<Self> {
        Some(Self(match to_number {
            Number::Integer(value) => value != 0,
            Number::Float(value) => value != 0.0,
        }))
    }
}

/// Converts the elements of a row. Returns false if the type `to` cannot represent an element.
fn convert(from: ScalarType, to: ScalarType, source: &[u8], out: &mut [u8]) -> bool {
    macro_rules! from_bytes {
        ($kind:ty) => {
            convert_from(to, source, out, <$kind>::from_ne_bytes)
        };
    }
    match from {
        ScalarType::Bool => convert_from(to, source, out, |[byte]: [u8; 1]| StoredBool(byte != 0)),
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

fn convert_from<S: Element, const FROM: usize>(
    to: ScalarType,
    source: &[u8],
    out: &mut [u8],
    read: impl Fn([u8; FROM]) -> S,
) -> bool {
    macro_rules! to_bytes {
        ($kind:ty) => {
            convert_elements(source, out, read, <$kind>::to_ne_bytes)
        };
    }
    match to {
        ScalarType::Bool => convert_elements(source, out, read, |truth: StoredBool| [u8::from(truth.0)]),
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

fn convert_elements<S: Element, T: Element, const FROM: usize, const TO: usize>(
    source: &[u8],
    out: &mut [u8],
    read: impl Fn([u8; FROM]) -> S,
    write: impl Fn(T) -> [u8; TO],
) -> bool {
    for (bytes, out) in source.as_chunks::<FROM>().0.iter().zip(out.as_chunks_mut::<TO>().0) {
        let Some(value) = T::from_number(read(*bytes).to_number()) else { return false };
        *out = write(value);
    }
    true
}

#[cfg(test)]
mod tests;
