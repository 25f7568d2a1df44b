//! Shared rules about the column types that operators accept, with their error messages.

use super::Size;
use super::suggest::{did_you_mean, join_names};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Infers the columns after an operator that resizes or crops images to a fixed size.
pub(super) fn infer_fixed_size(
    input: &Schema,
    column: &str,
    [height, width]: Size,
) -> Result<Schema, String> {
    let needs = "bytes, images or uint8 tensors [height, width, 3]";
    require_column_type(input, column, needs, is_picture, |found| match found {
        ColumnType::Tensor { .. } => "move the operator before normalize and cast",
        _ => "",
    })?;
    Ok(with_column_type(
        input,
        column,
        ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![height, width, 3] },
    ))
}

/// Infers the columns of a batch. Rejects images of varying size, which cannot be batched.
pub(super) fn infer_batch(input: &Schema) -> Result<Schema, String> {
    for field in &input.fields {
        if field.column_type == ColumnType::Image {
            return Err(format!(
                "column `{}` contains images of varying size, which cannot be batched; add resize or random_resized_crop before the batch",
                field.name
            ));
        }
    }
    Ok(input.clone())
}

/// Returns the element type of a column of number lists. Checks that the padding value `value` fits the type.
pub(super) fn number_list_element(input: &Schema, name: &str, value: i64) -> Result<ScalarType, String> {
    let element = |column_type: &ColumnType| match column_type {
        ColumnType::List(inner) => match **inner {
            ColumnType::Scalar(scalar) => Some(scalar),
            _ => None,
        },
        _ => None,
    };
    let is_number_list = |column_type: &ColumnType| element(column_type).is_some();
    let found = require_column_type(input, name, "lists of numbers", is_number_list, list_hint)?;
    match element(found) {
        Some(scalar) if !can_hold(scalar, value) => Err(format!(
            "value {value} does not fit {}, the element type of column `{name}`; choose a value that fits, or add a `cast` \
            operator before this operator",
            scalar.name()
        )),
        scalar => Ok(scalar.expect("the column type is checked above")),
    }
}

/// Returns the type of the named column if `accepts` is true for it.
///
/// # Errors
/// Returns a message with the fix that `hint` returns for the actual type. If the hint is empty, the message lists the
/// columns that fit.
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
            format!(
                "use a column of that type (available: {})",
                join_names(fitting.map(|field| field.name.as_str()))
            )
        }
        hint => hint.to_owned(),
    };
    Err(format!("column `{name}` contains {}, but the operator needs {needs}; {fix}", describe_type(found)))
}

/// Returns the type of the named column.
///
/// # Errors
/// Returns a message that suggests the most similar name.
pub(super) fn find_column<'a>(input: &'a Schema, name: &str) -> Result<&'a ColumnType, String> {
    input.get(name).ok_or_else(|| {
        let hint = did_you_mean(name, input.names());
        let separator = if hint.is_empty() { ";" } else { "" };
        format!("there is no column `{name}`{hint}{separator} the columns are {}", join_names(input.names()))
    })
}

/// Describes the values of a column type, for the sentence "column `x` contains ...".
fn describe_type(column_type: &ColumnType) -> String {
    match column_type {
        ColumnType::Image => "images".to_owned(),
        ColumnType::List(inner) => format!("lists of {inner}"),
        ColumnType::Tensor { scalar, shape } => format!("{} tensors {shape:?}", scalar.name()),
        ColumnType::Scalar(_) | ColumnType::Utf8 | ColumnType::Binary => column_type.to_string(),
    }
}

/// Returns a copy of the schema with a new type for the named column. Appends the column if it is missing.
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
        ColumnType::Utf8 => "add tokenize before the operator",
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
