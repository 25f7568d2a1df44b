//! Finds the columns of Parquet and Arrow files. Struct fields become columns with dotted names, also in lists and maps. Text and
//! bytes become views.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, OffsetSizeTrait, RecordBatch, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema, SchemaRef, TimeUnit};
use feedline_data::schema::ColumnType;
use parquet::basic::Type as PhysicalType;
use parquet::schema::types::SchemaDescriptor;

use super::values::{
    check_items, field_value_type, has_type, kind, list_item, list_item_type, lost_rows, plain_values,
    rounding, too_large, unlisted_views, untyped_items,
};
use crate::columns::null_column;
use crate::error::SourceError;
use crate::exact_cast::{InexactRow, cast_exact};
use crate::reader::BlockRead;
use crate::select::ResolvedColumn;

/// Maximum memory of the nulls that replace a column without values.
const MAX_NULLS_BYTES: usize = 1 << 30;

/// A column of a file.
pub(crate) struct FileColumn {
    /// The dotted name.
    pub(crate) name: String,
    /// The type, or the reason why the column cannot be read.
    column_type: Result<ColumnType, String>,
    /// Whether the values have a type. The values of other columns are all null.
    pub(crate) has_type: bool,
    /// How the values are rounded.
    pub(crate) rounding: Option<&'static str>,
    /// What the numbers of the column mean.
    pub(crate) kind: Option<&'static str>,
    /// The indices of the column's leaves in the file, in depth-first order.
    pub(crate) leaves: Range<usize>,
}

/// Returns the columns of the fields. The fields of a struct are columns with names such as `struct.field`. The fields of structs in
/// a list are lists.
pub(crate) fn file_columns(fields: &Fields) -> Vec<FileColumn> {
    let mut columns = Vec::new();
    let mut leaf = 0;
    for field in fields {
        add_columns(field.name().clone(), field, &mut leaf, &mut columns);
    }
    columns
}

fn add_columns(name: String, field: &Field, leaf: &mut usize, columns: &mut Vec<FileColumn>) {
    match field.data_type() {
        DataType::Struct(inner) => {
            for field in inner {
                add_columns(format!("{name}.{}", field.name()), field, leaf, columns);
            }
        }
        data_type if contains_struct(data_type) => {
            let Some(item) = list_item(data_type) else { return };
            let start = columns.len();
            add_columns(name, item, leaf, columns);
            for column in &mut columns[start..] {
                column.column_type =
                    column.column_type.clone().map(|inner| ColumnType::List(Box::new(inner)));
            }
        }
        other => {
            let leaves = *leaf..*leaf + 1;
            *leaf += 1;
            columns.push(FileColumn {
                name,
                column_type: field_value_type(field),
                has_type: has_type(other),
                rounding: rounding(other),
                kind: kind(other),
                leaves,
            });
        }
    }
}

/// Whether a list or map contains structs.
fn contains_struct(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Struct(_)) || list_item_type(data_type).is_some_and(contains_struct)
}

/// Returns the names and types of the columns.
pub(crate) fn resolve_columns(fields: &Fields) -> Vec<ResolvedColumn> {
    file_columns(fields).into_iter().map(|column| (column.name, column.column_type)).collect()
}

/// Checks that a block can be read as requested, which is only possible as a whole.
pub(crate) fn check_block_read(read: &BlockRead<'_>) -> Result<(), SourceError> {
    let url = || read.shard.url.clone();
    if read.rows.is_some() {
        let reason = "individual rows can be read only if the index contains the row sizes".to_owned();
        return Err(SourceError::Request { url: url(), reason });
    }
    Ok(())
}

