//! Conversion of numbers to the type of a feature, as bytes in little-endian order.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Float32Type};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_sources::arrow_field;
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::hashed_file::LittleEndian;

/// Returns the type of the numbers in an array.
pub(super) fn scalar_type(data_type: &DataType) -> Option<ScalarType> {
    Some(match data_type {
        DataType::Boolean => ScalarType::Bool,
        DataType::Int8 => ScalarType::Int8,
        DataType::Int16 => ScalarType::Int16,
        DataType::Int32 => ScalarType::Int32,
        DataType::Int64 => ScalarType::Int64,
        DataType::UInt8 => ScalarType::UInt8,
        DataType::UInt16 => ScalarType::UInt16,
        DataType::UInt32 => ScalarType::UInt32,
        DataType::UInt64 => ScalarType::UInt64,
        DataType::Float16 => ScalarType::Float16,
        DataType::Float32 => ScalarType::Float32,
        DataType::Float64 => ScalarType::Float64,
        _ => return None,
    })
}

fn is_float(scalar: ScalarType) -> bool {
    matches!(scalar, ScalarType::Float16 | ScalarType::Float32 | ScalarType::Float64)
}

/// Checks that a type can be converted without changing the kind of the numbers.
pub(super) fn check_conversion(from: ScalarType, to: ScalarType) -> Result<(), String> {
    let is_allowed = from == to
        || (from != ScalarType::Bool && to != ScalarType::Bool && (is_float(to) || !is_float(from)));
    if is_allowed {
        return Ok(());
    }
    Err(format!("{} cannot be converted to {}: choose another dtype", from.name(), to.name()))
}

/// Converts numbers without nulls to bytes.
///
/// # Errors
/// Returns a message if a number does not fit in the type.
pub(super) fn to_bytes(numbers: &ArrayRef, to: ScalarType) -> Result<Vec<u8>, String> {
    if numbers.null_count() > 0 {
        return Err("a number is missing: replace nulls by numbers".to_owned());
    }
    match to {
        ScalarType::Bool => Ok(numbers.as_boolean().values().iter().map(u8::from).collect()),
        ScalarType::Float16 if *numbers.data_type() != DataType::Float16 => half_bytes(numbers),
        _ => {
            let data_type = arrow_field("", &ColumnType::Scalar(to)).data_type().clone();
            let options = CastOptions { safe: false, ..CastOptions::default() };
            let converted = cast_with_options(numbers, &data_type, &options).map_err(|error| {
                format!("a number does not fit in {}: {error}: choose a larger dtype", to.name())
            })?;
            Ok(raw_bytes(&converted, to.width_bytes()))
        }
    }
}

/// Converts numbers to float16. Finite numbers must stay finite.
fn half_bytes(numbers: &ArrayRef) -> Result<Vec<u8>, String> {
    let floats = cast(numbers, &DataType::Float32).map_err(|error| error.to_string())?;
    let floats = floats.as_primitive::<Float32Type>().values();
    let mut halves = vec![f16::ZERO; floats.len()];
    halves.convert_from_f32_slice(floats);
    let is_lost = |(float, half): (&f32, &f16)| half.is_infinite() && float.is_finite();
    if let Some(index) = floats.iter().zip(&halves).position(is_lost) {
        return Err(format!("the number {} does not fit in float16: choose a larger dtype", floats[index]));
    }
    let mut bytes = Vec::new();
    <f16 as LittleEndian>::convert(&halves, &mut bytes);
    Ok(bytes)
}

/// Returns the values of a primitive array. The hosts of a build are little-endian.
fn raw_bytes(array: &ArrayRef, width: usize) -> Vec<u8> {
    let data = array.to_data();
    let start = data.offset() * width;
    data.buffers()[0].as_slice()[start..start + data.len() * width].to_vec()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{BooleanArray, Float32Array, Int32Array, Int64Array};

    use super::*;

    #[test]
    fn numbers_are_converted_to_little_endian_bytes() {
        let floats: ArrayRef = Arc::new(Float32Array::from(vec![9.0, 1.5, -2.0]));
        let floats = floats.slice(1, 2);
        assert_eq!(
            to_bytes(&floats, ScalarType::Float32).unwrap(),
            [1.5_f32.to_le_bytes(), (-2.0_f32).to_le_bytes()].concat()
        );
        assert_eq!(to_bytes(&floats, ScalarType::Float16).unwrap(), [0x00, 0x3e, 0x00, 0xc0]);
        assert_eq!(to_bytes(&floats, ScalarType::Float64).unwrap()[..8], 1.5_f64.to_le_bytes());
        let integers: ArrayRef = Arc::new(Int64Array::from(vec![1, 255]));
        assert_eq!(to_bytes(&integers, ScalarType::UInt8).unwrap(), [1, 255]);
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false]));
        assert_eq!(to_bytes(&flags, ScalarType::Bool).unwrap(), [1, 0]);
    }

    #[test]
    fn numbers_that_do_not_fit_are_rejected() {
        let error = |array: ArrayRef, to: ScalarType| to_bytes(&array, to).unwrap_err();
        assert!(
            error(Arc::new(Int32Array::from(vec![256])), ScalarType::UInt8).contains("does not fit in uint8")
        );
        assert!(
            error(Arc::new(Int32Array::from(vec![None])), ScalarType::Int32).contains("a number is missing")
        );
        let large: ArrayRef = Arc::new(Float32Array::from(vec![70_000.0]));
        assert_eq!(
            error(large, ScalarType::Float16),
            "the number 70000 does not fit in float16: choose a larger dtype"
        );
        let infinite: ArrayRef = Arc::new(Float32Array::from(vec![f32::INFINITY]));
        assert!(to_bytes(&infinite, ScalarType::Float16).is_ok());
    }

    #[test]
    fn floats_do_not_become_integers() {
        assert_eq!(check_conversion(ScalarType::Float32, ScalarType::Float16), Ok(()));
        assert_eq!(check_conversion(ScalarType::Int32, ScalarType::Float32), Ok(()));
        assert_eq!(check_conversion(ScalarType::Bool, ScalarType::Bool), Ok(()));
        let error = check_conversion(ScalarType::Float32, ScalarType::Int32).unwrap_err();
        assert_eq!(error, "float32 cannot be converted to int32: choose another dtype");
        assert!(check_conversion(ScalarType::Bool, ScalarType::Float32).is_err());
    }
}
