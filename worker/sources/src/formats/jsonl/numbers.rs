//! Decodes the numbers of JSON lines without changing their values. The decoders of Arrow convert 2.5 to the integer 2, the
//! text "12" to the number 12, and 2^53 + 1 to the nearest float64.

use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, PrimitiveBuilder};
use arrow::datatypes::{
    DataType, FieldRef, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, UInt8Type,
    UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::json::reader::{ArrayDecoder, DecoderContext, DecoderFactory, Tape, TapeElement};

use super::scan::{EXACT_DIGITS, has_leading_zero};
use crate::exact_cast::is_exact;

/// Creates the decoders of number columns.
#[derive(Debug)]
pub(super) struct ExactNumbers;

impl DecoderFactory for ExactNumbers {
    fn make_default_decoder(
        &self,
        _: &DecoderContext,
        field: &FieldRef,
        _: bool,
    ) -> Result<Option<Box<dyn ArrayDecoder>>, ArrowError> {
        Ok(Some(match field.data_type() {
            DataType::Int8 => NumberDecoder::<Int8Type>::boxed(parse_integer),
            DataType::Int16 => NumberDecoder::<Int16Type>::boxed(parse_integer),
            DataType::Int32 => NumberDecoder::<Int32Type>::boxed(parse_integer),
            DataType::Int64 => NumberDecoder::<Int64Type>::boxed(parse_integer),
            DataType::UInt8 => NumberDecoder::<UInt8Type>::boxed(parse_integer),
            DataType::UInt16 => NumberDecoder::<UInt16Type>::boxed(parse_integer),
            DataType::UInt32 => NumberDecoder::<UInt32Type>::boxed(parse_integer),
            DataType::UInt64 => NumberDecoder::<UInt64Type>::boxed(parse_integer),
            // The index gives JSON lines no narrower floating point type, unless all their values are null.
            DataType::Float32 => NumberDecoder::<Float32Type>::boxed(|_| None),
            DataType::Float64 => NumberDecoder::<Float64Type>::boxed(parse_float),
            _ => return Ok(None),
        }))
    }
}

/// Decodes a column of numbers.
struct NumberDecoder<T: ArrowPrimitiveType> {
    parse: fn(&str) -> Option<T::Native>,
    number_type: PhantomData<fn() -> T>,
}

impl<T: ArrowPrimitiveType> NumberDecoder<T> {
    fn boxed(parse: fn(&str) -> Option<T::Native>) -> Box<dyn ArrayDecoder> {
        Box::new(Self { parse, number_type: PhantomData })
    }
}

impl<T: ArrowPrimitiveType> ArrayDecoder for NumberDecoder<T> {
    fn decode(&mut self, tape: &Tape<'_>, positions: &[u32]) -> Result<ArrayRef, ArrowError> {
        let mut builder = PrimitiveBuilder::<T>::with_capacity(positions.len());
        for &position in positions {
            match tape.get(position) {
                TapeElement::Null => builder.append_null(),
                TapeElement::Number(text) => {
                    let text = tape.get_string(text);
                    let Some(value) = (self.parse)(text) else {
                        let reason =
                            format!("{} does not represent {text} exactly", type_name(&T::DATA_TYPE));
                        return Err(ArrowError::JsonError(reason));
                    };
                    builder.append_value(value);
                }
                _ => return Err(tape.error(position, &type_name(&T::DATA_TYPE))),
            }
        }
        Ok(Arc::new(builder.finish()))
    }
}

fn type_name(data_type: &DataType) -> String {
    data_type.to_string().to_lowercase()
}

/// Parses a number without a fraction or exponent.
fn parse_integer<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if has_leading_zero(digits.as_bytes()) { None } else { text.parse().ok() }
}

/// Parses any number. A fraction or exponent, or an integer of more than 64 bits, is rounded to the nearest float64, as in every
/// JSON library. An integer of up to 64 bits must be exact.
fn parse_float(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    if has_leading_zero(digits) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    if digits.len() > EXACT_DIGITS && digits.iter().all(u8::is_ascii_digit) {
        let integer = text.parse::<i64>().map(i128::from).or_else(|_| text.parse::<u64>().map(i128::from));
        if integer.is_ok_and(|integer| !is_exact(integer)) {
            return None;
        }
    }
    value.is_finite().then_some(value)
}