/// Returns the schema for decoding. Text and bytes are views, except in lists. INT96 timestamps are microseconds, because
/// nanoseconds have a smaller range.
pub(crate) fn decoding_schema(schema: &Schema, parquet: &SchemaDescriptor) -> SchemaRef {
    let mut leaf = 0;
    let fields = decoding_fields(schema.fields(), parquet, &mut leaf);
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn decoding_fields(fields: &Fields, parquet: &SchemaDescriptor, leaf: &mut usize) -> Vec<FieldRef> {
    let with_type = |field: &Field, data_type| Arc::new(field.clone().with_data_type(data_type));
    fields
        .iter()
        .map(|field| {
            let data_type = match decoding_type(field.data_type(), parquet, leaf) {
                DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
                DataType::Binary | DataType::LargeBinary => DataType::BinaryView,
                other => other,
            };
            with_type(field, data_type)
        })
        .collect()
}

fn decoding_type(data_type: &DataType, parquet: &SchemaDescriptor, leaf: &mut usize) -> DataType {
    let mut item = |field: &FieldRef| {
        let data_type = decoding_type(field.data_type(), parquet, leaf);
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match data_type {
        DataType::Struct(inner) => DataType::Struct(decoding_fields(inner, parquet, leaf).into()),
        DataType::List(field) => DataType::List(item(field)),
        DataType::LargeList(field) => DataType::LargeList(item(field)),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(item(field), *length),
        DataType::Map(field, is_sorted) => DataType::Map(item(field), *is_sorted),
        other => {
            let is_int96 =
                *leaf < parquet.num_columns() && parquet.column(*leaf).physical_type() == PhysicalType::INT96;
            *leaf += 1;
            match other {
                DataType::Timestamp(_, zone) if is_int96 => {
                    DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
                }
                other => other.clone(),
            }
        }
    }
}

/// Finds a column by name. `a.b` is field `b` of struct `a`, or of the structs in list `a`. The fields of a null struct are null.
pub(crate) fn find_column(batch: &RecordBatch, name: &str) -> Option<ArrayRef> {
    find_field(batch.schema_ref().fields(), batch.columns(), name)
}

/// Finds a column among fields. Several structs may have the same name and different fields.
fn find_field(fields: &Fields, columns: &[ArrayRef], name: &str) -> Option<ArrayRef> {
    fields.iter().zip(columns).find_map(|(field, column)| {
        let inner = name.strip_prefix(field.name().as_str())?;
        match contains_struct(field.data_type()) {
            false => inner.is_empty().then(|| column.clone()),
            true => inner_column(column, inner.strip_prefix('.')?),
        }
    })
}

fn inner_column(outer: &ArrayRef, name: &str) -> Option<ArrayRef> {
    match outer.data_type() {
        DataType::Struct(_) => field_of_struct(outer.as_struct(), name),
        DataType::List(_) => {
            let (_, offsets, values, nulls) = outer.as_list::<i32>().clone().into_parts();
            list_of(offsets, inner_column(&values, name)?, nulls)
        }
        DataType::LargeList(_) => {
            let (_, offsets, values, nulls) = outer.as_list::<i64>().clone().into_parts();
            list_of(offsets, inner_column(&values, name)?, nulls)
        }
        DataType::Map(..) => {
            let (_, offsets, entries, nulls, _) = outer.as_map().clone().into_parts();
            list_of(offsets, field_of_struct(&entries, name)?, nulls)
        }
        DataType::FixedSizeList(..) => {
            let (_, length, values, nulls) = outer.as_fixed_size_list().clone().into_parts();
            let values = inner_column(&values, name)?;
            let item = Arc::new(Field::new("item", values.data_type().clone(), true));
            Some(Arc::new(FixedSizeListArray::try_new(item, length, values, nulls).ok()?))
        }
        DataType::ListView(_) | DataType::LargeListView(_) => {
            inner_column(&unlisted_views(outer).ok()?, name)
        }
        _ => None,
    }
}

fn list_of<O: OffsetSizeTrait>(
    offsets: OffsetBuffer<O>,
    values: ArrayRef,
    nulls: Option<NullBuffer>,
) -> Option<ArrayRef> {
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    Some(Arc::new(GenericListArray::try_new(item, offsets, values, nulls).ok()?))
}

fn field_of_struct(outer: &StructArray, name: &str) -> Option<ArrayRef> {
    let (fields, arrays, nulls) = outer.clone().into_parts();
    let column = find_field(&fields, &arrays, name)?;
    let Some(nulls) = nulls else { return Some(column) };
    let is_null = arrow::array::BooleanArray::new(!nulls.inner(), None);
    arrow::compute::nullif(&column, &is_null).ok()
}

/// Converts a column to a column type, whose Arrow type is `wanted`. Rows with values that the type does not represent are null in
/// the result, and listed.
pub(crate) fn cast_column(
    column: &ArrayRef,
    column_type: &ColumnType,
    wanted: &DataType,
) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    if column.data_type() == wanted {
        return Ok((column.clone(), Vec::new()));
    }
    if !has_type(column.data_type()) {
        check_items(untyped_items(column))?;
        let row_bytes = column_type.fixed_row_bytes().unwrap_or(16);
        if column.len().saturating_mul(row_bytes) > MAX_NULLS_BYTES {
            let rows = column.len();
            return Err(format!(
                "{rows} rows without values need too much memory: write fewer rows per block"
            ));
        }
        if column.data_type() == &DataType::Null {
            return Ok((null_column(column_type, column.len()), Vec::new()));
        }
    }
    let plain = plain_values(column)?;
    let reason = || too_large(column.data_type()).to_owned();
    let lost = lost_rows(column, &plain).into_iter();
    let mut inexact: Vec<InexactRow> = lost.map(|row| InexactRow { row, reason: reason() }).collect();
    let (converted, rounded) = cast_exact(&plain, wanted)?;
    inexact.extend(rounded);
    inexact.sort_by_key(|inexact| inexact.row);
    Ok((converted, inexact))
}
