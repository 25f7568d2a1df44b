//! Reads the results of a function from the shared region into arrays of the declared types. Validates all offsets, lengths
//! and text, because the process that wrote them runs user code.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, ListArray, make_array};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_operators::{Chunk, Column, FunctionCall, OutputBuffers, Tensor, arrow_scalar};
use serde_json::Value;

use crate::process::FunctionProcess;
use crate::region::SharedRegion;

/// An output column, filled by calls in order of rows.
pub(crate) enum OutputColumn {
    Tensor(Tensor),
    Arrays { pieces: Vec<(usize, ArrayRef)>, column_type: ColumnType },
}

/// Creates an empty output column for a number of rows.
pub(crate) fn new_output_column(
    call: &FunctionCall,
    (name, column_type): (&str, ColumnType),
    rows: usize,
    buffers: &mut OutputBuffers,
) -> Result<OutputColumn, String> {
    let ColumnType::Tensor { scalar, shape } = &column_type else {
        return Ok(OutputColumn::Arrays { pieces: Vec::new(), column_type });
    };
    let tensor = buffers.tensor(call.index, name, (*scalar, shape), rows);
    let mut tensor = tensor.map_err(|error| error.to_string())?;
    // Failed rows contain zeros.
    tensor.data.fill(0);
    Ok(OutputColumn::Tensor(tensor))
}

/// Reads the results of a call for a range of rows of one column.
pub(crate) fn read_output(
    process: &FunctionProcess,
    location: &Value,
    column: &mut OutputColumn,
    range: Range<usize>,
) -> Result<(), String> {
    match column {
        OutputColumn::Tensor(tensor) => {
            let bytes = tensor.row_bytes();
            read_tensor(&process.output, location, &mut tensor.data[range.start * bytes..range.end * bytes])
        }
        OutputColumn::Arrays { pieces, column_type } => {
            pieces.push((range.start, read_array(&process.output, column_type, location, range.len())?));
            Ok(())
        }
    }
}

/// Sets the output columns of the chunk, or removes the rows for which a filter returned false.
pub(crate) fn store_outputs(
    call: &FunctionCall,
    chunk: &mut Chunk,
    outputs: Vec<OutputColumn>,
) -> Result<(), String> {
    let rows = chunk.rows();
    let mut columns = Vec::with_capacity(outputs.len());
    for column in outputs {
        columns.push(match column {
            OutputColumn::Tensor(tensor) => Column::Tensor(tensor),
            OutputColumn::Arrays { pieces, column_type } => {
                Column::Arrow(join_pieces(pieces, &column_type, rows)?)
            }
        });
    }
    if call.is_filter {
        let failed = chunk.failed_rows();
        let Some(Column::Arrow(kept)) = columns.first() else { return Ok(()) };
        let kept = kept.as_boolean();
        let keep: Vec<bool> = (0..rows).map(|row| kept.value(row) || failed.contains(row)).collect();
        chunk.retain(&keep);
        return Ok(());
    }
    let names: Vec<String> = call.outputs().map(|(name, _)| name.to_owned()).collect();
    for (name, column) in names.iter().zip(columns) {
        chunk.set(name, column);
    }
    Ok(())
}

/// Concatenates the results of calls, with placeholders for failed rows.
fn join_pieces(
    pieces: Vec<(usize, ArrayRef)>,
    column_type: &ColumnType,
    rows: usize,
) -> Result<ArrayRef, String> {
    if let [(0, only)] = pieces.as_slice()
        && only.len() == rows
    {
        return Ok(Arc::clone(only));
    }
    let nothing = placeholder(column_type)?;
    let mut parts: Vec<&dyn Array> = Vec::new();
    let mut next = 0;
    for (start, piece) in &pieces {
        parts.extend((next..*start).map(|_| nothing.as_ref()));
        parts.push(piece.as_ref());
        next = start + piece.len();
    }
    parts.extend((next..rows).map(|_| nothing.as_ref()));
    if parts.is_empty() {
        return Ok(nothing.slice(0, 0));
    }
    arrow::compute::concat(&parts).map_err(|error| format!("cannot concatenate the results: {error}"))
}

/// Reads the rows that one call returned for a column that is not a tensor.
fn read_array(
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

/// Reads the rows of a tensor column that one call returned into their part of the tensor.
fn read_tensor(region: &SharedRegion, location: &Value, into: &mut [u8]) -> Result<(), String> {
    let at = read_number(location, "at")?;
    region.read(at, into).map_err(|error| format!("cannot read the results: {error}"))
}

/// Returns the value of a failed row as an array of one row: zero, or empty.
fn placeholder(column_type: &ColumnType) -> Result<ArrayRef, String> {
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
    location[name].as_u64().ok_or_else(|| {
        format!("the function process's response has no field `{name}`; please report this error")
    })
}

fn read_bytes(region: &SharedRegion, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
    let size = region.size().map_err(|error| format!("cannot read the results: {error}"))?;
    // Validate the size before allocating a buffer.
    if at.checked_add(bytes as u64).is_none_or(|end| end > size) {
        return Err(
            "the function process's response refers to data outside its memory region; please report this error"
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
        return Err(
            "the function process's response contains invalid lengths; please report this error".to_owned()
        );
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

/// Returns NumPy's name of an element type, which is also the name in pipelines.
pub(crate) fn numpy_name(scalar: ScalarType) -> &'static str {
    scalar.name()
}
