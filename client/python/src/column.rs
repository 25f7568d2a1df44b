//! Converts columns to NumPy arrays. The arrays are views of the receive buffer if NumPy supports the memory layout of the elements.

use arrow::array::{Array, ArrayData, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, ListArray};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};
use feedline_proto::batch::BOOL_TENSOR_KEY;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use crate::errors::FeedlineError;

/// Metadata key of the shape in the field of a tensor column.
const SHAPE_KEY: &str = "ARROW:extension:metadata";

/// The memory of a column, which implements NumPy's array interface. It is released when no array references it.
#[pyclass(frozen, module = "feedline._native")]
pub(crate) struct ColumnBuffer {
    /// Keeps the allocation that contains the elements.
    _owner: Buffer,
    address: usize,
    typestr: &'static str,
    shape: Vec<usize>,
}

#[pymethods]
impl ColumnBuffer {
    /// NumPy's array interface, version 3. Read-only, because other processes and later batches may use the memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("data", (self.address, true))?;
        interface.set_item("typestr", self.typestr)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        Ok(interface)
    }
}

/// The NumPy functions that conversions call. They are looked up only once.
struct NumpyFunctions {
    asarray: Py<PyAny>,
    array: Py<PyAny>,
    empty: Py<PyAny>,
    masked: Py<PyAny>,
    object: Py<PyAny>,
}

impl NumpyFunctions {
    fn get(py: Python<'_>) -> PyResult<&Self> {
        static NUMPY: PyOnceLock<NumpyFunctions> = PyOnceLock::new();
        NUMPY.get_or_try_init(py, || {
            let numpy = py.import("numpy")?;
            Ok(Self {
                asarray: numpy.getattr("asarray")?.unbind(),
                array: numpy.getattr("array")?.unbind(),
                empty: numpy.getattr("empty")?.unbind(),
                masked: numpy.getattr("ma")?.getattr("MaskedArray")?.unbind(),
                object: numpy.getattr("object_")?.unbind(),
            })
        })
    }
}

/// Converts a column to a NumPy array. The first axis is rows, and the other axes are the shape of a tensor. Scalars with missing
/// values, and lists of numbers with missing values, become masked arrays. Text, bytes and lists become arrays of objects, in which
/// lists of numbers are views.
pub(crate) fn to_numpy<'py>(
    py: Python<'py>,
    field: &Field,
    column: &ArrayRef,
) -> PyResult<Bound<'py, PyAny>> {
    match column.data_type() {
        DataType::FixedSizeList(_, _) => tensor(py, field, column.as_fixed_size_list()),
        DataType::Boolean => scalars(py, column, booleans(column.as_boolean()), "|b1"),
        DataType::List(_) => lists(py, column.as_list()),
        DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary => {
            objects(py, column)
        }
        other => {
            let typestr = numpy_typestr(other).ok_or_else(|| unsupported(field.name(), other))?;
            scalars(py, column, values(column), typestr)
        }
    }
}

/// Converts a column of lists to an array of shape `[rows, length]`, which is a view if the elements are numbers. Uses [`to_numpy`] if
/// the lengths differ.
pub(crate) fn to_dense<'py>(
    py: Python<'py>,
    field: &Field,
    column: &ArrayRef,
) -> PyResult<Bound<'py, PyAny>> {
    let Some(lists) = column.as_list_opt::<i32>().filter(|lists| lists.null_count() == 0) else {
        return to_numpy(py, field, column);
    };
    let offsets = lists.offsets();
    let length = offsets.windows(2).next().map_or(0, |pair| pair[1] - pair[0]);
    let elements = lists.values();
    let is_dense = elements.null_count() == 0 && offsets.windows(2).all(|pair| pair[1] - pair[0] == length);
    let used = || elements.slice(offsets[0] as usize, lists.len() * length as usize);
    let shape = vec![lists.len(), length as usize];
    match (elements.data_type(), numpy_typestr(elements.data_type())) {
        (DataType::Boolean, _) if is_dense => view(py, booleans(used().as_boolean()), "|b1", shape),
        (_, Some(typestr)) if is_dense => view(py, values(&used()), typestr, shape),
        _ => to_numpy(py, field, column),
    }
}

