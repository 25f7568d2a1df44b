//! Reads the results of a function from the shared region into arrays of the declared types. Validates all offsets, lengths
//! and text, because the process that wrote them runs users' code.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, ListArray, make_array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use feedline_data::schema::{ColumnType, ScalarType};
use serde_json::Value;

use crate::region::SharedRegion;

/// Reads the rows that one call returned for a column that is not a tensor.
pub(crate) fn read_array(
    region: &SharedRegion,
    column_type: &ColumnType,
    location: &Value,
    rows: usize,
) -> Result<ArrayRef, String> {
    match column_type {
        ColumnType::Scalar(scalar) => {
            let bytes = read_bytes(region, read_number(location, "at")?, rows * scalar.width_bytes())?;
            number_array(*scalar, bytes, rows)
        }
        ColumnType::Utf8 | ColumnType::Binary => {
            let offsets = read_offsets(region, read_number(location, "offsets")?, rows)?;
            let bytes = offsets.last().copied().unwrap_or_default() as usize;
            let data = read_bytes(region, read_number(location, "data")?, bytes)?;
            text_array(*column_type == ColumnType::Utf8, offsets, data)
        }
        ColumnType::List(items) => {
            let offsets = read_offsets(region, read_number(location, "offsets")?, rows)?;
            let count = offsets.last().copied().unwrap_or_default() as usize;
            let values = read_array(region, items, &location["items"], count)?;
            list_array(offsets, values)
        }
        ColumnType::Image | ColumnType::Tensor { .. } => {
            Err(format!("{column_type} cannot be returned as an array"))
        }
    }
}

/// Reads the rows of one call of a tensor column into their part of the tensor.
pub(crate) fn read_tensor(region: &SharedRegion, location: &Value, into: &mut [u8]) -> Result<(), String> {
    let at = read_number(location, "at")?;
    region.read(at, into).map_err(|error| format!("cannot read the results: {error}"))
}

/// Returns the value of a failed row as an array of one row: zero, or empty.
pub(crate) fn placeholder(column_type: &ColumnType) -> Result<ArrayRef, String> {
    match column_type {
        ColumnType::Scalar(scalar) => number_array(*scalar, vec![0; scalar.width_bytes()], 1),
        ColumnType::Utf8 | ColumnType::Binary => {
            text_array(*column_type == ColumnType::Utf8, vec![0, 0], Vec::new())
        }
        ColumnType::List(items) => {
            list_array(vec![0, 0], arrow::array::new_empty_array(placeholder(items)?.data_type()))
        }
        ColumnType::Image | ColumnType::Tensor { .. } => {
            Err(format!("{column_type} cannot be returned as an array"))
        }
    }
}

fn read_number(location: &Value, name: &str) -> Result<u64, String> {
    location[name]
        .as_u64()
        .ok_or_else(|| format!("the answer of the process has no field `{name}`; please report this error"))
}

fn read_bytes(region: &SharedRegion, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let size = region.size().map_err(|error| format!("cannot read the results: {error}"))?;
    // Validate the size before allocating a buffer.
    if at.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err(
            "the answer of the process refers to data outside of its region; please report this error"
                .to_owned(),
        );
    }
    let mut read = vec![0; bytes];
    region.read(at, &mut read).map_err(|error| format!("cannot read the results: {error}"))?;
    Ok(read)
}

fn read_offsets(region: &SharedRegion, at: u64, rows: usize) -> Result<Vec<i32>, String> {
    let bytes = read_bytes(region, at, (rows + 1) * 8)?;
    let (numbers, _) = bytes.as_chunks::<8>();
    let offsets: Vec<i32> = numbers
        .iter()
        .map(|bytes| i32::try_from(i64::from_ne_bytes(*bytes)))
        .collect::<Result<_, _>>()
        .map_err(|_| {
            "the function returned more than 2 GiB in one column of one call; lower `rows`".to_owned()
        })?;
    if offsets.first() != Some(&0) || !offsets.is_sorted() {
        return Err("the answer of the process contains invalid lengths; please report this error".to_owned());
    }
    Ok(offsets)
}

fn number_array(scalar: ScalarType, bytes: Vec<u8>, rows: usize) -> Result<ArrayRef, String> {
    if scalar == ScalarType::Bool {
        return Ok(Arc::new(bytes.iter().map(|byte| Some(*byte != 0)).collect::<BooleanArray>()));
    }
    // Copies the bytes if they are not aligned.
    let data = ArrayData::builder(arrow_scalar(scalar)).len(rows).add_buffer(Buffer::from_vec(bytes));
    let data = data
        .align_buffers(true)
        .build()
        .map_err(|error| format!("the results are not valid numbers: {error}"))?;
    Ok(make_array(data))
}

fn text_array(is_text: bool, offsets: Vec<i32>, data: Vec<u8>) -> Result<ArrayRef, String> {
    let (plain, wanted) = match is_text {
        true => (DataType::Utf8, DataType::Utf8View),
        false => (DataType::Binary, DataType::BinaryView),
    };
    let builder = ArrayData::builder(plain).len(offsets.len() - 1);
    let data = builder.add_buffer(Buffer::from_vec(offsets)).add_buffer(Buffer::from_vec(data)).build();
    let data = data.map_err(|error| format!("the results are not valid text: {error}"))?;
    arrow::compute::cast(&make_array(data), &wanted).map_err(|error| error.to_string())
}

fn list_array(offsets: Vec<i32>, values: ArrayRef) -> Result<ArrayRef, String> {
    let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    let lists = ListArray::try_new(field, OffsetBuffer::new(offsets.into()), values, None);
    lists
        .map(|lists| Arc::new(lists) as ArrayRef)
        .map_err(|error| format!("the results are not valid lists: {error}"))
}

/// Returns Arrow's data type of an element type.
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

/// Returns NumPy's name of an element type, which is also the name in pipelines.
pub(crate) fn numpy_name(scalar: ScalarType) -> &'static str {
    scalar.name()
}
