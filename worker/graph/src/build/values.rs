//! The values of columns: ids of nodes, weights, times and text, from arrays of any suitable type.

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, StringArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimeUnit, TimestampMicrosecondType,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ValueError {
    /// A value in this row of the array.
    Row(usize, String),
    /// The type of the array.
    Column(String),
}

/// Whether an array contains text.
pub(super) fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Appends the positions of nodes. Negative numbers become larger than any number of nodes.
pub(super) fn append_positions(array: &ArrayRef, positions: &mut Vec<u64>) -> Result<(), ValueError> {
    if array.null_count() > 0 {
        return Err(null_error(array));
    }
    match array.data_type() {
        DataType::Int64 => append::<Int64Type, _>(array, positions, |value| value as u64),
        DataType::Int32 => append::<Int32Type, _>(array, positions, |value| i64::from(value) as u64),
        DataType::UInt32 => append::<UInt32Type, _>(array, positions, u64::from),
        DataType::UInt64 => append::<UInt64Type, _>(array, positions, |value| value),
        DataType::Int16 => append::<Int16Type, _>(array, positions, |value| i64::from(value) as u64),
        DataType::Int8 => append::<Int8Type, _>(array, positions, |value| i64::from(value) as u64),
        DataType::UInt16 => append::<UInt16Type, _>(array, positions, u64::from),
        DataType::UInt8 => append::<UInt8Type, _>(array, positions, u64::from),
        data_type if is_text(data_type) => {
            for (row, text) in texts(array)?.iter().enumerate() {
                let text = text.unwrap_or_default().trim();
                let number: i64 = text
                    .parse()
                    .map_err(|_| ValueError::Row(row, format!("`{}` is not an integer", shown(text))))?;
                positions.push(number as u64);
            }
        }
        other => {
            return Err(ValueError::Column(format!(
                "the type {other} cannot identify nodes: use integers or text"
            )));
        }
    }
    Ok(())
}

fn append<T: ArrowPrimitiveType, U>(array: &ArrayRef, values: &mut Vec<U>, convert: impl Fn(T::Native) -> U) {
    values.extend(array.as_primitive::<T>().values().iter().map(|&value| convert(value)));
}

/// Appends weights, which must be finite and not negative.
pub(super) fn append_weights(array: &ArrayRef, weights: &mut Vec<f64>) -> Result<(), ValueError> {
    if array.null_count() > 0 {
        return Err(null_error(array));
    }
    let numbers = cast(array, &DataType::Float64).map_err(|_| {
        ValueError::Column(format!("the type {} cannot be a weight: use numbers", array.data_type()))
    })?;
    // Text that is not a number becomes null.
    if numbers.null_count() > array.null_count() {
        let row = (0..numbers.len()).find(|&row| numbers.is_null(row)).unwrap_or(0);
        return Err(ValueError::Row(row, "the weight is not a number".to_owned()));
    }
    for (row, &weight) in numbers.as_primitive::<Float64Type>().values().iter().enumerate() {
        if !(weight.is_finite() && weight >= 0.0) {
            return Err(ValueError::Row(
                row,
                format!("the weight {weight} is not a finite number of at least 0"),
            ));
        }
        // Negative zero becomes zero.
        weights.push(weight + 0.0);
    }
    Ok(())
}

/// Appends times. Timestamps and dates become microseconds since 1970; integers are not changed.
pub(super) fn append_times(array: &ArrayRef, times: &mut Vec<i64>) -> Result<(), ValueError> {
    if array.null_count() > 0 {
        return Err(null_error(array));
    }
    let unusable = || {
        ValueError::Column(format!(
            "the type {} cannot be a time: use integers or timestamps",
            array.data_type()
        ))
    };
    match array.data_type() {
        DataType::Timestamp(..) | DataType::Date32 | DataType::Date64 => {
            let micros =
                cast(array, &DataType::Timestamp(TimeUnit::Microsecond, None)).map_err(|_| unusable())?;
            check_conversion(array, &micros)?;
            append::<TimestampMicrosecondType, _>(&micros, times, |value| value);
        }
        DataType::Float16 | DataType::Float32 | DataType::Float64 => {
            let exact_bits = match array.data_type() {
                DataType::Float16 => 11,
                DataType::Float32 => 24,
                _ => 53,
            };
            // From here, floats may have been rounded.
            let largest = (1_u64 << exact_bits) as f64;
            let numbers = cast(array, &DataType::Float64).map_err(|_| unusable())?;
            for (row, &number) in numbers.as_primitive::<Float64Type>().values().iter().enumerate() {
                // The fraction of infinity and NaN is NaN.
                if number.fract() != 0.0 {
                    return Err(ValueError::Row(row, format!("the time {number} is not an integer")));
                }
                if number.abs() >= largest {
                    let text = format!(
                        "the time {number} is too large for the type {}: save times as int64",
                        array.data_type()
                    );
                    return Err(ValueError::Row(row, text));
                }
                times.push(number as i64);
            }
        }
        data_type if data_type.is_integer() || is_text(data_type) => {
            let numbers = cast(array, &DataType::Int64).map_err(|_| unusable())?;
            check_conversion(array, &numbers)?;
            append::<Int64Type, _>(&numbers, times, |value| value);
        }
        _ => return Err(unusable()),
    }
    Ok(())
}

/// A conversion replaces values that do not fit by nulls.
fn check_conversion(array: &ArrayRef, converted: &ArrayRef) -> Result<(), ValueError> {
    match (0..converted.len()).find(|&row| converted.is_null(row) && !array.is_null(row)) {
        Some(row) => Err(ValueError::Row(row, "the time is not an integer of 64 bits".to_owned())),
        None => Ok(()),
    }
}

