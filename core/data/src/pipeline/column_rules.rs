//! Rules about the column types that operators accept, with their error messages. Several operators share each rule.

use super::Size;
use super::suggest::{did_you_mean, listed};
use crate::schema::{ColumnType, ScalarType, Schema};

/// The columns after an operator that resizes or crops images to one size.
pub(super) fn infer_fixed_size(
    input: &Schema,
    column: &str,
    [height, width]: Size,
) -> Result<Schema, String> {
    let needs = "bytes, an image or a uint8 tensor [height, width, 3]";
    require_column_type(input, column, needs, is_picture, |found| match found {
        ColumnType::Tensor { .. } => "move it before normalize and cast",
        _ => "",
    })?;
    Ok(with_column_type(
        input,
        column,
        ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![height, width, 3] },
    ))
}

/// The columns of a batch. Images of varying size cannot be batched.
pub(super) fn infer_batch(input: &Schema) -> Result<Schema, String> {
    for field in &input.fields {
        if field.column_type == ColumnType::Image {
            return Err(format!(
                "column `{}` holds images of varying size, which cannot be batched; add resize or random_resized_crop before it",
                field.name
            ));
        }
    }
    Ok(input.clone())
}

/// The element type of a column of number lists. Checks that `value`, which fills the lists, fits that type.
pub(super) fn number_list_element(input: &Schema, name: &str, value: i64) -> Result<ScalarType, String> {
    let element = |column_type: &ColumnType| match column_type {
        ColumnType::List(inner) => match **inner {
            ColumnType::Scalar(scalar) => Some(scalar),
            _ => None,
        },
        _ => None,
    };
    let is_number_list = |column_type: &ColumnType| element(column_type).is_some();
    let found = require_column_type(input, name, "a list of numbers", is_number_list, list_hint)?;
    match element(found) {
        Some(scalar) if !can_hold(scalar, value) => Err(format!(
            "value {value} does not fit {}, the element type of column `{name}`; choose a value that fits, or add cast \
             before it",
            scalar.name()
        )),
        scalar => Ok(scalar.expect("the column type is checked above")),
    }
}

/// Returns the type of the named column if `accepts` is true for it.
///
/// # Errors
/// Returns a message with the fix that `hint` returns for the type, or else with the names of columns that fit.
pub(super) fn require_column_type<'a>(
    input: &'a Schema,
    name: &str,
    needs: &str,
    accepts: impl Fn(&ColumnType) -> bool,
    hint: impl Fn(&ColumnType) -> &'static str,
) -> Result<&'a ColumnType, String> {
    let found = find_column(input, name)?;
    if accepts(found) {
        return Ok(found);
    }
    let fix = match hint(found) {
        "" => {
            let fitting = input.fields.iter().filter(|field| accepts(&field.column_type));
            format!("columns that fit: {}", listed(fitting.map(|field| field.name.as_str())))
        }
        hint => hint.to_owned(),
    };
    Err(format!("column `{name}` holds {}, but the operator needs {needs}; {fix}", describe_type(found)))
}

/// Returns the type of the named column.
///
/// # Errors
/// Returns a message that suggests the most similar name.
pub(super) fn find_column<'a>(input: &'a Schema, name: &str) -> Result<&'a ColumnType, String> {
    input.get(name).ok_or_else(|| {
        let hint = did_you_mean(name, input.names());
        let separator = if hint.is_empty() { ";" } else { "" };
        format!("there is no column `{name}`{hint}{separator} the columns are {}", listed(input.names()))
    })
}

/// A column type as the object of "holds" in a sentence.
fn describe_type(column_type: &ColumnType) -> String {
    match column_type {
        ColumnType::Image => "images".to_owned(),
        ColumnType::List(inner) => format!("lists of {inner}"),
        ColumnType::Tensor { scalar, shape } => format!("{} tensors {shape:?}", scalar.name()),
        ColumnType::Scalar(_) | ColumnType::Utf8 | ColumnType::Binary => column_type.to_string(),
    }
}

/// A copy of the columns in which the named column has another type. A missing column is appended.
pub(super) fn with_column_type(input: &Schema, name: &str, column_type: ColumnType) -> Schema {
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

/// Whether the element type can represent the integer.
fn can_hold(scalar: ScalarType, value: i64) -> bool {
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
