//! The Arrow schema of the output of a pipeline, and of an encoded batch.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields, Schema as ArrowSchema, SchemaRef};
use feedline_data::manifest::DatasetSummary;
use feedline_data::pipeline::{GraphBatchPlan, Pipeline};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

/// Metadata key that marks the field of a boolean tensor, with the value `true`. The elements are `UInt8`, one byte each, so
/// that they can be written in place. Arrow packs eight booleans into a byte.
pub const BOOL_TENSOR_KEY: &str = "feedline:bool";

/// Metadata key of the schema of sampled graphs. The value is [`GraphBatchPlan::metadata`].
pub const GRAPH_KEY: &str = "feedline:graph";

const EXTENSION_NAME_KEY: &str = "ARROW:extension:name";
const EXTENSION_METADATA_KEY: &str = "ARROW:extension:metadata";
const TENSOR_EXTENSION: &str = "arrow.fixed_shape_tensor";

/// Returns the Arrow schema of batches with these columns.
///
/// A tensor is a fixed-size list without nulls, with the extension type `arrow.fixed_shape_tensor` and its shape. Text,
/// bytes, lists and scalars may be null, and so may tensors in lists. A valid pipeline has no images of varying size in its output. This function would
/// convert them to bytes.
pub fn output_schema(schema: &Schema) -> SchemaRef {
    let fields: Vec<Field> =
        schema.fields.iter().map(|field| output_field(&field.name, &field.column_type)).collect();
    Arc::new(ArrowSchema::new(fields))
}

/// Returns the Arrow schema of sampled graphs: the columns of the plan, with its metadata.
pub fn graph_schema(plan: &GraphBatchPlan) -> SchemaRef {
    let fields = output_schema(&plan.schema()).fields().clone();
    let metadata = HashMap::from([(GRAPH_KEY.to_owned(), plan.metadata.clone())]);
    Arc::new(ArrowSchema::new_with_metadata(fields, metadata))
}

/// Returns the Arrow schema of the batches of a pipeline.
///
/// # Errors
/// Returns a message if the pipeline does not fit the dataset.
pub fn batch_schema(pipeline: &Pipeline, dataset: &DatasetSummary) -> Result<SchemaRef, String> {
    match pipeline.graph_batches(dataset)? {
        Some(plan) => Ok(graph_schema(&plan)),
        None => Ok(output_schema(&pipeline.batch_columns(dataset)?)),
    }
}

fn output_field(name: &str, column_type: &ColumnType) -> Field {
    match column_type {
        ColumnType::Scalar(scalar) => Field::new(name, scalar_type(*scalar), true),
        ColumnType::Utf8 => Field::new(name, DataType::Utf8, true),
        ColumnType::Binary | ColumnType::Image => Field::new(name, DataType::Binary, true),
        ColumnType::List(inner) => Field::new(name, DataType::List(Arc::new(item_field(inner))), true),
        ColumnType::Tensor { scalar, shape } => tensor_column(name, *scalar, shape),
    }
}

/// The field of the elements of lists. Tensors in lists may be null and may have null elements, because no operator writes them
/// in place.
fn item_field(column_type: &ColumnType) -> Field {
    match column_type {
        ColumnType::Tensor { scalar, shape } => {
            let item = Field::new("item", scalar_type(*scalar), true);
            tensor_field(Field::new("item", tensor_type(item, shape), true), shape)
        }
        other => output_field("item", other),
    }
}

fn tensor_column(name: &str, scalar: ScalarType, shape: &[u32]) -> Field {
    let element = match scalar {
        ScalarType::Bool => DataType::UInt8,
        other => scalar_type(other),
    };
    let item = Field::new("item", element, false);
    let mut field = tensor_field(Field::new(name, tensor_type(item, shape), false), shape);
    if scalar == ScalarType::Bool {
        field.metadata_mut().insert(BOOL_TENSOR_KEY.to_owned(), "true".to_owned());
    }
    field
}

fn tensor_type(item: Field, shape: &[u32]) -> DataType {
    let elements = shape.iter().map(|&extent| u64::from(extent)).product::<u64>();
    // The engine has already rejected rows with more than 2^31 elements, because such rows do not fit into memory.
    DataType::FixedSizeList(Arc::new(item), i32::try_from(elements).unwrap_or(i32::MAX))
}

/// Adds the extension type with the shape of a tensor.
fn tensor_field(field: Field, shape: &[u32]) -> Field {
    field.with_metadata(HashMap::from([
        (EXTENSION_NAME_KEY.to_owned(), TENSOR_EXTENSION.to_owned()),
        (EXTENSION_METADATA_KEY.to_owned(), serde_json::json!({ "shape": shape }).to_string()),
    ]))
}

fn scalar_type(scalar: ScalarType) -> DataType {
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

/// Returns the schema of a batch after [`super::encode_batch`]: views become plain text and bytes, also in nested types.
pub fn plain_schema(schema: &SchemaRef) -> SchemaRef {
    let fields: Fields = schema.fields().iter().map(plain_field).collect();
    if &fields == schema.fields() {
        return Arc::clone(schema);
    }
    Arc::new(ArrowSchema::new_with_metadata(fields, schema.metadata().clone()))
}

fn plain_field(field: &Arc<Field>) -> Arc<Field> {
    let plain = match field.data_type() {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(plain_field(item)),
        DataType::LargeList(item) => DataType::LargeList(plain_field(item)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(plain_field(item), *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(plain_field).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(field.as_ref().clone().with_data_type(plain))
}
