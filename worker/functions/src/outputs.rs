//! What a function returned: buffers in the region, read into arrays of the declared types. Nothing in them is believed:
//! places, lengths and text are checked, since the process that wrote them runs users' code.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, ListArray, make_array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use feedline_data::schema::{ColumnType, ScalarType};
use serde_json::Value;

use crate::region::SharedRegion;

/// Reads one call's rows of a column that is no tensor.
pub(crate) fn read_array(
    region: &SharedRegion,
    column_type: &ColumnType,
    place: &Value,
    rows: usize,
) -> Result<ArrayRef, String> {
    match column_type {
        ColumnType::Scalar(scalar) => {
            let bytes = read_bytes(region, number(place, "at")?, rows * scalar.width_bytes())?;
            numbers(*scalar, bytes, rows)
        }
        ColumnType::Utf8 | ColumnType::Binary => {
            let offsets = read_offsets(region, number(place, "offsets")?, rows)?;
            let bytes = offsets.last().copied().unwrap_or_default() as usize;
            let data = read_bytes(region, number(place, "data")?, bytes)?;
            texts(*column_type == ColumnType::Utf8, offsets, data)
        }
        ColumnType::List(items) => {
            let offsets = read_offsets(region, number(place, "offsets")?, rows)?;
            let count = offsets.last().copied().unwrap_or_default() as usize;
            let values = read_array(region, items, &place["items"], count)?;
            lists(offsets, values)
        }
        ColumnType::Image | ColumnType::Tensor { .. } => Err(format!("{column_type} is no array")),
    }
}

/// Reads one call's rows of a tensor column to where they belong.
pub(crate) fn read_tensor(region: &SharedRegion, place: &Value, into: &mut [u8]) -> Result<(), String> {
    let at = number(place, "at")?;
    region.read(at, into).map_err(|error| format!("its results cannot be read: {error}"))
}

/// One row that stands for one that failed: zero, or nothing.
pub(crate) fn placeholder(column_type: &ColumnType) -> Result<ArrayRef, String> {
    match column_type {
        ColumnType::Scalar(scalar) => numbers(*scalar, vec![0; scalar.width_bytes()], 1),
        ColumnType::Utf8 | ColumnType::Binary => {
            texts(*column_type == ColumnType::Utf8, vec![0, 0], Vec::new())
        }
        ColumnType::List(items) => {
            lists(vec![0, 0], arrow::array::new_empty_array(placeholder(items)?.data_type()))
        }
        ColumnType::Image | ColumnType::Tensor { .. } => Err(format!("{column_type} is no array")),
    }
}

fn number(place: &Value, name: &str) -> Result<u64, String> {
    place[name].as_u64().ok_or_else(|| format!("its answer does not say `{name}`; please report this"))
}

fn read_bytes(region: &SharedRegion, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let size = region.size().map_err(|error| format!("its results cannot be read: {error}"))?;
    // Before room is made for it.
    if at.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err("its answer names results that it has not written; please report this".to_owned());
    }
    let mut read = vec![0; bytes];
    region.read(at, &mut read).map_err(|error| format!("its results cannot be read: {error}"))?;
    Ok(read)
}

fn read_offsets(region: &SharedRegion, at: u64, rows: usize) -> Result<Vec<i32>, String> {
    let bytes = read_bytes(region, at, (rows + 1) * 8)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    let offsets: Vec<i32> = numbers
        .iter()
        .map(|bytes| i32::try_from(i64::from_ne_bytes(*bytes)))
        .collect::<Result<_, _>>()
        .map_err(|_| "it returned more than 2 GiB in one column of one call; lower `rows`".to_owned())?;
    if offsets.first() != Some(&0) || !offsets.is_sorted() {
        return Err("its answer has lengths that are none; please report this".to_owned());
    }
    Ok(offsets)
}

fn numbers(scalar: ScalarType, bytes: Vec<u8>, rows: usize) -> Result<ArrayRef, String> {
    if scalar == ScalarType::Bool {
        return Ok(Arc::new(bytes.iter().map(|byte| Some(*byte != 0)).collect::<BooleanArray>()));
    }
    // A copy where bytes do not lie as numbers must.
    let data = ArrayData::builder(arrow_scalar(scalar)).len(rows).add_buffer(Buffer::from_vec(bytes));
    let data =
        data.align_buffers(true).build().map_err(|error| format!("its results are no numbers: {error}"))?;
    Ok(make_array(data))
}

fn texts(is_text: bool, offsets: Vec<i32>, data: Vec<u8>) -> Result<ArrayRef, String> {
    let (plain, wanted) = match is_text {
        true => (DataType::Utf8, DataType::Utf8View),
        false => (DataType::Binary, DataType::BinaryView),
    };
    let builder = ArrayData::builder(plain).len(offsets.len() - 1);
    let data = builder.add_buffer(Buffer::from_vec(offsets)).add_buffer(Buffer::from_vec(data)).build();
    let data = data.map_err(|error| format!("its results are no text: {error}"))?;
    arrow::compute::cast(&make_array(data), &wanted).map_err(|error| error.to_string())
}

fn lists(offsets: Vec<i32>, values: ArrayRef) -> Result<ArrayRef, String> {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let lists = ListArray::try_new(field, OffsetBuffer::new(offsets.into()), values, None);
    lists
        .map(|lists| Arc::new(lists) as ArrayRef)
        .map_err(|error| format!("its results are no lists: {error}"))
}

/// Arrow's name for an element type.
pub(crate) fn arrow_scalar(scalar: ScalarType) -> DataType {
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

/// NumPy's name for an element type, which is the pipeline's.
pub(crate) fn numpy_name(scalar: ScalarType) -> &'static str {
    scalar.name()
}
