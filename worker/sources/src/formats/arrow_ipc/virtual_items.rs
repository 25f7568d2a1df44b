//! Columns that can have more items than their file has bytes: runs, overlapping list views, and items that take no bytes. The
//! other code of the crate needs memory for each item.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, GenericListViewArray, MapArray,
    OffsetSizeTrait, RecordBatch, RecordBatchOptions, StructArray, make_array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Fields, Schema};
use arrow::error::ArrowError;

use crate::limits::MAX_VIRTUAL_ITEMS;

/// Checks the number of items of all columns, and expands the runs of a record batch. A run array has no validity of its own, so
/// that the nulls of a struct cannot be applied to it.
pub(super) fn expand(batch: RecordBatch) -> Result<RecordBatch, String> {
    let fields = batch.schema_ref().fields();
    check_items(&batch)?;
    if !fields.iter().any(|field| contains_runs(field.data_type())) {
        return Ok(batch);
    }
    expand_runs(&batch).map_err(|error| error.to_string())
}

fn check_items(batch: &RecordBatch) -> Result<(), String> {
    let columns = batch.schema_ref().fields().iter().zip(batch.columns());
    let items: Vec<(&str, u64)> =
        columns.map(|(field, column)| (field.name().as_str(), virtual_items(column))).collect();
    let total = items.iter().fold(0, |sum: u64, (_, items)| sum.saturating_add(*items));
    match items.iter().max_by_key(|(_, items)| *items) {
        Some((column, _)) if total > MAX_VIRTUAL_ITEMS => Err(format!(
            "a record batch has {total} items that take no bytes in the file, most of them in column `{column}`; the limit is \
             {MAX_VIRTUAL_ITEMS}: write smaller record batches"
        )),
        _ => Ok(()),
    }
}

/// The number of items of a column that take no bytes in the file. The fields of a struct are separate columns.
fn virtual_items(array: &dyn Array) -> u64 {
    match array.data_type() {
        DataType::Null | DataType::FixedSizeBinary(0) | DataType::FixedSizeList(_, 0) => array.len() as u64,
        DataType::RunEndEncoded(..) => items_of_runs(array),
        DataType::List(_) => virtual_items(array.as_list::<i32>().values()),
        DataType::LargeList(_) => virtual_items(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => virtual_items(array.as_fixed_size_list().values()),
        DataType::ListView(_) => items_of_views(array.as_list_view::<i32>()),
        DataType::LargeListView(_) => items_of_views(array.as_list_view::<i64>()),
        DataType::Map(..) => virtual_items(array.as_map().entries()),
        DataType::Struct(_) => {
            let fields = array.as_struct().columns().iter();
            fields.map(|field| virtual_items(field)).fold(0, u64::saturating_add)
        }
        _ => 0,
    }
}

/// The number of items of views that exceed the stored items.
fn items_of_views<O: OffsetSizeTrait>(views: &GenericListViewArray<O>) -> u64 {
    let viewed = views.sizes().iter().fold(0, |sum: u64, size| sum.saturating_add(size.as_usize() as u64));
    let stored = views.values().len() as u64;
    viewed.saturating_sub(stored).saturating_add(virtual_items(views.values()))
}

/// The number of items of the expanded runs, at most. The items of a list count each.
fn items_of_runs(runs: &dyn Array) -> u64 {
    let data = runs.to_data();
    let longest = data.child_data().get(1).map_or(1, |values| longest_value(&make_array(values.clone())));
    (runs.len() as u64).saturating_mul(longest)
}

/// The number of items of the longest value; 1 if the values are not lists.
fn longest_value(values: &dyn Array) -> u64 {
    let items = match values.data_type() {
        DataType::List(_) => longest_list(values.as_list::<i32>()),
        DataType::LargeList(_) => longest_list(values.as_list::<i64>()),
        DataType::FixedSizeList(_, length) => {
            let items = longest_value(values.as_fixed_size_list().values());
            u64::from(length.unsigned_abs()).saturating_mul(items)
        }
        _ => 1,
    };
    items.max(1)
}

fn longest_list<O: OffsetSizeTrait>(lists: &GenericListArray<O>) -> u64 {
    let lengths = lists.value_offsets().windows(2).map(|ends| ends[1].as_usize() - ends[0].as_usize());
    (lengths.max().unwrap_or(0) as u64).saturating_mul(longest_value(lists.values()))
}

fn contains_runs(data_type: &DataType) -> bool {
    match data_type {
        DataType::RunEndEncoded(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => contains_runs(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| contains_runs(field.data_type())),
        _ => false,
    }
}

fn expand_runs(batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
    let columns = batch.columns().iter().map(expanded).collect::<Result<Vec<ArrayRef>, _>>()?;
    let fields = batch.schema_ref().fields().iter().zip(&columns);
    // The type of a field without nulls may contain a run whose value is null.
    let fields = fields.map(|(field, column)| Field::new(field.name(), column.data_type().clone(), true));
    let schema = Arc::new(Schema::new(fields.collect::<Fields>()));
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema, columns, &options)
}

/// Expands the runs of an array, also in its lists and structs.
fn expanded(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        data_type if !contains_runs(data_type) => Ok(array.clone()),
        DataType::RunEndEncoded(run_ends, values) => {
            let viewed = viewed(values.data_type());
            let value_field = Arc::new(values.as_ref().clone().with_data_type(viewed.clone()));
            let runs = cast(array, &DataType::RunEndEncoded(run_ends.clone(), value_field))?;
            expanded(&cast(&runs, &viewed)?)
        }
        DataType::Struct(_) => Ok(Arc::new(expanded_struct(array.as_struct())?)),
        DataType::List(_) => expanded_list(array.as_list::<i32>()),
        DataType::LargeList(_) => expanded_list(array.as_list::<i64>()),
        DataType::ListView(_) => expanded_views(array.as_list_view::<i32>()),
        DataType::LargeListView(_) => expanded_views(array.as_list_view::<i64>()),
        DataType::FixedSizeList(..) => {
            let (_, length, values, nulls) = array.as_fixed_size_list().clone().into_parts();
            let values = expanded(&values)?;
            let (item, rows) = (item_field(&values), array.len());
            Ok(Arc::new(FixedSizeListArray::try_new_with_length(item, length, values, nulls, rows)?))
        }
        DataType::Map(..) => {
            let (field, offsets, entries, nulls, is_sorted) = array.as_map().clone().into_parts();
            let entries = expanded_struct(&entries)?;
            let field = Arc::new(field.as_ref().clone().with_data_type(entries.data_type().clone()));
            Ok(Arc::new(MapArray::try_new(field, offsets, entries, nulls, is_sorted)?))
        }
        _ => Ok(array.clone()),
    }
}

