//! Elements of NumPy arrays: byte order, order of the axes, and conversion to columns.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, FixedSizeListArray, make_array};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use feedline_data::schema::{ColumnType, ScalarType};

use super::header::NpyHeader;
use crate::columns::arrow_type;

/// Converts the bytes of rows to a column. The elements of each row are in C order.
pub(crate) fn column(header: &NpyHeader, bytes: Buffer) -> Result<ArrayRef, String> {
    let rows = bytes.len() / header.row_bytes as usize;
    let bytes = if header.is_big_endian { swapped(&bytes, header.scalar.width_bytes()) } else { bytes };
    let elements = |scalar: ScalarType, count: usize| -> Result<ArrayRef, String> {
        if scalar == ScalarType::Bool {
            return Ok(Arc::new(bytes.iter().map(|&byte| Some(byte != 0)).collect::<BooleanArray>()));
        }
        let data_type = arrow_type(&ColumnType::Scalar(scalar));
        let data = ArrayData::builder(data_type).len(count).add_buffer(bytes.clone()).align_buffers(true);
        data.build().map(make_array).map_err(|error| error.to_string())
    };
    match (&header.column_type, arrow_type(&header.column_type)) {
        (ColumnType::Tensor { scalar, .. }, DataType::FixedSizeList(item, length)) => {
            let values = elements(*scalar, rows * length as usize)?;
            let list = FixedSizeListArray::try_new(item, length, values, None);
            list.map(|list| Arc::new(list) as ArrayRef).map_err(|error| error.to_string())
        }
        (ColumnType::Scalar(scalar), _) => elements(*scalar, rows),
        (other, _) => Err(format!("unsupported NumPy dtype {other}")),
    }
}

fn swapped(bytes: &[u8], width: usize) -> Buffer {
    let mut bytes = bytes.to_vec();
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    Buffer::from_vec(bytes)
}

/// Converts rows from Fortran order to C order. `part(n)` returns the element of these rows with the index `n` in Fortran
/// order, for all rows.
pub(crate) fn in_c_order<'a>(header: &NpyHeader, rows: usize, part: impl Fn(usize) -> &'a [u8]) -> Vec<u8> {
    let width = header.scalar.width_bytes();
    let row_bytes = header.row_bytes as usize;
    let shape = &header.row_shape;
    let mut whole = vec![0; rows * row_bytes];
    // The index of the element in each axis, in C order.
    let mut index = vec![0_u32; shape.len()];
    for at in (0..row_bytes).step_by(width) {
        let fortran = index
            .iter()
            .zip(shape)
            .rev()
            .fold(0, |sum, (&index, &extent)| sum * extent as usize + index as usize);
        let elements = part(fortran).chunks_exact(width);
        for (row, element) in elements.take(rows).enumerate() {
            let start = row * row_bytes + at;
            whole[start..start + width].copy_from_slice(element);
        }
        for (index, &extent) in index.iter_mut().zip(shape).rev() {
            *index += 1;
            if *index < extent {
                break;
            }
            *index = 0;
        }
    }
    whole
}
