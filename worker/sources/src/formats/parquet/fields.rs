//! Converts the columns of Parquet and Arrow files. Struct fields become columns with dotted names. Text and bytes become views.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StructArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef};

use crate::columns::column_type;
use crate::error::SourceError;
use crate::reader::BlockRead;
use crate::select::ResolvedColumn;

/// Returns the columns of the fields. The fields of a struct are columns with names such as `struct.field`.
pub(crate) fn resolve_columns(fields: &Fields) -> Vec<ResolvedColumn> {
    let mut all = Vec::new();
    for field in fields {
        match field.data_type() {
            DataType::Struct(inner) => {
                let inner = resolve_columns(inner).into_iter();
                all.extend(
                    inner.map(|(name, column_type)| (format!("{}.{name}", field.name()), column_type)),
                );
            }
            other => all.push((field.name().clone(), column_type(other))),
        }
    }
    all
}

/// Checks that a block can be read as requested: as a whole, and with columns that the shard has.
pub(crate) fn check_block_read(
    read: &BlockRead<'_>,
    names: &[&str],
    fields: &Fields,
) -> Result<(), SourceError> {
    let url = || read.shard.url.clone();
    if read.rows.is_some() {
        let reason = "individual rows can be read only if the index contains the row sizes".to_owned();
        return Err(SourceError::Request { url: url(), reason });
    }
    let columns = resolve_columns(fields);
    match names.iter().find(|name| !columns.iter().any(|(column, _)| column == *name)) {
        None => Ok(()),
        Some(missing) => {
            let reason = format!("the shard has no column `{missing}`, which other shards have");
            Err(SourceError::SchemaMismatch { url: url(), reason })
        }
    }
}

/// Returns the schema for decoding. Text and bytes are views, except in lists.
pub(crate) fn with_views(schema: &Schema) -> SchemaRef {
    Arc::new(Schema::new_with_metadata(view_fields(schema.fields()), schema.metadata().clone()))
}

fn view_fields(fields: &Fields) -> Vec<FieldRef> {
    fields.iter().map(|field| Arc::new(field.as_ref().clone().with_data_type(view_type(field)))).collect()
}

fn view_type(field: &Field) -> DataType {
    match field.data_type() {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
        DataType::Struct(inner) => DataType::Struct(view_fields(inner).into()),
        other => other.clone(),
    }
}

/// Finds a column by name. `a.b` is field `b` of struct `a`. The fields of a null struct are null.
pub(crate) fn find_column(batch: &RecordBatch, name: &str) -> Option<ArrayRef> {
    if let Some(column) = batch.column_by_name(name) {
        return Some(column.clone());
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let outer = batch.column_by_name(&name[..dot])?.as_struct_opt()?;
        inner_column(outer, &name[dot + 1..])
    })
}

fn inner_column(outer: &StructArray, name: &str) -> Option<ArrayRef> {
    let (_, arrays, nulls) = outer.clone().into_parts();
    let whole = |column: &ArrayRef| -> Option<ArrayRef> {
        let Some(nulls) = &nulls else { return Some(column.clone()) };
        let is_null = arrow::array::BooleanArray::new(!nulls.inner(), None);
        arrow::compute::nullif(column, &is_null).ok()
    };
    if let Some((at, _)) = outer.fields().find(name) {
        return whole(&arrays[at]);
    }
    name.match_indices('.').find_map(|(dot, _)| {
        let (at, _) = outer.fields().find(&name[..dot])?;
        inner_column(whole(&arrays[at])?.as_struct_opt()?, &name[dot + 1..])
    })
}

/// Casts a column to a type.
pub(crate) fn cast_column(column: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, String> {
    if column.data_type() == wanted {
        return Ok(column.clone());
    }
    let column = match column.data_type() {
        // Create views of the dictionary. Copies of its values could need much memory.
        DataType::Dictionary(..) if matches!(wanted, DataType::Utf8View | DataType::BinaryView) => column,
        DataType::Dictionary(_, values) => &cast(column, values).map_err(|error| error.to_string())?,
        _ => column,
    };
    cast(column, wanted).map_err(|error| error.to_string())
}