fn expanded_struct(array: &StructArray) -> Result<StructArray, ArrowError> {
    let rows = array.len();
    let (fields, columns, nulls) = array.clone().into_parts();
    let columns = columns.iter().map(expanded).collect::<Result<Vec<ArrayRef>, _>>()?;
    let fields = fields.iter().zip(&columns);
    let fields =
        fields.map(|(field, column)| field.as_ref().clone().with_data_type(column.data_type().clone()));
    StructArray::try_new_with_length(fields.collect::<Fields>(), columns, nulls, rows)
}

fn expanded_list<O: OffsetSizeTrait>(list: &GenericListArray<O>) -> Result<ArrayRef, ArrowError> {
    let (_, offsets, values, nulls) = list.clone().into_parts();
    let values = expanded(&values)?;
    Ok(Arc::new(GenericListArray::try_new(item_field(&values), offsets, values, nulls)?))
}

fn expanded_views<O: OffsetSizeTrait>(views: &GenericListViewArray<O>) -> Result<ArrayRef, ArrowError> {
    let (_, offsets, sizes, values, nulls) = views.clone().into_parts();
    let values = expanded(&values)?;
    Ok(Arc::new(GenericListViewArray::try_new(item_field(&values), offsets, sizes, values, nulls)?))
}

fn item_field(values: &ArrayRef) -> FieldRef {
    Arc::new(Field::new("item", values.data_type().clone(), true))
}

/// The type of expanded values. Long values become views, so that they are not copied.
fn viewed(values: &DataType) -> DataType {
    let viewed_item =
        |item: &FieldRef| Arc::new(item.as_ref().clone().with_data_type(viewed(item.data_type())));
    match values {
        DataType::Utf8 | DataType::LargeUtf8 => DataType::Utf8View,
        DataType::Binary | DataType::LargeBinary | DataType::FixedSizeBinary(_) => DataType::BinaryView,
        DataType::List(item) => DataType::List(viewed_item(item)),
        DataType::LargeList(item) => DataType::LargeList(viewed_item(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(viewed_item(item), *length),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests;
