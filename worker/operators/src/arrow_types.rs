//! Converts schema types to Arrow types, and reads the bytes and text of a row from any Arrow array type.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field};
use feedline_data::schema::{ColumnType, ScalarType};

use crate::OperatorError;

/// Returns the Arrow type of an element type.
pub fn arrow_scalar(scalar: ScalarType) -> DataType {
    match scalar {
        ScalarType::Bool => DataType::Boolean,
        ScalarType::Int8 => DataType::Int8,
        ScalarType::Int16 => DataType::Int16,
        ScalarType::Int32 => DataType::Int32,
        ScalarType::Int64 => DataType::Int64,
        ScalarType::UInt8 => DataType::UInt8,
        ScalarType::UInt16 => DataType::UInt16,
        ScalarType::UInt32 => DataType::UInt32,
        ScalarType::UInt64 => DataType::UInt64,
        ScalarType::Float16 => DataType::Float16,
        ScalarType::Float32 => DataType::Float32,
        ScalarType::Float64 => DataType::Float64,
    }
}

/// Returns the Arrow type of a column. `None` for images and tensors, which operators do not store in Arrow arrays. The tensors of a
/// list are fixed-size lists.
pub(crate) fn arrow_type(column_type: &ColumnType) -> Option<DataType> {
    match column_type {
        ColumnType::Scalar(scalar) => Some(arrow_scalar(*scalar)),
        ColumnType::Utf8 => Some(DataType::Utf8View),
        ColumnType::Binary => Some(DataType::BinaryView),
        ColumnType::List(inner) => {
            let inner = match inner.as_ref() {
                ColumnType::Tensor { scalar, shape } => tensor_type(*scalar, shape)?,
                other => arrow_type(other)?,
            };
            Some(DataType::List(Field::new_list_field(inner, true).into()))
        }
        ColumnType::Image | ColumnType::Tensor { .. } => None,
    }
}

/// Returns the Arrow type of tensors in lists and in the columns of a source. `None` if a tensor has more than 2^31 - 1 elements.
pub(crate) fn tensor_type(scalar: ScalarType, shape: &[u32]) -> Option<DataType> {
    let elements =
        shape.iter().try_fold(1_i32, |product, &extent| product.checked_mul(extent.try_into().ok()?))?;
    Some(DataType::FixedSizeList(Field::new_list_field(arrow_scalar(scalar), true).into(), elements))
}

/// Casts an array to another type.
pub(crate) fn cast_to(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, OperatorError> {
    if array.data_type() == wanted {
        return Ok(array.clone());
    }
    arrow::compute::cast(array, wanted).map_err(|error| {
        OperatorError::new(format!("cannot cast {} to {wanted}: {error}", array.data_type()))
    })
}

/// Returns the bytes of one row. The inner value is `None` for null. The outer value is `None` if the array does not contain bytes.
pub(crate) fn bytes_at(array: &dyn Array, row: usize) -> Option<Option<&[u8]>> {
    let present = array.is_valid(row);
    let value = match array.data_type() {
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        _ => return None,
    };
    Some(present.then_some(value))
}

/// Returns the bytes of one row in a column of encoded images. `None` for null.
pub(crate) fn encoded_bytes<'a>(
    array: &'a ArrayRef,
    row: usize,
    column: &str,
) -> Result<Option<&'a [u8]>, OperatorError> {
    bytes_at(array.as_ref(), row).ok_or_else(|| {
        OperatorError::new(format!(
            "column `{column}` has type {}, but must contain bytes",
            array.data_type()
        ))
    })
}

/// Returns the text of one row. The inner value is `None` for null. The outer value is `None` if the array does not contain text.
pub(crate) fn text_at(array: &dyn Array, row: usize) -> Option<Option<&str>> {
    let present = array.is_valid(row);
    let value = match array.data_type() {
        DataType::Utf8View => array.as_string_view().value(row),
        DataType::Utf8 => array.as_string::<i32>().value(row),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row),
        _ => return None,
    };
    Some(present.then_some(value))
}