/// Converts a column of a sampled graph, which has one list or none, to an array of the values of the list.
pub(crate) fn to_list_values<'py>(
    py: Python<'py>,
    field: &Field,
    column: &ArrayRef,
) -> PyResult<Bound<'py, PyAny>> {
    let (DataType::List(item), Some(lists)) = (column.data_type(), column.as_list_opt::<i32>()) else {
        return to_numpy(py, field, column);
    };
    let offsets = lists.offsets();
    let (first, end) = (offsets[0] as usize, offsets[lists.len()] as usize);
    let item = item.as_ref().clone().with_name(field.name());
    to_numpy(py, &item, &lists.values().slice(first, end - first))
}

/// Returns the memory from the first to the last buffer of a batch as an array of bytes. `None` if the buffers are in several
/// allocations, so that no single copy moves them.
pub(crate) fn to_slab<'py>(py: Python<'py>, columns: &[ArrayRef]) -> PyResult<Option<Bound<'py, PyAny>>> {
    let mut buffers = Vec::new();
    for column in columns {
        add_buffers(&column.to_data(), &mut buffers);
    }
    let Some(first) = buffers.first() else { return Ok(None) };
    if buffers.iter().any(|buffer| buffer.data_ptr() != first.data_ptr()) {
        return Ok(None);
    }
    let starts = buffers.iter().map(|buffer| buffer.as_ptr() as usize);
    let ends = buffers.iter().map(|buffer| buffer.as_ptr() as usize + buffer.len());
    let (Some(start), Some(end)) = (starts.min(), ends.max()) else { return Ok(None) };
    let memory =
        ColumnBuffer { _owner: first.clone(), address: start, typestr: "|u1", shape: vec![end - start] };
    as_array(py, memory).map(Some)
}

/// Adds the buffers of an array and its children that are not empty.
fn add_buffers(data: &ArrayData, buffers: &mut Vec<Buffer>) {
    let validity = data.nulls().map(NullBuffer::buffer);
    let own = data.buffers().iter().chain(validity);
    buffers.extend(own.filter(|buffer| !buffer.is_empty()).cloned());
    for child in data.child_data() {
        add_buffers(child, buffers);
    }
}

fn unsupported(name: &str, data_type: &DataType) -> PyErr {
    FeedlineError::new_err(format!(
        "column `{name}` has type {data_type}, which NumPy does not support; use job.arrow()"
    ))
}

/// Returns NumPy's type string of an element type. `None` for unsupported types.
fn numpy_typestr(data_type: &DataType) -> Option<&'static str> {
    Some(match data_type {
        DataType::Int8 => "|i1",
        DataType::Int16 => "<i2",
        DataType::Int32 => "<i4",
        DataType::Int64 => "<i8",
        DataType::UInt8 => "|u1",
        DataType::UInt16 => "<u2",
        DataType::UInt32 => "<u4",
        DataType::UInt64 => "<u8",
        DataType::Float16 => "<f2",
        DataType::Float32 => "<f4",
        DataType::Float64 => "<f8",
        _ => return None,
    })
}

/// Returns the elements of a column of numbers.
fn values(column: &ArrayRef) -> Buffer {
    let data = column.to_data();
    let width = data.data_type().primitive_width().unwrap_or(1);
    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
}

/// Returns booleans with one byte each.
fn booleans(column: &BooleanArray) -> Buffer {
    Buffer::from_vec(column.values().iter().map(u8::from).collect::<Vec<u8>>())
}

fn view<'py>(
    py: Python<'py>,
    buffer: Buffer,
    typestr: &'static str,
    shape: Vec<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let address = buffer.as_ptr() as usize;
    as_array(py, ColumnBuffer { _owner: buffer, address, typestr, shape })
}

fn as_array(py: Python<'_>, memory: ColumnBuffer) -> PyResult<Bound<'_, PyAny>> {
    NumpyFunctions::get(py)?.asarray.bind(py).call1((Bound::new(py, memory)?,))
}

fn scalars<'py>(
    py: Python<'py>,
    column: &ArrayRef,
    values: Buffer,
    typestr: &'static str,
) -> PyResult<Bound<'py, PyAny>> {
    masked_view(py, (values, typestr), vec![column.len()], column.nulls())
}

