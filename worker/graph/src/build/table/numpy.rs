//! NumPy arrays as tables: a list of numbers, pairs of numbers along either axis, or rows of numbers.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, BooleanArray, UInt64Array, make_array};
use arrow::buffer::Buffer;
use feedline_data::schema::{ColumnType, ScalarType};
use feedline_sources::{MAX_HEADER_END, NpyArrayHeader, arrow_field};

use super::column::ColumnChoice;
use super::row_chunk::RowChunk;
use crate::error::GraphError;

/// Number of rows of a chunk.
const CHUNK_ROWS: usize = 1 << 16;
/// Number of rows of a part.
const PART_ROWS: u64 = 1 << 22;

/// The meaning of the axes of an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::build) enum NumpyAxes {
    /// The first axis is the row. The other axes belong to one column.
    Rows,
    /// One axis has two elements: the columns. The other axis is the row.
    Pairs,
}

/// A NumPy array, open for reading.
#[derive(Debug)]
pub(super) struct NumpyTable {
    file: File,
    path: PathBuf,
    name: Arc<str>,
    header: NpyArrayHeader,
    rows: u64,
    columns: usize,
    /// The distance between consecutive rows and columns, in elements.
    row_stride: u64,
    column_stride: u64,
}

impl NumpyTable {
    pub(super) fn open(paths: &[PathBuf], axes: NumpyAxes) -> Result<Self, GraphError> {
        let [path] = paths else {
            let shown = paths.first().map(|path| path.display().to_string()).unwrap_or_default();
            return Err(GraphError::file(shown, "several .npy files match: concatenate them into one array"));
        };
        let name: Arc<str> = path.display().to_string().into();
        let invalid = |reason: String| GraphError::file(name.as_ref(), reason);
        let (file, header) = open_array(path)?;
        let (rows, columns, row_stride, column_stride) = match (axes, header.shape.as_slice()) {
            (NumpyAxes::Rows, [rows, rest @ ..]) if rest.iter().all(|&extent| extent == 1) => {
                (*rows, 1, 1, 0)
            }
            (NumpyAxes::Pairs, [2, rows]) if header.is_fortran => (*rows, 2, 2, 1),
            (NumpyAxes::Pairs, [2, rows]) => (*rows, 2, 1, *rows),
            (NumpyAxes::Pairs, [rows, 2]) if header.is_fortran => (*rows, 2, 1, *rows),
            (NumpyAxes::Pairs, [rows, 2]) => (*rows, 2, 2, 1),
            (NumpyAxes::Rows, shape) => {
                return Err(invalid(format!("the array has the shape {shape:?}: expected one axis")));
            }
            (NumpyAxes::Pairs, shape) => {
                return Err(invalid(format!("the array has the shape {shape:?}: expected [2, N] or [N, 2]")));
            }
        };
        let path = path.clone();
        Ok(Self { file, path, header, rows, columns, row_stride, column_stride, name })
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    pub(super) fn parts(&self) -> usize {
        self.rows.div_ceil(PART_ROWS) as usize
    }

    pub(super) fn column_names(&self) -> Vec<String> {
        (0..self.columns).map(|index| index.to_string()).collect()
    }

    pub(super) fn read_part(
        &self,
        part: usize,
        columns: &[ColumnChoice],
        on_chunk: &mut dyn FnMut(&RowChunk) -> Result<bool, GraphError>,
    ) -> Result<(), GraphError> {
        let mut first_row = part as u64 * PART_ROWS;
        let end = self.rows.min(first_row + PART_ROWS);
        while first_row < end {
            let rows = (end - first_row).min(CHUNK_ROWS as u64) as usize;
            let columns = columns.iter().map(|column| self.column(column, first_row, rows));
            let columns = columns.collect::<Result<Vec<_>, _>>()?;
            let file = Arc::clone(&self.name);
            let chunk = RowChunk { first_row, rows, columns, file, file_row: first_row };
            if !on_chunk(&chunk)? {
                break;
            }
            first_row += rows as u64;
        }
        Ok(())
    }

    /// Reads rows of a column. There must be at least one.
    pub(super) fn column(
        &self,
        column: &ColumnChoice,
        first_row: u64,
        rows: usize,
    ) -> Result<ArrayRef, GraphError> {
        let ColumnChoice::Index(index) = column else {
            return Ok(Arc::new(UInt64Array::from_iter_values(first_row..first_row + rows as u64)));
        };
        let width = self.header.scalar.width_bytes();
        let first = first_row * self.row_stride + *index as u64 * self.column_stride;
        let span = rows.saturating_sub(1) * self.row_stride as usize + 1;
        let mut bytes = vec![0; span * width];
        self.file
            .read_exact_at(&mut bytes, self.header.data_start + first * width as u64)
            .map_err(|error| GraphError::io("read", &self.path, &error))?;
        if self.row_stride > 1 {
            let step = self.row_stride as usize * width;
            bytes = bytes.chunks(step).flat_map(|chunk| &chunk[..width]).copied().collect();
        }
        number_array(&self.header, bytes).map_err(|reason| GraphError::file(self.name.as_ref(), reason))
    }
}

/// Opens an array, and compares the size of the file with its shape.
pub(in crate::build) fn open_array(path: &Path) -> Result<(File, NpyArrayHeader), GraphError> {
    let failed = |error: std::io::Error| GraphError::io("read", path, &error);
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| GraphError::io("open", path, &error))?;
    let size = file.metadata().map_err(failed)?.len();
    let mut start = Vec::new();
    (&file).take(MAX_HEADER_END).read_to_end(&mut start).map_err(failed)?;
    if !start.starts_with(b"\x93NUMPY") {
        return Err(GraphError::corrupt(name, 0, "the file is not a NumPy file: write it with `numpy.save`"));
    }
    let header = NpyArrayHeader::parse(&start).map_err(|error| GraphError::header(name.as_str(), error))?;
    let elements = header.shape.iter().try_fold(1_u64, |product, &extent| product.checked_mul(extent));
    let bytes = elements.and_then(|elements| elements.checked_mul(header.scalar.width_bytes() as u64));
    if bytes.and_then(|bytes| bytes.checked_add(header.data_start)) != Some(size) {
        let reason = format!(
            "the file has {size} bytes, which does not match an array of `{}` with the shape {:?}: write the file again",
            header.descr, header.shape
        );
        return Err(GraphError::corrupt(name, size, reason));
    }
    Ok((file, header))
}

/// Converts the bytes of consecutive numbers to an Arrow array.
pub(in crate::build) fn number_array(
    header: &NpyArrayHeader,
    mut bytes: Vec<u8>,
) -> Result<ArrayRef, String> {
    let width = header.scalar.width_bytes();
    if header.is_big_endian {
        bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
    }
    if header.scalar == ScalarType::Bool {
        return Ok(Arc::new(bytes.iter().map(|&byte| Some(byte != 0)).collect::<BooleanArray>()));
    }
    let data_type = arrow_field("", &ColumnType::Scalar(header.scalar)).data_type().clone();
    let count = bytes.len() / width;
    let data =
        ArrayData::builder(data_type).len(count).add_buffer(Buffer::from_vec(bytes)).align_buffers(true);
    data.build().map(make_array).map_err(|error| error.to_string())
}
