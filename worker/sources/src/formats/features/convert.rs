//! Converts columns of Hugging Face datasets: nested lists to tensors, and class indexes to names.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, LargeListArray, StringViewBuilder,
    UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{cast, nullif, take};
use arrow::datatypes::{DataType, Field, Int64Type};

use crate::exact_cast::InexactRow;

/// Maximum length of a path in an error message.
const MAX_SHOWN_PATH: usize = 200;
/// Maximum number of elements of a block with null rows, which need memory that the file does not contain.
const MAX_SPREAD_ELEMENTS: usize = 1 << 27;

/// Returns the rows whose bytes are null although they have a path, with the reason.
pub(super) fn rows_without_bytes(bytes: &ArrayRef, paths: Option<&ArrayRef>) -> Vec<(u32, String)> {
    if let Some((offsets, items)) = list_items(bytes) {
        let paths = paths.and_then(list_items);
        let failed = rows_without_bytes(&items, paths.as_ref().map(|(_, paths)| paths));
        let row_of = |item: u32| offsets.partition_point(|&start| start <= item as usize).saturating_sub(1);
        let rows = failed.into_iter().map(|(item, reason)| (row_of(item), reason));
        // Items outside of the offsets belong to no row.
        return rows
            .filter(|(row, _)| *row < bytes.len())
            .map(|(row, reason)| (row as u32, reason))
            .collect();
    }
    let Some(paths) = paths.filter(|_| bytes.null_count() > 0) else { return Vec::new() };
    let Ok(paths) = cast(paths, &DataType::Utf8View) else { return Vec::new() };
    let paths = paths.as_string_view();
    let rows = (0..bytes.len()).filter(|&row| bytes.is_null(row) && !paths.is_null(row));
    rows.map(|row| {
        let path: String = paths.value(row).chars().take(MAX_SHOWN_PATH).collect();
        let reason = format!(
            "the row contains only the path `{path}` and not the bytes of the file: write the dataset with `save_to_disk` or \
             `push_to_hub`, which embed the files"
        );
        (row as u32, reason)
    })
    .collect()
}

/// The offsets and the items of lists; `None` for other arrays.
fn list_items(array: &ArrayRef) -> Option<(Vec<usize>, ArrayRef)> {
    let (offsets, items) = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (list.value_offsets().iter().map(|&offset| offset as usize).collect(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (list.value_offsets().iter().map(|&offset| offset as usize).collect(), list.values())
        }
        DataType::FixedSizeList(..) => {
            let list = array.as_fixed_size_list();
            ((0..=list.len()).map(|row| list.value_offset_at(row)).collect(), list.values())
        }
        _ => return None,
    };
    Some((offsets, Arc::clone(items)))
}

/// Returns the names of classes, and the rows with a class that has no name, which is null. The index -1 means that the class is
/// unknown, and becomes null too.
pub(super) fn class_names(
    column: &ArrayRef,
    names: &[String],
) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    if let Some((offsets, items)) = list_items(column) {
        let (items, unnamed) = class_names(&items, names)?;
        let mut rows: Vec<InexactRow> = Vec::new();
        for InexactRow { row: item, reason } in unnamed {
            let row = offsets.partition_point(|&start| start <= item).checked_sub(1);
            // Items outside of the offsets belong to no row.
            let row = row.filter(|&row| row < column.len() && column.is_valid(row));
            if let Some(row) = row.filter(|row| rows.last().is_none_or(|last| last.row != *row)) {
                rows.push(InexactRow { row, reason });
            }
        }
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        let offsets = OffsetBuffer::new(offsets.iter().map(|&offset| offset as i64).collect());
        let list = LargeListArray::try_new(item, offsets, items, column.nulls().cloned());
        return list.map(|list| (Arc::new(list) as ArrayRef, rows)).map_err(|error| error.to_string());
    }
    let indexes = cast(column, &DataType::Int64).map_err(|error| error.to_string())?;
    let mut builder = StringViewBuilder::with_capacity(indexes.len()).with_deduplicate_strings();
    let mut unnamed = Vec::new();
    for (row, index) in indexes.as_primitive::<Int64Type>().iter().enumerate() {
        let index = index.filter(|&index| index != -1);
        let name = index.and_then(|index| names.get(usize::try_from(index).ok()?));
        if let (Some(index), None) = (index, name) {
            let reason = format!("the class {index} has no name: the feature has {} names", names.len());
            unnamed.push(InexactRow { row, reason });
        }
        builder.append_option(name);
    }
    Ok((Arc::new(builder.finish()), unnamed))
}

