//! Conversions between column types and Arrow types.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use serde::Deserialize;

const EXTENSION_NAME_KEY: &str = "ARROW:extension:name";
const EXTENSION_METADATA_KEY: &str = "ARROW:extension:metadata";
const TENSOR_EXTENSION: &str = "arrow.fixed_shape_tensor";

/// The error message for vectors of length 0.
pub(crate) const NO_ELEMENTS: &str = "fixed-size lists without elements are not supported";

/// Returns the Arrow field of a source column. Every field is nullable.
pub fn arrow_field(name: &str, column_type: &ColumnType) -> Field {
    Field::new(name, arrow_type(column_type), true)
}

pub(crate) fn arrow_schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<Field> =
        schema.fields.iter().map(|field| arrow_field(&field.name, &field.column_type)).collect();
    Arc::new(ArrowSchema::new(fields))
}

/// Builds a batch from the columns of a schema. A batch without columns still has a row count.
pub(crate) fn build_batch(
    schema: &Schema,
    columns: Vec<ArrayRef>,
    rows: usize,
) -> Result<RecordBatch, String> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(arrow_schema(schema), columns, &options)
        .map_err(|error| error.to_string())
}

/// Creates a batch without rows.
pub fn empty_batch(schema: &Schema) -> RecordBatch {
    RecordBatch::new_empty(arrow_schema(schema))
}

pub(crate) fn null_column(column_type: &ColumnType, rows: usize) -> ArrayRef {
    new_null_array(&arrow_type(column_type), rows)
}

pub(crate) fn arrow_type(column_type: &ColumnType) -> DataType {
    match column_type {
        ColumnType::Scalar(scalar) => scalar_arrow_type(*scalar),
        ColumnType::Utf8 => DataType::Utf8View,
        ColumnType::Binary | ColumnType::Image => DataType::BinaryView,
        ColumnType::List(inner) => DataType::List(Arc::new(arrow_field("item", inner))),
        ColumnType::Tensor { scalar, shape } => {
            let length = shape.iter().map(|&extent| i64::from(extent)).product::<i64>();
            let item = Arc::new(Field::new("item", scalar_arrow_type(*scalar), true));
            DataType::FixedSizeList(item, i32::try_from(length).unwrap_or(i32::MAX))
        }
    }
}

fn scalar_arrow_type(scalar: ScalarType) -> DataType {
    match scalar {
        ScalarType::Bool => DataType::Boolean,
        ScalarType::Int8 => DataType::Int8,
        ScalarType::Int16 => DataType::Int16,
        ScalarType::Int32 => DataType::Int32,
        ScalarType::Int64 => DataType::Int64,
        ScalarType::UInt8 => DataType::UInt8,
        ScalarType::UInt16 => DataType::UInt16,
        ScalarType::UInt32 => DataType::UInt32,
        ScalarType::UInt64 => DataType::UInt64,
        ScalarType::Float16 => DataType::Float16,
        ScalarType::Float32 => DataType::Float32,
        ScalarType::Float64 => DataType::Float64,
    }
}

/// Converts an Arrow field to a column type. Unlike the type alone, a field may contain the shape of a tensor. An error contains the
/// unsupported type.
pub(crate) fn field_type(field: &Field) -> Result<ColumnType, String> {
    with_tensor_shape(column_type(field.data_type())?, field)
}

/// Replaces the shape of a tensor with the one of the extension type of its field.
pub(crate) fn with_tensor_shape(column_type: ColumnType, field: &Field) -> Result<ColumnType, String> {
    let extension = field.metadata().get(EXTENSION_NAME_KEY).map(String::as_str);
    match (column_type, extension) {
        (ColumnType::Tensor { scalar, shape }, Some(TENSOR_EXTENSION)) => {
            let metadata = field.metadata().get(EXTENSION_METADATA_KEY).map_or("", String::as_str);
            Ok(ColumnType::Tensor { scalar, shape: tensor_shape(metadata, &shape)? })
        }
        (other, _) => Ok(other),
    }
}

