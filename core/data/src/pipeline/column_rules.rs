//! Which columns an operator accepts, and the sentence when a column does not fit. Several operators share these rules.

use super::Size;
use super::suggest::{did_you_mean, listed};
use crate::schema::{ColumnType, ScalarType, Schema};

/// The columns after an operator that brings images to one size.
pub(super) fn to_fixed_size(input: &Schema, column: &str, [height, width]: Size) -> Result<Schema, String> {
    let needs = "bytes, an image or a uint8 tensor [height, width, 3]";
    demand(input, column, needs, is_picture, |found| match found {
        ColumnType::Tensor { .. } => "do it before normalize and cast",
        _ => "",
    })?;
    Ok(with(input, column, ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![height, width, 3] }))
}

/// The columns of a batch: images of varying size cannot be batched.
pub(super) fn batched(input: &Schema) -> Result<Schema, String> {
    for field in &input.fields {
        if field.column_type == ColumnType::Image {
            return Err(format!(
                "column `{}` holds images of varying size, which cannot be batched; add resize or random_resized_crop",
                field.name
            ));
        }
    }
    Ok(input.clone())
}

/// The elements of a column of lists of numbers, which `value` can fill.
pub(super) fn numbers(input: &Schema, name: &str, value: i64) -> Result<ScalarType, String> {
    let is_flat =
        |t: &ColumnType| matches!(t, ColumnType::List(inner) if matches!(**inner, ColumnType::Scalar(_)));
    let found = demand(input, name, "a list of numbers", is_flat, list_hint)?;
    let scalar = match found {
        ColumnType::List(inner) => match **inner {
            ColumnType::Scalar(scalar) => Some(scalar),
            _ => None,
        },
        _ => None,
    };
    let scalar = scalar.ok_or_else(|| format!("column `{name}` holds no list of numbers; name another"))?;
    if !holds(scalar, value) {
        return Err(format!(
            "value {value} does not fit {}, the elements of column `{name}`; choose a value that fits or cast before",
            scalar.name()
        ));
    }
    Ok(scalar)
}

/// The named column's type where `accepts` takes it; else a sentence with `hint`'s fix or the columns that would do.
pub(super) fn demand<'a>(
    input: &'a Schema,
    name: &str,
    needs: &str,
    accepts: impl Fn(&ColumnType) -> bool,
    hint: impl Fn(&ColumnType) -> &'static str,
) -> Result<&'a ColumnType, String> {
    let found = column(input, name)?;
    if accepts(found) {
        return Ok(found);
    }
    let fix = match hint(found) {
        "" => {
            let fitting = input.fields.iter().filter(|field| accepts(&field.column_type));
            format!("columns that would do: {}", listed(fitting.map(|field| field.name.as_str())))
        }
        hint => hint.to_owned(),
    };
    Err(format!("column `{name}` holds {}, but this needs {needs}; {fix}", holding(found)))
}

/// The named column's type, or a sentence that offers the nearest name.
pub(super) fn column<'a>(input: &'a Schema, name: &str) -> Result<&'a ColumnType, String> {
    input.get(name).ok_or_else(|| {
        let separator = if did_you_mean(name, input.names()).is_empty() { ";" } else { "" };
        format!(
            "there is no column `{name}`{}{separator} the columns are {}",
            did_you_mean(name, input.names()),
            listed(input.names())
        )
    })
}

/// A column's type in a sentence after "holds".
fn holding(column_type: &ColumnType) -> String {
    match column_type {
        ColumnType::Image => "images".to_owned(),
        ColumnType::List(inner) => format!("lists of {inner}"),
        ColumnType::Tensor { scalar, shape } => format!("{} tensors {shape:?}", scalar.name()),
        ColumnType::Scalar(_) | ColumnType::Utf8 | ColumnType::Binary => column_type.to_string(),
    }
}

/// The columns with another type of the named one, which is added where it is missing.
pub(super) fn with(input: &Schema, name: &str, column_type: ColumnType) -> Schema {
    let mut output = input.clone();
    output.set(name, column_type);
    output
}

pub(super) fn is_binary(column_type: &ColumnType) -> bool {
    *column_type == ColumnType::Binary
}

fn is_picture(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::Binary | ColumnType::Image => true,
        ColumnType::Tensor { scalar: ScalarType::UInt8, shape } => shape.len() == 3 && shape[2] == 3,
        _ => false,
    }
}

pub(super) fn list_hint(found: &ColumnType) -> &'static str {
    match found {
        ColumnType::Utf8 => "add tokenize before it",
        _ => "",
    }
}

/// Whether the element type can hold the whole number.
fn holds(scalar: ScalarType, value: i64) -> bool {
    match scalar {
        ScalarType::Bool => (0..=1).contains(&value),
        ScalarType::Int8 => i8::try_from(value).is_ok(),
        ScalarType::Int16 => i16::try_from(value).is_ok(),
        ScalarType::Int32 => i32::try_from(value).is_ok(),
        ScalarType::UInt8 => u8::try_from(value).is_ok(),
        ScalarType::UInt16 => u16::try_from(value).is_ok(),
        ScalarType::UInt32 => u32::try_from(value).is_ok(),
        ScalarType::UInt64 => u64::try_from(value).is_ok(),
        ScalarType::Float16 => (-65504..=65504).contains(&value),
        ScalarType::Int64 | ScalarType::Float32 | ScalarType::Float64 => true,
    }
}
