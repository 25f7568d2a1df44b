//! `truncate` and `pad`: truncate lists, and convert lists to tensors of a fixed length.

use std::sync::Arc;

use super::cast::float16::rounded_f16;
use arrow::array::{Array, ArrayRef, AsArray, ListArray, UInt32Array};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, UInt8Type};
use feedline_data::pipeline::{Pad, Truncate};
use feedline_data::schema::ScalarType;

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::{arrow_scalar, cast_to};
use crate::{Chunk, Column, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for Truncate {
    fn build(&self, _context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(TruncateOperator { column: self.column.clone(), length: self.length }))
    }
}

impl KernelDefinition for Pad {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        let (scalar, _) = context.output_tensor(&self.column)?;
        Ok(Arc::new(PadOperator::new(context.index, &self.column, self.length, scalar, self.value)))
    }

    fn written_column(&self) -> Option<&str> {
        Some(&self.column)
    }
}

/// Truncates lists to a maximum length.
#[derive(Debug)]
pub(crate) struct TruncateOperator {
    pub(crate) column: String,
    pub(crate) length: u32,
}

impl OperatorKernel for TruncateOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let array = chunk.arrow(&self.column)?;
        let lists = as_lists(array, &self.column)?;
        let max_length = self.length as usize;
        let lengths: Vec<usize> = lists.offsets().lengths().collect();
        if lengths.iter().all(|&length| length <= max_length) {
            return Ok(());
        }
        let offsets = lists.offsets();
        let mut kept_elements = Vec::with_capacity(lists.values().len());
        for (row, &length) in lengths.iter().enumerate() {
            let start = offsets[row] as u32;
            kept_elements.extend(start..start + length.min(max_length) as u32);
        }
        let values = arrow::compute::take(lists.values(), &UInt32Array::from(kept_elements), None)?;
        let offsets = OffsetBuffer::from_lengths(lengths.iter().map(|&length| length.min(max_length)));
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let truncated = ListArray::new(field, offsets, values, lists.nulls().cloned());
        chunk.set(&self.column, Column::Arrow(Arc::new(truncated)));
        Ok(())
    }
}

/// Converts lists to tensors of a fixed length. Appends a padding element to shorter lists.
#[derive(Debug)]
pub(crate) struct PadOperator {
    index: usize,
    column: String,
    length: u32,
    scalar: ScalarType,
    /// The bytes of the padding element.
    filler: Vec<u8>,
}

impl PadOperator {
    /// Creates a kernel for lists with elements of type `scalar`. `index` is the key of the output buffers.
    pub(crate) fn new(index: usize, column: &str, length: u32, scalar: ScalarType, value: i64) -> Self {
        Self { index, column: column.to_owned(), length, scalar, filler: filler_bytes(scalar, value) }
    }

    /// Writes the tensor of one row. Returns an error if the row fails.
    fn write_row(&self, list: &ElementBytes, row: usize, out: &mut [u8]) -> Result<(), String> {
        let Some(elements) = list.row(row) else {
            return Err(format!("column `{}` is null", self.column));
        };
        let length = elements.len() / self.scalar.width_bytes();
        if length > self.length as usize {
            return Err(format!(
                "column `{}` has {length} elements, more than the padded length of {}: add `truncate` or `filter` before `pad`",
                self.column, self.length
            ));
        }
        if list.has_null_element(row) {
            return Err(format!("column `{}` contains a null element", self.column));
        }
        let (front, rest) = out.split_at_mut(elements.len());
        front.copy_from_slice(elements);
        for element in rest.chunks_exact_mut(self.filler.len()) {
            element.copy_from_slice(&self.filler);
        }
        Ok(())
    }
}

