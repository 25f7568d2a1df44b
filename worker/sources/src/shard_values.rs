//! Adds the columns that have one value in all rows of a shard (`ShardRef::values`) to the index of a shard and to its rows. The
//! readers of formats do not know these columns. A column of the data with the same name is not read.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, StringViewBuilder};
use arrow::buffer::Buffer;
use feedline_data::manifest::{ShardIndex, ShardValue};
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::columns::{arrow_type, build_batch, null_column};
use crate::error::SourceError;
use crate::exact_cast::{cast_exact, merge_failures, row_failures};
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::Selection;

/// Size of a view or number in memory.
const VALUE_BYTES: usize = 16;

/// Indexes a shard, or a sample of it, and adds the columns of its values to the schema.
pub(crate) async fn index(
    reader: &dyn FormatReader,
    object: &Arc<Object>,
    selection: &Selection,
    is_sample: bool,
) -> Result<ShardIndex, SourceError> {
    let values = &object.shard().values;
    let of_data = selection.without(|name| find(values, name).is_some());
    let indexed = match is_sample {
        true => reader.index_sample(object, &of_data).await,
        false => reader.index(object, &of_data).await,
    };
    let mut index = indexed?;
    if values.is_empty() {
        return Ok(index);
    }
    index.schema = index.schema.map(|schema| with_values(schema, values, selection));
    let is_of_data = |column: &str| {
        let is_selected = index.schema.as_ref().is_some_and(|schema| schema.get(column).is_some());
        is_selected && find(values, selection.data_name(column)).is_none()
    };
    index.columns.untyped.retain(|column| is_of_data(column));
    index.columns.widened.retain(|widened| is_of_data(&widened.column));
    index.columns.rounded.retain(|rounded| is_of_data(&rounded.column));
    index.columns.kinds.retain(|kind| is_of_data(&kind.column));
    Ok(index)
}

fn with_values(mut data: Schema, values: &[ShardValue], selection: &Selection) -> Schema {
    if selection.reads_all() {
        for value in values {
            data.set(&value.name, value.column_type());
        }
        return data;
    }
    let mut schema = Schema::default();
    for (column, name) in selection.features() {
        match (find(values, name), data.get(column)) {
            (Some(value), _) => schema.set(column, value.column_type()),
            (None, Some(column_type)) => schema.set(column, column_type.clone()),
            (None, None) => {}
        }
    }
    schema
}

/// Returns the memory that the read of a block needs without the columns of the shard's values, which are small.
pub(crate) async fn peak_bytes(
    reader: &dyn FormatReader,
    object: &Arc<Object>,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<u64, SourceError> {
    let schema = data_schema(read, selection);
    let schema = schema.as_ref().unwrap_or(read.schema);
    reader.peak_bytes(object, &BlockRead { schema, ..*read }, selection).await
}

/// Returns the requested columns that the data contains; `None` if no column has one value in all rows of the shard.
fn data_schema(read: &BlockRead<'_>, selection: &Selection) -> Option<Schema> {
    let is_value = |column: &str| find(&read.shard.values, selection.data_name(column)).is_some();
    if !read.schema.names().any(is_value) {
        return None;
    }
    let fields = read.schema.fields.iter().filter(|field| !is_value(&field.name));
    Some(Schema { fields: fields.cloned().collect() })
}

/// Reads rows of a block, and adds the columns of the shard's values.
pub(crate) async fn read(
    reader: &dyn FormatReader,
    object: &Arc<Object>,
    read: &BlockRead<'_>,
    selection: &Selection,
) -> Result<DecodedBlock, SourceError> {
    let values = &read.shard.values;
    let value_of = |column: &str| find(values, selection.data_name(column));
    let Some(of_data) = data_schema(read, selection) else {
        return reader.read(object, read, selection).await;
    };
    let decoded = reader.read(object, &BlockRead { schema: &of_data, ..*read }, selection).await?;
    let rows = decoded.batch.num_rows();
    let mut data = decoded.batch.columns().iter();
    let mut columns = Vec::with_capacity(read.schema.fields.len());
    let mut failures = decoded.failures;
    for field in &read.schema.fields {
        let column = match value_of(&field.name) {
            Some(value) if value.integer.is_none() != is_text(&field.column_type) => Err(format!(
                "column `{}` is {} in the listing but {} in the index: run `feedline index --rebuild`",
                field.name,
                value.column_type(),
                field.column_type
            )),
            // Other datasets of a mix may have a wider type, or lists.
            Some(value) => repeat(value, rows)
                .and_then(|column| cast_exact(&column, &arrow_type(&field.column_type)))
                .map(|(column, inexact)| {
                    failures.extend(row_failures(&field.name, inexact, |_| read.block.offset));
                    column
                }),
            None => data.next().cloned().ok_or_else(|| format!("the rows have no column `{}`", field.name)),
        };
        columns.push(column.map_err(|reason| SourceError::corrupt(read.shard, 0, reason))?);
    }
    merge_failures(&mut failures);
    let added = columns.len() - of_data.fields.len();
    let batch = build_batch(read.schema, columns, rows)
        .map_err(|reason| SourceError::corrupt(read.shard, 0, reason))?;
    Ok(DecodedBlock { batch, failures, held_bytes: decoded.held_bytes + added * rows * VALUE_BYTES })
}

fn find<'a>(values: &'a [ShardValue], name: &str) -> Option<&'a ShardValue> {
    values.iter().find(|value| value.name == name)
}

fn is_text(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::List(item) => is_text(item),
        other => *other == ColumnType::Utf8,
    }
}

/// Returns a column that contains the value in each row.
fn repeat(value: &ShardValue, rows: usize) -> Result<ArrayRef, String> {
    let Some(text) = &value.text else { return Ok(null_column(&value.column_type(), rows)) };
    let invalid = |_| format!("the value `{text}` of column `{}` is not an integer", value.name);
    Ok(match value.integer {
        Some(ScalarType::Int32) => {
            Arc::new(Int32Array::from_value(text.parse().map_err(invalid)?, rows)) as ArrayRef
        }
        Some(_) => Arc::new(Int64Array::from_value(text.parse().map_err(invalid)?, rows)),
        None => {
            let mut builder = StringViewBuilder::with_capacity(rows);
            let block = builder.append_block(Buffer::from(text.as_bytes()));
            for _ in 0..rows {
                builder.try_append_view(block, 0, text.len() as u32).map_err(|error| error.to_string())?;
            }
            Arc::new(builder.finish())
        }
    })
}

#[cfg(test)]
mod tests;