/// Returns the values as text. Integers become decimal text.
pub(super) fn texts(array: &ArrayRef) -> Result<StringArray, ValueError> {
    let is_usable = is_text(array.data_type()) || array.data_type().is_integer();
    let text = if is_usable { cast(array, &DataType::Utf8).ok() } else { None };
    text.map(|text| text.as_string::<i32>().clone()).ok_or_else(|| {
        ValueError::Column(format!(
            "the type {} cannot identify nodes: use integers or text",
            array.data_type()
        ))
    })
}

/// Returns the text of a value for messages.
pub(super) fn shown(text: &str) -> String {
    /// Maximum number of characters.
    const MAX_SHOWN: usize = 80;
    let end = text.char_indices().nth(MAX_SHOWN);
    match end {
        Some((end, _)) => format!("{}...", text[..end].escape_debug()),
        None => text.escape_debug().to_string(),
    }
}

fn null_error(array: &ArrayRef) -> ValueError {
    let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or(0);
    ValueError::Row(row, "the value is missing".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        Date32Array, Float32Array, Int32Array, Int64Array, TimestampMillisecondArray, UInt8Array,
    };

    use super::*;

    fn positions(array: ArrayRef) -> Result<Vec<u64>, ValueError> {
        let mut positions = Vec::new();
        append_positions(&array, &mut positions).map(|()| positions)
    }

    fn times(array: ArrayRef) -> Result<Vec<i64>, ValueError> {
        let mut times = Vec::new();
        append_times(&array, &mut times).map(|()| times)
    }

    fn weights(array: ArrayRef) -> Result<Vec<f64>, ValueError> {
        let mut weights = Vec::new();
        append_weights(&array, &mut weights).map(|()| weights)
    }

    fn row_error(row: usize, text: &str) -> ValueError {
        ValueError::Row(row, text.to_owned())
    }

    #[test]
    fn positions_are_integers_of_any_type_or_their_text() {
        assert_eq!(positions(Arc::new(Int32Array::from(vec![3, 0]))), Ok(vec![3, 0]));
        assert_eq!(positions(Arc::new(UInt8Array::from(vec![255]))), Ok(vec![255]));
        assert_eq!(positions(Arc::new(StringArray::from(vec!["7", " 8"]))), Ok(vec![7, 8]));
        assert_eq!(positions(Arc::new(Int64Array::from(vec![-1]))), Ok(vec![u64::MAX]));
        let error = positions(Arc::new(StringArray::from(vec!["7", "x"])));
        assert_eq!(error, Err(row_error(1, "`x` is not an integer")));
        let error = positions(Arc::new(Int32Array::from(vec![Some(1), None])));
        assert_eq!(error, Err(row_error(1, "the value is missing")));
        assert!(matches!(positions(Arc::new(Float32Array::from(vec![1.0]))), Err(ValueError::Column(_))));
    }

    #[test]
    fn weights_are_finite_and_not_negative() {
        assert_eq!(weights(Arc::new(Float32Array::from(vec![0.5, -0.0]))), Ok(vec![0.5, 0.0]));
        assert_eq!(weights(Arc::new(StringArray::from(vec!["2", "0.25"]))), Ok(vec![2.0, 0.25]));
        for wrong in [f32::NAN, f32::INFINITY, -1.0] {
            let error = weights(Arc::new(Float32Array::from(vec![1.0, wrong])));
            assert_eq!(
                error,
                Err(row_error(1, &format!("the weight {wrong} is not a finite number of at least 0")))
            );
        }
        let error = weights(Arc::new(StringArray::from(vec!["2", "much"])));
        assert_eq!(error, Err(row_error(1, "the weight is not a number")));
    }

    #[test]
    fn times_are_integers_or_timestamps() {
        assert_eq!(times(Arc::new(Int32Array::from(vec![-5]))), Ok(vec![-5]));
        assert_eq!(times(Arc::new(TimestampMillisecondArray::from(vec![7]))), Ok(vec![7_000]));
        assert_eq!(times(Arc::new(Date32Array::from(vec![1]))), Ok(vec![86_400_000_000]));
        assert_eq!(times(Arc::new(Float32Array::from(vec![4.0]))), Ok(vec![4]));
        assert_eq!(times(Arc::new(StringArray::from(vec!["12"]))), Ok(vec![12]));
        for wrong in [f32::NAN, 0.5, f32::INFINITY] {
            let error = times(Arc::new(Float32Array::from(vec![wrong])));
            assert_eq!(error, Err(row_error(0, &format!("the time {wrong} is not an integer"))));
        }
        assert_eq!(times(Arc::new(Float32Array::from(vec![16_777_215.0]))), Ok(vec![16_777_215]));
        let error = times(Arc::new(Float32Array::from(vec![1_700_000_128.0])));
        let text = "the time 1700000128 is too large for the type Float32: save times as int64";
        assert_eq!(error, Err(row_error(0, text)));
        let error = times(Arc::new(StringArray::from(vec!["noon"])));
        assert_eq!(error, Err(row_error(0, "the time is not an integer of 64 bits")));
        let error = times(Arc::new(TimestampMillisecondArray::from(vec![i64::MAX])));
        assert!(error.is_err(), "the time does not fit");
    }

    #[test]
    fn long_text_is_shortened_in_messages() {
        assert_eq!(shown("a\nb"), "a\\nb");
        assert_eq!(shown(&"ä".repeat(81)), format!("{}...", "ä".repeat(80)));
    }
}
