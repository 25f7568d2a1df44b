//! Decodes the numbers and lists of JSON lines without changing their values. The decoders of Arrow convert 2.5 to the integer 2, the
//! text "12" to the number 12, and 2^53 + 1 to the nearest float64.

use std::marker::PhantomData;
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, ArrowPrimitiveType, ListArray, PrimitiveBuilder};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{
    DataType, FieldRef, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::json::reader::{ArrayDecoder, DecoderContext, DecoderFactory, Tape, TapeElement};

use super::scan::EXACT_DIGITS;
use crate::exact_cast::{has_leading_zero, is_exact, parse_64_bits};

/// Creates the decoders of number and list columns.
#[derive(Debug)]
pub(super) struct ExactValues;

impl DecoderFactory for ExactValues {
    fn make_default_decoder(
        &self,
        context: &DecoderContext,
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
            // A narrower type is that of another dataset, if all values are null in the lines that determine the types.
            DataType::Float16 => NumberDecoder::<Float16Type>::boxed(parse_float16),
            DataType::Float32 => NumberDecoder::<Float32Type>::boxed(parse_float32),
            DataType::Float64 => NumberDecoder::<Float64Type>::boxed(parse_float),
            DataType::List(item) => {
                let values = context.make_decoder(item, true)?;
                Box::new(ListDecoder { item: Arc::clone(item), values })
            }
            _ => return Ok(None),
        }))
    }
}

/// Decodes a column of lists. A value that is not a list becomes a list with one element, as in other formats, because other
/// files may contain lists.
struct ListDecoder {
    item: FieldRef,
    values: Box<dyn ArrayDecoder>,
}

impl ArrayDecoder for ListDecoder {
    fn decode(&mut self, tape: &Tape<'_>, positions: &[u32]) -> Result<ArrayRef, ArrowError> {
        let mut elements = Vec::with_capacity(positions.len());
        let mut lengths = Vec::with_capacity(positions.len());
        let mut is_valid = Vec::with_capacity(positions.len());
        for &position in positions {
            let start = elements.len();
            match tape.get(position) {
                TapeElement::Null => {}
                TapeElement::StartList(end) => {
                    let mut element = position + 1;
                    while element < end {
                        elements.push(element);
                        element = tape.next(element, "an element")?;
                    }
                }
                _ => elements.push(position),
            }
            lengths.push(elements.len() - start);
            is_valid.push(!matches!(tape.get(position), TapeElement::Null));
        }
        if i32::try_from(elements.len()).is_err() {
            return Err(ArrowError::JsonError("the lists have more than 2^31 elements".to_owned()));
        }
        let values = self.values.decode(tape, &elements)?;
        let (offsets, nulls) = (OffsetBuffer::from_lengths(lengths), NullBuffer::from(is_valid));
        let nulls = (nulls.null_count() > 0).then_some(nulls);
        Ok(Arc::new(ListArray::try_new(Arc::clone(&self.item), offsets, values, nulls)?))
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
    let number = if text == "-0" { "0" } else { text };
    if has_leading_zero(digits.as_bytes()) { None } else { number.parse().ok() }
}

/// Parses any number. A fraction or exponent, or an integer of more than 64 bits, is rounded to the nearest float64, as Python's
/// `float` does. An integer of up to 64 bits must be exact.
fn parse_float(text: &str) -> Option<f64> {
    let digits = text.strip_prefix('-').unwrap_or(text).as_bytes();
    if has_leading_zero(digits) {
        return None;
    }
    let value: f64 = text.parse().ok()?;
    let is_rounded = || parse_64_bits(text).is_some_and(|integer| !is_exact(integer));
    (value.is_finite() && (digits.len() <= EXACT_DIGITS || !is_rounded())).then_some(value)
}

/// Parses a number that float32 represents as exactly as float64 does.
fn parse_float32(text: &str) -> Option<f32> {
    let value = parse_float(text)?;
    let narrow = value as f32;
    (f64::from(narrow) == value).then_some(narrow)
}

/// Parses a number that float16 represents as exactly as float64 does.
fn parse_float16(text: &str) -> Option<<Float16Type as ArrowPrimitiveType>::Native> {
    let value = parse_float(text)?;
    let narrow = <Float16Type as ArrowPrimitiveType>::Native::from_f64(value);
    (narrow.to_f64() == value).then_some(narrow)
}