impl OperatorKernel for PadOperator {
    fn apply(&self, chunk: &mut Chunk, buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let lists = ElementBytes::of(chunk.arrow(&self.column)?, self.scalar, &self.column)?;
        let wanted = (self.scalar, [self.length]);
        let mut out = buffers.tensor(self.index, &self.column, (wanted.0, &wanted.1), chunk.rows())?;
        let failed = chunk.failed_rows();
        let mut failures = Vec::new();
        for row in 0..chunk.rows() {
            let written = match failed.contains(row) {
                true => Err(String::new()),
                false => self.write_row(&lists, row, out.row_mut(row)),
            };
            if let Err(reason) = written {
                out.row_mut(row).fill(0);
                failures.push((row, reason));
            }
        }
        chunk.set(&self.column, Column::Tensor(out));
        chunk.fail_all(failures);
        Ok(())
    }
}

/// Lists with fixed-width elements, and the bytes of all elements.
struct ElementBytes {
    lists: ListArray,
    values: arrow::buffer::Buffer,
    width_bytes: usize,
}

impl ElementBytes {
    fn of(array: &ArrayRef, scalar: ScalarType, column: &str) -> Result<Self, OperatorError> {
        let element = arrow_scalar(scalar);
        let lists = as_lists(array, column)?;
        let wanted = DataType::new_list(element, true);
        let lists = cast_to(&(Arc::new(lists) as ArrayRef), &wanted)?.as_list::<i32>().clone();
        let values = lists.values();
        let values = if scalar == ScalarType::Bool {
            // Arrow stores eight booleans in a byte, but a tensor stores one boolean per byte.
            cast_to(values, &DataType::UInt8)?.as_primitive::<UInt8Type>().values().inner().clone()
        } else {
            let data = values.to_data();
            data.buffers()[0]
                .slice_with_length(data.offset() * scalar.width_bytes(), data.len() * scalar.width_bytes())
        };
        Ok(Self { lists, values, width_bytes: scalar.width_bytes() })
    }

    fn row(&self, row: usize) -> Option<&[u8]> {
        let offsets = self.lists.value_offsets();
        let (start, end) = (offsets[row] as usize, offsets[row + 1] as usize);
        self.lists.is_valid(row).then(|| &self.values[start * self.width_bytes..end * self.width_bytes])
    }

    fn has_null_element(&self, row: usize) -> bool {
        self.lists.values().null_count() > 0 && self.lists.value(row).null_count() > 0
    }
}

fn as_lists(array: &ArrayRef, column: &str) -> Result<ListArray, OperatorError> {
    match array.data_type() {
        DataType::List(_) => Ok(array.as_list::<i32>().clone()),
        DataType::LargeList(element) | DataType::FixedSizeList(element, _) => {
            let wanted = DataType::new_list(element.data_type().clone(), true);
            Ok(cast_to(array, &wanted)?.as_list::<i32>().clone())
        }
        other => {
            Err(OperatorError::new(format!("column `{column}` has type {other}, but must contain lists")))
        }
    }
}

/// Returns the bytes of the padding element. Clamps values that are out of range.
fn filler_bytes(scalar: ScalarType, value: i64) -> Vec<u8> {
    macro_rules! clamped {
        ($kind:ty) => {
            value.clamp(<$kind>::MIN as i64, i64::try_from(<$kind>::MAX).unwrap_or(i64::MAX)) as $kind
        };
    }
    match scalar {
        ScalarType::Bool => vec![u8::from(value != 0)],
        ScalarType::Int8 => clamped!(i8).to_ne_bytes().to_vec(),
        ScalarType::Int16 => clamped!(i16).to_ne_bytes().to_vec(),
        ScalarType::Int32 => clamped!(i32).to_ne_bytes().to_vec(),
        ScalarType::Int64 => value.to_ne_bytes().to_vec(),
        ScalarType::UInt8 => clamped!(u8).to_ne_bytes().to_vec(),
        ScalarType::UInt16 => clamped!(u16).to_ne_bytes().to_vec(),
        ScalarType::UInt32 => clamped!(u32).to_ne_bytes().to_vec(),
        ScalarType::UInt64 => clamped!(u64).to_ne_bytes().to_vec(),
        ScalarType::Float16 => rounded_f16(value as f64).to_ne_bytes().to_vec(),
        ScalarType::Float32 => (value as f32).to_ne_bytes().to_vec(),
        ScalarType::Float64 => (value as f64).to_ne_bytes().to_vec(),
    }
}

#[cfg(test)]
mod tests;