/// Parses the metadata of the extension type `arrow.fixed_shape_tensor`. `stored` is the shape without this metadata.
fn tensor_shape(metadata: &str, stored: &[u32]) -> Result<Vec<u32>, String> {
    let invalid = || format!("the metadata of the type {TENSOR_EXTENSION} is invalid: {metadata}");
    let parsed: TensorMetadata = serde_json::from_str(metadata).map_err(|_| invalid())?;
    let elements = |shape: &[u32]| shape.iter().map(|&extent| u64::from(extent)).product::<u64>();
    if parsed.shape.is_empty() || elements(&parsed.shape) != elements(stored) {
        return Err(invalid());
    }
    if let Some(permutation) = parsed.permutation
        && !permutation.iter().copied().eq(0..parsed.shape.len() as u32)
    {
        return Err(format!(
            "tensors with the permutation {permutation:?} are not supported; write them in row-major order, such as with \
             `numpy.ascontiguousarray`"
        ));
    }
    Ok(parsed.shape)
}

/// The metadata of the extension type `arrow.fixed_shape_tensor`. The names of the dimensions are ignored.
#[derive(Deserialize)]
struct TensorMetadata {
    shape: Vec<u32>,
    permutation: Option<Vec<u32>>,
}

/// Converts an Arrow type to a column type. An error contains the unsupported type.
pub(crate) fn column_type(data_type: &DataType) -> Result<ColumnType, String> {
    Ok(match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            ColumnType::Binary
        }
        DataType::Dictionary(_, values) => column_type(values)?,
        DataType::List(item) | DataType::LargeList(item) => ColumnType::List(Box::new(field_type(item)?)),
        DataType::FixedSizeList(item, length) => fixed_size_list_type(item, *length)?,
        other => ColumnType::Scalar(
            scalar_type(other).ok_or_else(|| format!("the type {other} is not supported"))?,
        ),
    })
}

fn fixed_size_list_type(item: &Field, length: i32) -> Result<ColumnType, String> {
    let extent = u32::try_from(length).map_err(|_| format!("invalid list length {length}"))?;
    if extent == 0 {
        return Err(NO_ELEMENTS.to_owned());
    }
    Ok(match field_type(item)? {
        ColumnType::Scalar(scalar) => ColumnType::Tensor { scalar, shape: vec![extent] },
        other => ColumnType::List(Box::new(other)),
    })
}

fn scalar_type(data_type: &DataType) -> Option<ScalarType> {
    use ScalarType::{
        Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64,
    };
    let all = [Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Float16, Float32, Float64];
    all.into_iter().find(|scalar| scalar_arrow_type(*scalar) == *data_type)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip_through_arrow() {
        for column_type in [
            ColumnType::Scalar(ScalarType::Bool),
            ColumnType::Scalar(ScalarType::Float16),
            ColumnType::Utf8,
            ColumnType::Binary,
            ColumnType::List(Box::new(ColumnType::Binary)),
            ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![8] },
        ] {
            assert_eq!(super::column_type(&arrow_type(&column_type)).unwrap(), column_type);
        }
        assert!(super::column_type(&DataType::Date32).unwrap_err().contains("Date32"));
    }

    fn tensor_field(metadata: &str) -> Field {
        let storage = arrow_type(&ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![12] });
        Field::new("image", storage, true).with_metadata(std::collections::HashMap::from([
            (EXTENSION_NAME_KEY.to_owned(), TENSOR_EXTENSION.to_owned()),
            (EXTENSION_METADATA_KEY.to_owned(), metadata.to_owned()),
        ]))
    }

    #[test]
    fn the_extension_type_of_tensors_has_a_shape() {
        let tensor = ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![2, 2, 3] };
        for metadata in
            [r#"{"shape":[2,2,3]}"#, r#"{"shape":[2,2,3],"dim_names":["h","w","c"],"permutation":[0,1,2]}"#]
        {
            assert_eq!(field_type(&tensor_field(metadata)).unwrap(), tensor);
        }
        let list = DataType::List(Arc::new(tensor_field(r#"{"shape":[2,2,3]}"#)));
        assert_eq!(column_type(&list).unwrap(), ColumnType::List(Box::new(tensor)));
        let error = |metadata: &str| field_type(&tensor_field(metadata)).unwrap_err();
        assert!(error(r#"{"shape":[2,2,3],"permutation":[2,0,1]}"#).contains("permutation [2, 0, 1]"));
        assert!(error(r#"{"shape":[2,2,3],"permutation":[0,1]}"#).contains("permutation [0, 1]"));
        for metadata in ["", "{}", r#"{"shape":[5]}"#, r#"{"shape":[]}"#, r#"{"shape":[-2,-6]}"#] {
            assert!(error(metadata).contains("is invalid"), "{metadata}");
        }
    }

    #[test]
    fn a_batch_without_columns_keeps_its_rows() {
        assert_eq!(build_batch(&Schema::default(), Vec::new(), 3).unwrap().num_rows(), 3);
    }
}
