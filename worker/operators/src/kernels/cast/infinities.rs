//! Finds numbers that a cast made infinite, because they are too large for the new type.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, ListArray};
use arrow::compute::nullif;
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};

use crate::OperatorError;
use crate::arrow_types::text_at;

/// Replaces infinite numbers by nulls, at all nesting depths, unless the value was infinite before the cast.
pub(super) fn without_new_infinities(source: &ArrayRef, cast: ArrayRef) -> Result<ArrayRef, OperatorError> {
    if !has_infinity(&cast) {
        return Ok(cast);
    }
    let failed = |error| OperatorError::new(format!("cannot check the numbers of a cast: {error}"));
    match (source.data_type(), cast.data_type()) {
        (DataType::List(_), DataType::List(item)) => {
            let lists = cast.as_list::<i32>();
            let values = without_new_infinities(source.as_list::<i32>().values(), lists.values().clone())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            let lists = ListArray::try_new(item.clone(), offsets, values, nulls);
            Ok(Arc::new(lists.map_err(failed)?))
        }
        (DataType::FixedSizeList(..), DataType::FixedSizeList(item, length)) => {
            let (lists, source) = (cast.as_fixed_size_list(), source.as_fixed_size_list());
            let values = without_new_infinities(source.values(), lists.values().clone())?;
            let nulls = lists.nulls().cloned();
            let lists = FixedSizeListArray::try_new(item.clone(), *length, values, nulls);
            Ok(Arc::new(lists.map_err(failed)?))
        }
        _ => {
            let rows = 0..cast.len().min(source.len());
            let is_new = rows.map(|row| is_infinite(&cast, row) && !is_infinite(source, row));
            nullif(&cast, &is_new.map(Some).collect::<BooleanArray>()).map_err(failed)
        }
    }
}

/// Whether an array contains an infinite number, at any nesting depth.
fn has_infinity(array: &dyn Array) -> bool {
    match array.data_type() {
        DataType::Float16 => {
            array.as_primitive::<Float16Type>().values().iter().any(|value| value.is_infinite())
        }
        DataType::Float32 => {
            array.as_primitive::<Float32Type>().values().iter().any(|value| value.is_infinite())
        }
        DataType::Float64 => {
            array.as_primitive::<Float64Type>().values().iter().any(|value| value.is_infinite())
        }
        DataType::List(_) => has_infinity(array.as_list::<i32>().values()),
        DataType::FixedSizeList(..) => has_infinity(array.as_fixed_size_list().values()),
        _ => false,
    }
}

/// Whether a value is an infinite number, or the name of one.
fn is_infinite(array: &ArrayRef, row: usize) -> bool {
    if array.is_null(row) {
        return false;
    }
    match text_at(array.as_ref(), row) {
        Some(Some(text)) => !text.bytes().any(|byte| byte.is_ascii_digit()),
        _ => has_infinity(&array.slice(row, 1)),
    }
}
