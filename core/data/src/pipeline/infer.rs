//! Checks a pipeline against its source's columns and infers the columns after each operator.

use super::check::{check_operator, operator_place};
use super::suggest::{did_you_mean, listed};
use super::{
    CenterCrop, Normalize, OperatorKind, Pack, Pad, Pipeline, PipelineError, Rename, Size, TensorLayout,
    Tokenize,
};
use crate::schema::{ColumnType, Field, ScalarType, Schema};

#[cfg(test)]
mod tests;

/// The columns after the source and after each operator: `operators.len() + 1` schemas.
///
/// Each operator's own parameters are checked too; what concerns the pipeline as a whole (a batch at the end, one
/// repeat) is [`Pipeline::check`]'s.
pub fn infer(pipeline: &Pipeline, source: &Schema) -> Result<Vec<Schema>, PipelineError> {
    let mut schemas = Vec::with_capacity(pipeline.operators.len() + 1);
    schemas.push(source.clone());
    for (index, operator) in pipeline.operators.iter().enumerate() {
        let output = check_operator(operator)
            .and_then(|()| output_of(&operator.kind, &schemas[index]))
            .map_err(|sentence| {
                PipelineError::new(format!("{}: {sentence}", operator_place(index, &operator.kind)))
            })?;
        schemas.push(output);
    }
    Ok(schemas)
}

/// The columns after one operator, or a sentence without its place.
fn output_of(kind: &OperatorKind, input: &Schema) -> Result<Schema, String> {
    match kind {
        OperatorKind::DecodeImage(p) => {
            demand(input, &p.column, "bytes", is_binary, |found| match found {
                ColumnType::Image | ColumnType::Tensor { .. } => {
                    "it is decoded already, so remove this operator"
                }
                _ => "",
            })?;
            Ok(with(input, &p.column, ColumnType::Image))
        }
        OperatorKind::Resize(p) => to_fixed_size(input, &p.column, p.size),
        OperatorKind::CenterCrop(CenterCrop { column, size, .. }) => to_fixed_size(input, column, *size),
        OperatorKind::RandomResizedCrop(p) => to_fixed_size(input, &p.column, p.size),
        OperatorKind::RandomHorizontalFlip(p) => {
            let needs = "an image or a tensor [height, width, channels]";
            demand(input, &p.column, needs, can_be_flipped, |found| match found {
                ColumnType::Binary => "add decode_image, resize or random_resized_crop before it",
                ColumnType::Tensor { .. } => "flip before normalize makes it channels first",
                _ => "",
            })?;
            Ok(input.clone())
        }
        OperatorKind::Normalize(p) => normalized(input, p),
        OperatorKind::Cast(p) => {
            let found = demand(
                input,
                &p.column,
                "a scalar, list, tensor or text",
                |t| cast(t, p.dtype).is_some(),
                |_| "",
            )?;
            let output = cast(found, p.dtype).unwrap_or_else(|| found.clone());
            Ok(with(input, &p.column, output))
        }
        OperatorKind::Select(p) => selected(input, &p.columns),
        OperatorKind::Rename(p) => renamed(input, p),
        OperatorKind::Tokenize(p) => tokenized(input, p),
        OperatorKind::Truncate(p) => {
            demand(input, &p.column, "a list", |t| matches!(t, ColumnType::List(_)), list_hint)?;
            Ok(input.clone())
        }
        OperatorKind::Pad(p) => padded(input, p),
        OperatorKind::Batch(_) => batched(input),
        OperatorKind::BucketByLength(p) => {
            for name in &p.columns {
                numbers(input, name, p.value)?;
            }
            batched(input)
        }
        OperatorKind::Pack(p) => packed(input, p),
        OperatorKind::RecodeJpeg(p) => {
            demand(input, &p.column, "bytes", is_binary, |found| match found {
                ColumnType::Image | ColumnType::Tensor { .. } => "put it before the operator that decodes it",
                _ => "",
            })?;
            Ok(input.clone())
        }
        OperatorKind::Map(p) | OperatorKind::FilterFunction(p) => {
            for name in &p.columns {
                column(input, name)?;
            }
            let mut output = input.clone();
            for (name, made) in &p.outputs {
                output.set(name, made.column_type());
            }
            Ok(output)
        }
        OperatorKind::Filter(_)
        | OperatorKind::Cache(_)
        | OperatorKind::Repeat(_)
        | OperatorKind::Burn(_)
        | OperatorKind::Wait(_) => Ok(input.clone()),
    }
}

fn to_fixed_size(input: &Schema, column: &str, [height, width]: Size) -> Result<Schema, String> {
    let needs = "bytes, an image or a uint8 tensor [height, width, 3]";
    demand(input, column, needs, is_picture, |found| match found {
        ColumnType::Tensor { .. } => "do it before normalize and cast",
        _ => "",
    })?;
    Ok(with(input, column, ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![height, width, 3] }))
}

