//! Converts values of Arrow types that have no column type: dates, times, decimals and list views.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, Int64Array, OffsetSizeTrait,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, TimeUnit};
use arrow::error::ArrowError;
use feedline_data::schema::{ColumnType, ScalarType};

use crate::columns::{NO_ELEMENTS, column_type, with_tensor_shape};
use crate::limits::MAX_VIRTUAL_ITEMS;

/// How timestamps, times and durations in nanoseconds are rounded.
pub(crate) const ROUNDED_NANOSECONDS: &str = "nanoseconds are rounded down to microseconds";
/// The number of decimal digits that every 64-bit floating point number represents.
const FLOAT64_DIGITS: u8 = 15;
const MICROS_PER_SECOND: i64 = 1_000_000;
const MILLIS_PER_DAY: i64 = 86_400_000;

/// Returns the column type of the values of a field without structs, as [`value_type`]. A field may contain the shape of a tensor.
pub(crate) fn field_value_type(field: &Field) -> Result<ColumnType, String> {
    with_tensor_shape(value_type(field.data_type())?, field)
}

/// Returns the column type of the values of a type without structs. Timestamps, times and durations are microseconds, dates are days,
/// and decimals are integers if they have no fraction, and otherwise floating point numbers.
pub(crate) fn value_type(data_type: &DataType) -> Result<ColumnType, String> {
    use DataType as T;
    Ok(match data_type {
        T::Timestamp(..) | T::Time32(_) | T::Time64(_) | T::Duration(_) => {
            ColumnType::Scalar(ScalarType::Int64)
        }
        T::Date32 | T::Date64 => ColumnType::Scalar(ScalarType::Int32),
        decimal if is_integer(decimal) => ColumnType::Scalar(ScalarType::Int64),
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => {
            ColumnType::Scalar(ScalarType::Float64)
        }
        // The type of other shards replaces this type.
        T::Null => ColumnType::Utf8,
        T::Dictionary(_, values) => value_type(values)?,
        T::RunEndEncoded(_, values) => value_type(values.data_type())?,
        T::FixedSizeList(_, 0) => return Err(NO_ELEMENTS.to_owned()),
        T::FixedSizeList(item, length) => match (field_value_type(item)?, u32::try_from(*length)) {
            (ColumnType::Scalar(scalar), Ok(extent)) => ColumnType::Tensor { scalar, shape: vec![extent] },
            (_, Err(_)) => return Err(format!("invalid list length {length}")),
            (other, Ok(_)) => ColumnType::List(Box::new(other)),
        },
        other => match list_item(other) {
            Some(item) => ColumnType::List(Box::new(field_value_type(item)?)),
            None => column_type(other)?,
        },
    })
}

/// Returns how [`plain_values`] rounds values of a type, also in lists. `None` if it does not.
pub(crate) fn rounding(data_type: &DataType) -> Option<&'static str> {
    use DataType as T;
    match data_type {
        T::Timestamp(TimeUnit::Nanosecond, _)
        | T::Time64(TimeUnit::Nanosecond)
        | T::Duration(TimeUnit::Nanosecond) => Some(ROUNDED_NANOSECONDS),
        T::Date64 => Some("times of day are dropped"),
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => {
            let is_exact = is_integer(data_type) || precision(data_type) <= FLOAT64_DIGITS;
            (!is_exact).then_some("decimals are rounded to 15 digits")
        }
        T::Dictionary(_, values) => rounding(values),
        T::RunEndEncoded(_, values) => rounding(values.data_type()),
        other => list_item_type(other).and_then(rounding),
    }
}

/// Returns what the numbers of a type mean, also in lists. `None` if they are not numbers in a column.
pub(crate) fn kind(data_type: &DataType) -> Option<&'static str> {
    use DataType as T;
    Some(match data_type {
        T::Timestamp(_, Some(_)) => "timestamps in UTC",
        T::Timestamp(_, None) => "timestamps without a time zone",
        T::Date32 | T::Date64 => "dates",
        T::Time32(_) | T::Time64(_) => "times of day",
        T::Duration(_) => "durations",
        numeric if numeric.is_numeric() => "numbers",
        T::Dictionary(_, values) => kind(values)?,
        T::RunEndEncoded(_, values) => kind(values.data_type())?,
        other => list_item_type(other).and_then(kind)?,
    })
}