/// Returns a view of the elements. If `nulls` contains nulls, the view is the data of a masked array.
fn masked_view<'py>(
    py: Python<'py>,
    (values, typestr): (Buffer, &'static str),
    shape: Vec<usize>,
    nulls: Option<&NullBuffer>,
) -> PyResult<Bound<'py, PyAny>> {
    let data = view(py, values, typestr, shape.clone())?;
    match nulls.filter(|nulls| nulls.null_count() > 0) {
        None => Ok(data),
        Some(nulls) => {
            let is_missing: Vec<u8> = nulls.iter().map(|valid| u8::from(!valid)).collect();
            let mask = view(py, Buffer::from_vec(is_missing), "|b1", shape)?;
            let options = PyDict::new(py);
            options.set_item("mask", mask)?;
            NumpyFunctions::get(py)?.masked.bind(py).call((data,), Some(&options))
        }
    }
}

/// Converts tensors. Tensors in lists may be null and may have null elements, which the mask contains.
fn tensor<'py>(py: Python<'py>, field: &Field, column: &FixedSizeListArray) -> PyResult<Bound<'py, PyAny>> {
    let elements = column.values();
    let is_bool = field.metadata().contains_key(BOOL_TENSOR_KEY);
    let values = match elements.data_type() {
        DataType::Boolean => (booleans(elements.as_boolean()), "|b1"),
        _ if is_bool => (values(elements), "|b1"),
        other => (values(elements), numpy_typestr(other).ok_or_else(|| unsupported(field.name(), other))?),
    };
    let length = column.value_length() as usize;
    let mut shape = vec![column.len()];
    shape.extend(shape_of(field).unwrap_or_else(|| vec![length]));
    let row_nulls = column.nulls().map(|nulls| nulls.expand(length));
    let nulls = NullBuffer::union(row_nulls.as_ref(), elements.nulls());
    masked_view(py, values, shape, nulls.as_ref())
}

/// The shape of one row of a tensor, from the metadata of its field.
fn shape_of(field: &Field) -> Option<Vec<usize>> {
    let metadata: serde_json::Value = serde_json::from_str(field.metadata().get(SHAPE_KEY)?).ok()?;
    let extents = metadata.get("shape")?.as_array()?;
    extents.iter().map(|extent| Some(extent.as_u64()? as usize)).collect()
}

/// Converts lists to an array of objects, with one array per row. The arrays are views if the elements are numbers.
fn lists<'py>(py: Python<'py>, column: &ListArray) -> PyResult<Bound<'py, PyAny>> {
    let numpy = NumpyFunctions::get(py)?;
    let rows = numpy.empty.bind(py).call1((column.len(), &numpy.object))?;
    let DataType::List(item) = column.data_type() else { return Ok(rows) };
    for row in 0..column.len() {
        if column.is_valid(row) {
            rows.set_item(row, to_numpy(py, item, &column.value(row))?)?;
        }
    }
    Ok(rows)
}

fn objects<'py>(py: Python<'py>, column: &ArrayRef) -> PyResult<Bound<'py, PyAny>> {
    let list = PyList::empty(py);
    let to_bytes = |value: Option<&[u8]>| value.map(|bytes| PyBytes::new(py, bytes));
    match column.data_type() {
        DataType::Utf8 => column.as_string::<i32>().iter().try_for_each(|text| list.append(text))?,
        DataType::LargeUtf8 => column.as_string::<i64>().iter().try_for_each(|text| list.append(text))?,
        DataType::Binary => {
            column.as_binary::<i32>().iter().try_for_each(|value| list.append(to_bytes(value)))?
        }
        _ => column.as_binary::<i64>().iter().try_for_each(|value| list.append(to_bytes(value)))?,
    }
    let numpy = NumpyFunctions::get(py)?;
    numpy.array.bind(py).call1((list, &numpy.object))
}