fn normalized(input: &Schema, p: &Normalize) -> Result<Schema, String> {
    let is_pixels = |t: &ColumnType| matches!(t, ColumnType::Tensor { scalar: ScalarType::UInt8, shape } if shape.len() == 3);
    let found =
        demand(
            input,
            &p.column,
            "a uint8 tensor [height, width, channels]",
            is_pixels,
            |found| match found {
                ColumnType::Binary | ColumnType::Image => {
                    "add resize, center_crop or random_resized_crop before it"
                }
                ColumnType::Tensor { scalar, .. } if *scalar != ScalarType::UInt8 => {
                    "do it once, and before cast"
                }
                _ => "",
            },
        )?;
    let ColumnType::Tensor { shape, .. } = found else { return Ok(input.clone()) };
    let [height, width, channels] = [shape[0], shape[1], shape[2]];
    if p.mean.len() != 1 && p.mean.len() != channels as usize {
        return Err(format!(
            "mean and std have {} numbers, but column `{}` has {channels} channels; write 1 or {channels} of each",
            p.mean.len(),
            p.column
        ));
    }
    let shape = match p.layout {
        TensorLayout::Hwc => vec![height, width, channels],
        TensorLayout::Chw => vec![channels, height, width],
    };
    Ok(with(input, &p.column, ColumnType::Tensor { scalar: p.dtype, shape }))
}

fn selected(input: &Schema, columns: &[String]) -> Result<Schema, String> {
    let mut fields = Vec::with_capacity(columns.len());
    for name in columns {
        fields.push(Field { name: name.clone(), column_type: column(input, name)?.clone() });
    }
    Ok(Schema { fields })
}

/// Renames in place: a column keeps its position, and names may be exchanged.
fn renamed(input: &Schema, p: &Rename) -> Result<Schema, String> {
    let mut output = input.clone();
    for (new, present) in &p.columns {
        column(input, present)?;
        let stays = input.index_of(new).is_some() && !p.columns.values().any(|renamed| renamed == new);
        if stays {
            return Err(format!(
                "`{present}` cannot become `{new}`: there is a column `{new}` already; rename that one too, or drop it \
                 with select before"
            ));
        }
    }
    for (new, present) in &p.columns {
        if let Some(index) = input.index_of(present) {
            output.fields[index].name.clone_from(new);
        }
    }
    Ok(output)
}

fn tokenized(input: &Schema, p: &Tokenize) -> Result<Schema, String> {
    demand(input, &p.column, "text", |t| matches!(t, ColumnType::Utf8), |_| "")?;
    let output = p.output.as_deref().unwrap_or(&p.column);
    if output != p.column && input.get(output).is_some() {
        return Err(format!(
            "output `{output}` would overwrite the column of that name; choose another output, or drop it with select before"
        ));
    }
    Ok(with(input, output, ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)))))
}

/// The elements of a column of lists of numbers, which `value` can fill.
fn numbers(input: &Schema, name: &str, value: i64) -> Result<ScalarType, String> {
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

/// Packed columns, each with what tells its rows apart. A column that is not packed would have no value for a packed row.
fn packed(input: &Schema, p: &Pack) -> Result<Schema, String> {
    if let Some(other) = input.names().find(|name| !p.columns.iter().any(|column| column == name)) {
        return Err(format!(
            "column `{other}` is not packed, and several rows share a packed one; name it in columns if it holds lists, or drop it with select before"
        ));
    }
    let mut output = Schema::default();
    for name in &p.columns {
        let scalar = numbers(input, name, p.value)?;
        let shape = vec![p.length];
        output.set(name, ColumnType::Tensor { scalar, shape: shape.clone() });
        for kind in ["segment_ids", "positions"] {
            let beside = format!("{name}_{kind}");
            if p.columns.contains(&beside) {
                return Err(format!(
                    "column `{beside}` has the name of what is made for `{name}`; rename it before"
                ));
            }
            output.set(&beside, ColumnType::Tensor { scalar: ScalarType::Int32, shape: shape.clone() });
        }
    }
    Ok(output)
}

fn padded(input: &Schema, p: &Pad) -> Result<Schema, String> {
    let scalar = numbers(input, &p.column, p.value)?;
    Ok(with(input, &p.column, ColumnType::Tensor { scalar, shape: vec![p.length] }))
}

fn batched(input: &Schema) -> Result<Schema, String> {
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

/// The named column's type where `accepts` takes it; else a sentence with `hint`'s fix or the columns that would do.
fn demand<'a>(
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
fn column<'a>(input: &'a Schema, name: &str) -> Result<&'a ColumnType, String> {
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

fn with(input: &Schema, name: &str, column_type: ColumnType) -> Schema {
    let mut output = input.clone();
    output.set(name, column_type);
    output
}

fn is_binary(column_type: &ColumnType) -> bool {
    *column_type == ColumnType::Binary
}

fn is_picture(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::Binary | ColumnType::Image => true,
        ColumnType::Tensor { scalar: ScalarType::UInt8, shape } => shape.len() == 3 && shape[2] == 3,
        _ => false,
    }
}

/// A tensor's width is its second axis; a long last axis means channels first, where that would mirror the wrong one.
fn can_be_flipped(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::Image => true,
        ColumnType::Tensor { shape, .. } => shape.len() == 3 && shape[2] <= 4,
        _ => false,
    }
}

fn list_hint(found: &ColumnType) -> &'static str {
    match found {
        ColumnType::Utf8 => "add tokenize before it",
        _ => "",
    }
}

/// The type after a cast; `None` where there is nothing to cast.
fn cast(column_type: &ColumnType, dtype: ScalarType) -> Option<ColumnType> {
    match column_type {
        ColumnType::Scalar(_) | ColumnType::Utf8 => Some(ColumnType::Scalar(dtype)),
        ColumnType::List(inner) => cast(inner, dtype).map(|inner| ColumnType::List(Box::new(inner))),
        ColumnType::Tensor { shape, .. } => Some(ColumnType::Tensor { scalar: dtype, shape: shape.clone() }),
        ColumnType::Binary | ColumnType::Image => None,
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