fn precision(decimal: &DataType) -> u8 {
    use DataType as T;
    match decimal {
        T::Decimal32(precision, _)
        | T::Decimal64(precision, _)
        | T::Decimal128(precision, _)
        | T::Decimal256(precision, _) => *precision,
        _ => 0,
    }
}

/// Whether a type contains decimals without a fraction, which are 64-bit integers.
fn is_integer(data_type: &DataType) -> bool {
    use DataType as T;
    matches!(data_type, T::Decimal32(_, 0) | T::Decimal64(_, 0) | T::Decimal128(_, 0) | T::Decimal256(_, 0))
}

/// Whether the values have a type. The values of the type `Null` are all null.
pub(crate) fn has_type(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null => false,
        other => list_item_type(other).is_none_or(has_type),
    }
}

/// The type of the items of a list. The items of a map are its entries.
pub(crate) fn list_item_type(data_type: &DataType) -> Option<&DataType> {
    list_item(data_type).map(Field::data_type)
}

/// The field of the items of a list. The items of a map are its entries.
pub(crate) fn list_item(data_type: &DataType) -> Option<&Field> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => Some(item.as_ref()),
        _ => None,
    }
}

/// Converts values to types that have a column type, also in lists. Values that are too large for their type become null:
/// [`lost_rows`] finds them.
pub(crate) fn plain_values(array: &ArrayRef) -> Result<ArrayRef, String> {
    let text = |error: ArrowError| error.to_string();
    match array.data_type() {
        data_type if is_plain(data_type) => Ok(array.clone()),
        DataType::Timestamp(unit, _) | DataType::Time64(unit) | DataType::Duration(unit) => {
            Ok(microseconds(&cast(array, &DataType::Int64).map_err(text)?, *unit))
        }
        DataType::Time32(unit) => {
            let values = cast(array, &DataType::Int32).and_then(|values| cast(&values, &DataType::Int64));
            Ok(microseconds(&values.map_err(text)?, *unit))
        }
        DataType::Date32 => cast(array, &DataType::Int32).map_err(text),
        decimal if is_integer(decimal) => cast(array, &DataType::Int64).map_err(text),
        DataType::Date64 => Ok(days(&cast(array, &DataType::Int64).map_err(text)?)),
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => cast(array, &DataType::Float64).map_err(text),
        DataType::Dictionary(_, values) => plain_values(&cast(array, values).map_err(text)?),
        DataType::ListView(_) | DataType::LargeListView(_) => plain_values(&unlisted_views(array)?),
        DataType::List(_) => plain_list(array.as_list::<i32>()),
        DataType::LargeList(_) => plain_list(array.as_list::<i64>()),
        DataType::FixedSizeList(..) => {
            let (_, length, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = plain_values(&values)?;
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            Ok(Arc::new(FixedSizeListArray::try_new(item, length, values, nulls).map_err(text)?))
        }
        other => Err(format!("the type {other} is not supported")),
    }
}

/// Returns the rows of a column with values that are too large for the type of `plain`, to which [`plain_values`] has converted it, in
/// ascending order.
pub(crate) fn lost_rows(column: &ArrayRef, plain: &ArrayRef) -> Vec<usize> {
    match column.data_type() {
        DataType::List(_) => {
            let (list, plain) = (column.as_list::<i32>(), plain.as_list::<i32>());
            rows_of_items(&lost_rows(list.values(), plain.values()), list)
        }
        DataType::LargeList(_) => {
            let (list, plain) = (column.as_list::<i64>(), plain.as_list::<i64>());
            rows_of_items(&lost_rows(list.values(), plain.values()), list)
        }
        DataType::FixedSizeList(_, length) => {
            let (list, plain) = (column.as_fixed_size_list(), plain.as_fixed_size_list());
            let items = lost_rows(list.values(), plain.values());
            let mut rows: Vec<usize> =
                items.into_iter().map(|item| item / (*length).max(1) as usize).collect();
            rows.dedup();
            rows.retain(|&row| list.is_valid(row));
            rows
        }
        DataType::ListView(_) | DataType::LargeListView(_) => {
            unlisted_views(column).map_or(Vec::new(), |lists| lost_rows(&lists, plain))
        }
        _ if plain.null_count() == column.logical_null_count() => Vec::new(),
        _ => {
            let nulls = column.logical_nulls();
            let is_lost =
                |row: &usize| plain.is_null(*row) && nulls.as_ref().is_none_or(|nulls| nulls.is_valid(*row));
            (0..column.len()).filter(is_lost).collect()
        }
    }
}

/// The rows of a list that contain these items, which are in ascending order.
fn rows_of_items<O: OffsetSizeTrait>(items: &[usize], list: &GenericListArray<O>) -> Vec<usize> {
    let offsets = list.value_offsets();
    let mut rows = Vec::new();
    for &item in items {
        let row = offsets.partition_point(|start| start.as_usize() <= item).checked_sub(1);
        // Items outside of the offsets belong to no row.
        rows.extend(row.filter(|&row| row < list.len() && list.is_valid(row) && rows.last() != Some(&row)));
    }
    rows
}

/// Why [`plain_values`] cannot convert a value of a type, also in lists.
pub(crate) fn too_large(data_type: &DataType) -> &'static str {
    match data_type {
        DataType::Date64 => "the date is too large for 32 bits of days",
        DataType::Timestamp(..) | DataType::Time64(_) | DataType::Duration(_) => {
            "the time is too large for 64 bits of microseconds"
        }
        DataType::Dictionary(_, values) => too_large(values),
        DataType::RunEndEncoded(_, values) => too_large(values.data_type()),
        other => list_item_type(other).map_or("the decimal number is too large for 64 bits", too_large),
    }
}

