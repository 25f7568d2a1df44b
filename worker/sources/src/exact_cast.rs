//! Casts columns to the common type of all shards. Values that the common type does not represent exactly become null.

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray};
use arrow::compute::{cast, is_null, nullif};
use arrow::datatypes::{ArrowPrimitiveType, DataType, Int8Type, Int16Type, Int32Type, Int64Type, UInt64Type};
use arrow::error::ArrowError;

use crate::reader::RowFailure;

/// A row with a value that the type of the column does not represent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InexactRow {
    pub(crate) row: usize,
    /// The value and the type.
    pub(crate) reason: String,
}

/// Whether float64 represents an integer exactly.
pub(crate) fn is_exact(value: i128) -> bool {
    value as f64 as i128 == value
}

/// Whether digits begin with a zero that another digit follows.
pub(crate) fn has_leading_zero(digits: &[u8]) -> bool {
    matches!(digits, [b'0', b'0'..=b'9', ..])
}

/// Parses an integer of at most 64 bits.
pub(crate) fn parse_64_bits(text: &str) -> Option<i128> {
    text.parse::<i64>().map(i128::from).or_else(|_| text.parse::<u64>().map(i128::from)).ok()
}

/// Returns the failures of the inexact rows of a column, in the same order. `offset` returns the offset of a row in its shard.
pub(crate) fn row_failures(
    column: &str,
    inexact: Vec<InexactRow>,
    offset: impl Fn(usize) -> u64,
) -> Vec<RowFailure> {
    let failure = |InexactRow { row, reason }| RowFailure {
        row: row as u32,
        offset: offset(row),
        reason: format!("column `{column}`: {reason}"),
    };
    inexact.into_iter().map(failure).collect()
}

/// Sorts the failures of several columns. A row with several defects fails once.
pub(crate) fn merge_failures(failures: &mut Vec<RowFailure>) {
    failures.sort_by_key(|failure| failure.row);
    failures.dedup_by_key(|failure| failure.row);
}

/// Casts a column. Rows with values that `wanted` does not represent are null in the result, and listed in ascending order.
pub(crate) fn cast_exact(
    column: &ArrayRef,
    wanted: &DataType,
) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    if column.data_type() == wanted {
        return Ok((column.clone(), Vec::new()));
    }
    let column = match column.data_type() {
        // Create views of the dictionary. Copies of its values could need much memory.
        DataType::Dictionary(..) if matches!(wanted, DataType::Utf8View | DataType::BinaryView) => column,
        DataType::Dictionary(_, values) => &cast(column, values).map_err(|error| error.to_string())?,
        _ => column,
    };
    let converted = cast_values(column, wanted).map_err(|error| error.to_string())?;
    let inexact = inexact_rows(column, wanted);
    if inexact.is_empty() {
        return Ok((converted, inexact));
    }
    let mut is_inexact = vec![false; column.len()];
    inexact.iter().for_each(|inexact| is_inexact[inexact.row] = true);
    let converted = nullif(&converted, &BooleanArray::from(is_inexact)).map_err(|error| error.to_string())?;
    Ok((converted, inexact))
}

/// Casts a column without checks. Single values become lists, and missing ones become missing lists.
pub(crate) fn cast_values(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    let converted = cast(column, wanted)?;
    let is_wrapped = item_type(wanted).is_some() && item_type(column.data_type()).is_none();
    if is_wrapped && converted.null_count() < column.logical_null_count() {
        return nullif(&converted, &is_null(column)?);
    }
    Ok(converted)
}

