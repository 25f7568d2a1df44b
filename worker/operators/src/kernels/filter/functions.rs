//! Evaluates SQL functions with one argument.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, StringViewArray};
use arrow::datatypes::DataType;

use super::expression::{ExprType, ScalarFunction};
use super::numeric;

/// Applies a function to each value. The result for null is null.
pub(super) fn call(function: ScalarFunction, kind: ExprType, values: &ArrayRef) -> ArrayRef {
    match function {
        ScalarFunction::Abs => numeric::absolute(kind, values),
        ScalarFunction::Lower => Arc::new(each_text(values, str::to_lowercase)),
        ScalarFunction::Upper => Arc::new(each_text(values, str::to_uppercase)),
        ScalarFunction::OctetLength => Arc::new(lengths(values, |values, row| match kind {
            ExprType::Text => values.as_string_view().value(row).len(),
            _ => values.as_binary_view().value(row).len(),
        })),
        ScalarFunction::Length => Arc::new(lengths(values, |values, row| match kind {
            ExprType::Text => values.as_string_view().value(row).chars().count(),
            ExprType::Bytes => values.as_binary_view().value(row).len(),
            _ => list_length(values, row),
        })),
    }
}

fn each_text(values: &ArrayRef, change: impl Fn(&str) -> String) -> StringViewArray {
    values.as_string_view().iter().map(|text| text.map(&change)).collect()
}

fn lengths(values: &ArrayRef, length: impl Fn(&ArrayRef, usize) -> usize) -> Int64Array {
    (0..values.len()).map(|row| values.is_valid(row).then(|| length(values, row) as i64)).collect()
}

fn list_length(values: &ArrayRef, row: usize) -> usize {
    match values.data_type() {
        DataType::List(_) => values.as_list::<i32>().value_length(row) as usize,
        DataType::LargeList(_) => values.as_list::<i64>().value_length(row) as usize,
        DataType::FixedSizeList(_, length) => *length as usize,
        _ => 0,
    }
}
