//! Conversions between column types and Arrow types.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, new_null_array};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

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

/// Converts an Arrow type to a column type. An error contains the unsupported type.
pub(crate) fn column_type(data_type: &DataType) -> Result<ColumnType, String> {
    Ok(match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => ColumnType::Utf8,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_) => {
            ColumnType::Binary
        }
        DataType::Dictionary(_, values) => column_type(values)?,
        DataType::List(item) | DataType::LargeList(item) => {
            ColumnType::List(Box::new(column_type(item.data_type())?))
        }
        DataType::FixedSizeList(item, length) => fixed_size_list_type(item.data_type(), *length)?,
        other => ColumnType::Scalar(
            scalar_type(other).ok_or_else(|| format!("the type {other} is not supported"))?,
        ),
    })
}

fn fixed_size_list_type(item: &DataType, length: i32) -> Result<ColumnType, String> {
    let extent = u32::try_from(length).map_err(|_| format!("invalid list length {length}"))?;
    Ok(match column_type(item)? {
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

    #[test]
    fn a_batch_without_columns_keeps_its_rows() {
        assert_eq!(build_batch(&Schema::default(), Vec::new(), 3).unwrap().num_rows(), 3);
    }
}