/// Returns the rows with values that `wanted` does not represent, in ascending order and without repetitions.
fn inexact_rows(column: &dyn Array, wanted: &DataType) -> Vec<InexactRow> {
    let (mut parents, elements): (Vec<usize>, Vec<InexactRow>) = match (column.data_type(), item_type(wanted))
    {
        (DataType::List(_), Some(item)) => {
            let list = column.as_list::<i32>();
            let ends: Vec<usize> = list.value_offsets().iter().map(|&offset| offset as usize).collect();
            (ends, inexact_rows(list.values(), item))
        }
        (DataType::LargeList(_), Some(item)) => {
            let list = column.as_list::<i64>();
            let ends: Vec<usize> = list.value_offsets().iter().map(|&offset| offset as usize).collect();
            (ends, inexact_rows(list.values(), item))
        }
        (DataType::FixedSizeList(_, length), Some(item)) => {
            let list = column.as_fixed_size_list();
            let ends = (0..=list.len()).map(|row| row * *length as usize).collect();
            (ends, inexact_rows(list.values(), item))
        }
        // A single value becomes a list.
        (_, Some(item)) => return inexact_rows(column, item),
        (_, None) => return inexact_numbers(column, wanted),
    };
    if elements.is_empty() {
        return Vec::new();
    }
    // The row of an element is the last one that starts at or before it. Empty rows do not contain elements.
    let first = parents.first().copied().unwrap_or(0);
    let end = parents.pop().unwrap_or(0);
    let mut rows: Vec<InexactRow> = Vec::new();
    for InexactRow { row: element, reason } in elements {
        if element < first || element >= end {
            continue;
        }
        let row = parents.partition_point(|&start| start <= element) - 1;
        if column.is_valid(row) && rows.last().is_none_or(|last| last.row != row) {
            rows.push(InexactRow { row, reason });
        }
    }
    rows
}

fn item_type(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

fn inexact_numbers(column: &dyn Array, wanted: &DataType) -> Vec<InexactRow> {
    const EXACT: u64 = 1 << 53;
    match (column.data_type(), wanted) {
        (DataType::Int64, DataType::Float64) => {
            // Most columns have no value that needs an exact check.
            let values = column.as_primitive::<Int64Type>().values();
            if values.iter().all(|value| value.unsigned_abs() <= EXACT) {
                return Vec::new();
            }
            find_inexact::<Int64Type>(column, wanted, |value| is_exact(value.into()))
        }
        (DataType::Dictionary(_, values), _) => {
            let values = cast(column, values).ok();
            values.map_or_else(Vec::new, |values| inexact_numbers(&values, wanted))
        }
        (DataType::UInt64, DataType::Float64) => {
            let values = column.as_primitive::<UInt64Type>().values();
            if values.iter().all(|value| *value <= EXACT) {
                return Vec::new();
            }
            find_inexact::<UInt64Type>(column, wanted, |value| is_exact(value.into()))
        }
        (DataType::Int8, DataType::UInt64) => find_inexact::<Int8Type>(column, wanted, |value| value >= 0),
        (DataType::Int16, DataType::UInt64) => find_inexact::<Int16Type>(column, wanted, |value| value >= 0),
        (DataType::Int32, DataType::UInt64) => find_inexact::<Int32Type>(column, wanted, |value| value >= 0),
        (DataType::Int64, DataType::UInt64) => find_inexact::<Int64Type>(column, wanted, |value| value >= 0),
        // The manifest gives other numbers only a type that represents all of them.
        _ => Vec::new(),
    }
}

fn find_inexact<T: ArrowPrimitiveType>(
    column: &dyn Array,
    wanted: &DataType,
    is_exact: impl Fn(T::Native) -> bool,
) -> Vec<InexactRow>
where
    T::Native: std::fmt::Display,
{
    let wanted = wanted.to_string().to_lowercase();
    let values = column.as_primitive::<T>();
    let inexact = values.iter().enumerate().filter_map(|(row, value)| Some((row, value?)));
    inexact
        .filter(|(_, value)| !is_exact(*value))
        .map(|(row, value)| InexactRow {
            row,
            reason: format!("{wanted} does not represent {value} exactly"),
        })
        .collect()
}

#[cfg(test)]
mod tests;