/// Converts nested lists as [`tensor`]. Rows with another shape are null in the result, and listed.
pub(super) fn tensors(column: &ArrayRef, shape: &[u32]) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    let error = match tensor(column, shape) {
        Ok(tensors) => return Ok((tensors, Vec::new())),
        Err(error) => error,
    };
    let reason_of_row = |row| tensor(&column.slice(row, 1), shape).err();
    let reasons = (0..column.len()).filter_map(|row| Some(InexactRow { row, reason: reason_of_row(row)? }));
    let inexact: Vec<InexactRow> = reasons.collect();
    if inexact.is_empty() {
        // All rows together need too much memory.
        return Err(error);
    }
    let mut is_inexact = vec![false; column.len()];
    inexact.iter().for_each(|inexact| is_inexact[inexact.row] = true);
    let others = nullif(column, &BooleanArray::from(is_inexact)).map_err(|error| error.to_string())?;
    Ok((tensor(&others, shape)?, inexact))
}

/// Converts nested lists to one list of fixed length per row. The lists of each dimension must have the length of the shape. A
/// null row stays null.
pub(super) fn tensor(column: &ArrayRef, shape: &[u32]) -> Result<ArrayRef, String> {
    let rows = column.len();
    let nulls = column.logical_nulls();
    let mut values = Arc::clone(column);
    // The rows of `values` that belong to valid rows of the column.
    let mut valid_rows = rows;
    if let Some(nulls) = &nulls {
        let valid: UInt32Array = (0..rows as u32).filter(|&row| nulls.is_valid(row as usize)).collect();
        valid_rows = valid.len();
        values = take(&values, &valid, None).map_err(|error| error.to_string())?;
    }
    for &extent in shape {
        values = inner_values(&values, extent, shape)?;
    }
    let elements = shape.iter().map(|&extent| extent as usize).product::<usize>();
    if values.len() != valid_rows * elements {
        return Err(mismatch(shape));
    }
    if valid_rows < rows {
        values = spread(&values, nulls.as_ref(), rows, elements)?;
    }
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let length = i32::try_from(elements).map_err(|_| mismatch(shape))?;
    let list = FixedSizeListArray::try_new_with_length(item, length, values, nulls, rows);
    list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| error.to_string())
}

/// Inserts null elements for null rows.
fn spread(
    values: &ArrayRef,
    nulls: Option<&arrow::buffer::NullBuffer>,
    rows: usize,
    elements: usize,
) -> Result<ArrayRef, String> {
    if rows.saturating_mul(elements) > MAX_SPREAD_ELEMENTS {
        return Err("the null arrays of a record batch need too much memory: write smaller record batches or row groups".to_owned());
    }
    let mut next = 0;
    let mut places: Vec<Option<u32>> = Vec::with_capacity(rows * elements);
    for row in 0..rows {
        let is_valid = nulls.is_none_or(|nulls| nulls.is_valid(row));
        for _ in 0..elements {
            places.push(is_valid.then_some(next));
            next += u32::from(is_valid);
        }
    }
    take(values, &UInt32Array::from(places), None).map_err(|error| error.to_string())
}

/// Returns the items of lists that all have `extent` items.
fn inner_values(lists: &ArrayRef, extent: u32, shape: &[u32]) -> Result<ArrayRef, String> {
    if lists.null_count() > 0 {
        return Err("an inner list of an array is null: write the array again".to_owned());
    }
    let extent = extent as usize;
    let (start, end) = match lists.data_type() {
        DataType::FixedSizeList(..) => {
            let list = lists.as_fixed_size_list();
            if list.value_length() as usize != extent {
                return Err(mismatch(shape));
            }
            let start = list.value_offset_at(0);
            return Ok(list.values().slice(start, list.len() * extent));
        }
        DataType::List(_) => bounds(lists.as_list::<i32>().value_offsets(), extent),
        DataType::LargeList(_) => bounds(lists.as_list::<i64>().value_offsets(), extent),
        other => return Err(format!("the type {other} is not a list")),
    }
    .ok_or_else(|| mismatch(shape))?;
    let values = match lists.data_type() {
        DataType::List(_) => lists.as_list::<i32>().values(),
        _ => lists.as_list::<i64>().values(),
    };
    Ok(values.slice(start, end - start))
}

/// Returns the range of the values if all lists have `extent` items.
fn bounds<O: Copy + TryInto<usize>>(offsets: &[O], extent: usize) -> Option<(usize, usize)> {
    let at = |offset: O| offset.try_into().ok();
    for pair in offsets.windows(2) {
        if at(pair[1])?.checked_sub(at(pair[0])?)? != extent {
            return None;
        }
    }
    Some((at(*offsets.first()?)?, at(*offsets.last()?)?))
}

fn mismatch(shape: &[u32]) -> String {
    format!("the lists of an array do not have the shape {shape:?} of the feature: write the dataset again")
}