fn plain_list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef, String> {
    let (_, offsets, values, nulls) = list.clone().into_parts();
    let values = plain_values(&values)?;
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let list = GenericListArray::try_new(item, offsets, values, nulls).map_err(|error| error.to_string())?;
    Ok(Arc::new(list))
}

/// Whether [`crate::columns`] converts the type.
fn is_plain(data_type: &DataType) -> bool {
    use DataType as T;
    match data_type {
        T::Timestamp(..) | T::Time32(_) | T::Time64(_) | T::Duration(_) | T::Date32 | T::Date64 => false,
        T::Decimal32(..) | T::Decimal64(..) | T::Decimal128(..) | T::Decimal256(..) => false,
        T::RunEndEncoded(..) | T::ListView(_) | T::LargeListView(_) | T::Map(..) | T::Struct(_) => false,
        T::Union(..) | T::Interval(_) => false,
        T::Dictionary(_, values) => is_plain(values),
        other => list_item_type(other).is_none_or(is_plain),
    }
}

/// Converts list views to lists, which contain a copy of each viewed item.
pub(crate) fn unlisted_views(array: &ArrayRef) -> Result<ArrayRef, String> {
    let target = match array.data_type() {
        DataType::ListView(item) => DataType::List(item.clone()),
        DataType::LargeListView(item) => DataType::LargeList(item.clone()),
        other => return Err(format!("the type {other} is not a list view")),
    };
    cast(array, &target).map_err(|error| error.to_string())
}

/// Checks the number of items without a type.
pub(super) fn check_items(items: u64) -> Result<(), String> {
    if items > MAX_VIRTUAL_ITEMS {
        return Err(format!(
            "{items} items exceed the limit of {MAX_VIRTUAL_ITEMS} for items without a type: write smaller record batches or row \
             groups"
        ));
    }
    Ok(())
}

/// The number of items without a type in a column or in its lists.
pub(super) fn untyped_items(array: &dyn Array) -> u64 {
    match array.data_type() {
        DataType::List(_) => untyped_items(array.as_list::<i32>().values()),
        DataType::LargeList(_) => untyped_items(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => untyped_items(array.as_fixed_size_list().values()),
        _ => array.len() as u64,
    }
}

/// Converts numbers of a unit to microseconds. Nanoseconds are rounded down, and numbers that are too large become null.
fn microseconds(array: &ArrayRef, unit: TimeUnit) -> ArrayRef {
    let values: &Int64Array = array.as_primitive();
    let factor = match unit {
        TimeUnit::Second => MICROS_PER_SECOND,
        TimeUnit::Millisecond => 1_000,
        TimeUnit::Microsecond => return array.clone(),
        TimeUnit::Nanosecond => {
            return Arc::new(values.unary::<_, Int64Type>(|value| value.div_euclid(1_000)));
        }
    };
    Arc::new(values.unary_opt::<_, Int64Type>(|value| value.checked_mul(factor)))
}

/// Converts milliseconds since 1970 to days. The time of day is dropped, and numbers that are too large become null.
fn days(array: &ArrayRef) -> ArrayRef {
    let values: &Int64Array = array.as_primitive();
    Arc::new(values.unary_opt::<_, Int32Type>(|value| i32::try_from(value.div_euclid(MILLIS_PER_DAY)).ok()))
}
