//! Features of nodes and edges: read from a NumPy array or a column, converted, and stored in the order of nodes or edges.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, UInt64Type};
use feedline_data::graph::description::GraphFeature;
use feedline_data::schema::ScalarType;
use feedline_sources::NpyArrayHeader;

use super::convert::{check_conversion, scalar_type, to_bytes};
use super::position_file::EdgePositionFile;
use super::run::BuildSettings;
use super::scatter::RowScatter;
use super::spec::FeatureSpec;
use super::table::{ColumnChoice, NumpyAxes, RowChunk, Table, number_array, open_array};
use crate::error::GraphError;
use crate::hashed_file::ArrayWriter;

/// Size of the reads of an array.
const READ_BYTES: u64 = 4 << 20;
/// Maximum size of a row.
const MAX_ROW_BYTES: u64 = 1 << 30;

/// A feature in the input.
#[derive(Debug)]
pub(super) struct FeatureInput {
    name: String,
    /// The path for messages.
    path: String,
    rows: FeatureRows,
    from: ScalarType,
    dtype: ScalarType,
    shape: Vec<u32>,
    count: u64,
}

#[derive(Debug)]
enum FeatureRows {
    Numpy { file: File, path: PathBuf, header: NpyArrayHeader },
    Column { table: Table, column: ColumnChoice },
}

impl FeatureInput {
    /// Opens a feature, and finds its type and shape.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, or does not contain rows of numbers.
    pub(super) fn open(name: &str, spec: &FeatureSpec) -> Result<Self, GraphError> {
        let path = spec.from.path.clone();
        let is_numpy = path.to_ascii_lowercase().ends_with(".npy");
        let (rows, from, shape, count) =
            if is_numpy { open_numpy(&path)? } else { open_column(&path, spec.from.column.as_deref())? };
        let dtype = spec.dtype.unwrap_or(from);
        check_conversion(from, dtype).map_err(|reason| GraphError::file(&path, reason))?;
        Ok(Self { name: name.to_owned(), path, rows, from, dtype, shape, count })
    }

    /// The number of rows.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// An error about the number of rows.
    pub(super) fn wrong_count(&self, expected: u64, what: &str) -> GraphError {
        GraphError::file(
            &self.path,
            format!(
                "the feature `{}` has {} rows, but there are {expected} {what}: save one row for each",
                self.name, self.count
            ),
        )
    }

    fn row_elements(&self) -> usize {
        self.shape.iter().map(|&extent| extent as usize).product()
    }

    fn row_bytes(&self) -> usize {
        self.row_elements() * self.dtype.width_bytes()
    }

    /// Passes all rows in order, many at a time, in the type of the feature.
    fn scan(
        &self,
        settings: &BuildSettings,
        on_rows: &mut dyn FnMut(&[u8]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        match &self.rows {
            FeatureRows::Numpy { file, path, header } => {
                self.scan_numpy(file, path, header, settings, on_rows)
            }
            FeatureRows::Column { table, column } => {
                table.scan_in_order(settings, std::slice::from_ref(column), &mut |chunk| {
                    on_rows(&self.column_bytes(chunk)?)
                })
            }
        }
    }

    fn scan_numpy(
        &self,
        file: &File,
        path: &Path,
        header: &NpyArrayHeader,
        settings: &BuildSettings,
        on_rows: &mut dyn FnMut(&[u8]) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let row_bytes = (self.row_elements() * self.from.width_bytes()) as u64;
        let chunk_rows = (READ_BYTES / row_bytes).max(1);
        let mut first = 0;
        while first < self.count {
            settings.check_stop()?;
            let rows = (self.count - first).min(chunk_rows);
            let mut bytes = vec![0; (rows * row_bytes) as usize];
            file.read_exact_at(&mut bytes, header.data_start + first * row_bytes)
                .map_err(|error| GraphError::io("read", path, &error))?;
            if self.from != self.dtype || header.is_big_endian {
                let numbers = number_array(header, bytes);
                let converted = numbers.and_then(|numbers| to_bytes(&numbers, self.dtype));
                bytes = converted.map_err(|reason| GraphError::file(&self.path, reason))?;
            }
            on_rows(&bytes)?;
            first += rows;
        }
        Ok(())
    }

    fn column_bytes(&self, chunk: &RowChunk) -> Result<Vec<u8>, GraphError> {
        let array = &chunk.columns[0];
        if array.null_count() > 0 {
            let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or(0);
            return Err(chunk.invalid_row(row, "the feature is missing"));
        }
        let width = self.row_elements();
        let (numbers, lengths) = flat_numbers(array);
        if let Some(row) = lengths.iter().position(|&length| length != width) {
            let reason = format!("the list has {} numbers, but other rows have {width}", lengths[row]);
            return Err(chunk.invalid_row(row, reason));
        }
        to_bytes(&numbers, self.dtype).map_err(|reason| chunk.invalid_file(reason))
    }

    /// Stores the rows in the order of nodes. `ids` are the stored ids of nodes; `None` if nodes are stored in the user's order.
    ///
    /// # Errors
    /// Returns an error if the input is invalid, or a file cannot be written.
    pub(super) fn store_nodes(
        &self,
        node_type: &str,
        ids: Option<&[u32]>,
        (folder, spill): (&Path, &Path),
        settings: &BuildSettings,
    ) -> Result<GraphFeature, GraphError> {
        let path = format!("nodes/{node_type}.{}.npy", self.name);
        let mut writer = ArrayWriter::create(folder, path, self.dtype, &self.shape)?;
        let Some(ids) = ids else {
            self.scan(settings, &mut |rows| writer.write(rows))?;
            return self.finish(writer);
        };
        let mut scatter = self.scatter(self.count, spill, settings)?;
        let mut ids = ids.iter();
        self.scan(settings, &mut |rows| {
            for (row, &id) in rows.chunks_exact(self.row_bytes()).zip(&mut ids) {
                scatter.write(u64::from(id), row)?;
            }
            Ok(())
        })?;
        scatter.finish(&mut |rows| writer.write(rows))?;
        self.finish(writer)
    }

    /// Stores the rows in the order of edges. `edges` is the number of edges, and `edge_ids` the path of a NumPy file with the row of
    /// each edge.
    ///
    /// # Errors
    /// Returns an error if the input is invalid, or a file cannot be written.
    pub(super) fn store_edges(
        &self,
        key: &str,
        (edges, edge_ids): (u64, &Path),
        (folder, spill): (&Path, &Path),
        settings: &BuildSettings,
    ) -> Result<GraphFeature, GraphError> {
        let path = format!("edges/{key}.{}.npy", self.name);
        let mut writer = ArrayWriter::create(folder, path, self.dtype, &self.shape)?;
        let positions_folder = spill.join("positions");
        std::fs::create_dir_all(&positions_folder)
            .map_err(|error| GraphError::io("create", &positions_folder, &error))?;
        let memory_bytes = settings.memory_bytes / 2;
        // The position of the edge of each row, plus 1; 0 for rows that are not edges.
        let mut positions =
            RowScatter::create(&positions_folder, self.count, size_of::<u64>(), memory_bytes / 2)?;
        let ids = Table::open(&[edge_ids.display().to_string()], NumpyAxes::Rows)?;
        let columns = ids.choose(None, 1)?;
        ids.scan_in_order(settings, &columns, &mut |chunk| {
            let rows = chunk.columns[0].as_primitive::<UInt64Type>();
            for (position, &row) in (chunk.first_row + 1..).zip(rows.values().iter()) {
                if row >= self.count {
                    return Err(self.wrong_count(row + 1, "edges or more"));
                }
                positions.write(row, &position.to_le_bytes())?;
            }
            Ok(())
        })?;
        let position_path = spill.join("positions.u64");
        let mut position_file = EdgePositionFile::create(&position_path)?;
        positions.finish(&mut |rows| position_file.write(rows))?;
        let mut scatter = self.scatter(edges, spill, settings)?;
        self.scan(settings, &mut |rows| {
            let rows = rows.chunks_exact(self.row_bytes());
            for (row, position) in rows.clone().zip(position_file.next(rows.len())?) {
                if let Some(index) = position.checked_sub(1) {
                    scatter.write(index, row)?;
                }
            }
            Ok(())
        })?;
        scatter.finish(&mut |rows| writer.write(rows))?;
        position_file.remove()?;
        self.finish(writer)
    }

    fn scatter(&self, rows: u64, spill: &Path, settings: &BuildSettings) -> Result<RowScatter, GraphError> {
        RowScatter::create(spill, rows, self.row_bytes(), settings.memory_bytes / 2)
    }

    fn finish(&self, writer: ArrayWriter) -> Result<GraphFeature, GraphError> {
        let file = writer.finish()?;
        Ok(GraphFeature { name: self.name.clone(), dtype: self.dtype, shape: self.shape.clone(), file })
    }
}

type OpenedRows = (FeatureRows, ScalarType, Vec<u32>, u64);

fn open_numpy(path: &str) -> Result<OpenedRows, GraphError> {
    let full_path = PathBuf::from(path);
    let (file, header) = open_array(&full_path)?;
    let invalid = |reason: String| GraphError::file(path, reason);
    let Some((&count, extents)) = header.shape.split_first() else {
        return Err(invalid("the array has no rows: save an array with at least one axis".to_owned()));
    };
    if header.is_fortran && extents.iter().any(|&extent| extent != 1) {
        return Err(invalid("the array is in Fortran order: save `numpy.ascontiguousarray(x)`".to_owned()));
    }
    let shape: Result<Vec<u32>, _> = extents.iter().map(|&extent| u32::try_from(extent)).collect();
    let shape = shape.ok().filter(|shape| {
        let bytes = shape.iter().try_fold(header.scalar.width_bytes() as u64, |product, &extent| {
            product.checked_mul(u64::from(extent))
        });
        bytes.is_some_and(|bytes| (1..=MAX_ROW_BYTES).contains(&bytes))
    });
    let Some(shape) = shape else {
        return Err(invalid(format!(
            "the rows have the shape {extents:?}: expected from 1 byte to 1 GiB per row"
        )));
    };
    let from = header.scalar;
    Ok((FeatureRows::Numpy { file, path: full_path, header }, from, shape, count))
}

fn open_column(path: &str, column: Option<&str>) -> Result<OpenedRows, GraphError> {
    let table = Table::open(&[path.to_owned()], NumpyAxes::Rows)?;
    let choice = column.map(ColumnChoice::parse);
    let columns = table.choose(choice.as_ref().map(std::slice::from_ref), 1)?;
    let count = table.rows().ok_or_else(|| {
        GraphError::file(path, "a feature consists of all columns of a CSV file: do not select a column")
    })?;
    // The first row determines the type and the length of lists.
    let mut found = None;
    if table.parts() > 0 {
        table.read_part(0, &columns, &mut |chunk| {
            let (numbers, lengths) = flat_numbers(&chunk.columns[0]);
            let scalar = scalar_type(numbers.data_type()).ok_or_else(|| {
                chunk.invalid_file(format!(
                    "the type {} is not a number or a list of numbers",
                    chunk.columns[0].data_type()
                ))
            })?;
            let is_list = is_list(chunk.columns[0].data_type());
            let length = lengths.first().copied().unwrap_or(0);
            found = Some((scalar, is_list.then_some(length)));
            Ok(false)
        })?;
    }
    let Some((scalar, length)) = found else {
        return Err(GraphError::file(path, "the file has no rows: a feature needs at least one"));
    };
    let shape = match length.map(u32::try_from) {
        None => Vec::new(),
        Some(Ok(length @ 1..)) => vec![length],
        Some(_) => {
            return Err(GraphError::file(path, "the first row is an empty list: save lists of numbers"));
        }
    };
    let column = columns.into_iter().next().unwrap_or(ColumnChoice::Row);
    Ok((FeatureRows::Column { table, column }, scalar, shape, count))
}

fn is_list(data_type: &DataType) -> bool {
    matches!(data_type, DataType::FixedSizeList(..) | DataType::List(_) | DataType::LargeList(_))
}

/// Returns the numbers of a column of numbers or lists, and the number of numbers of each row. The array itself if it contains numbers.
fn flat_numbers(array: &ArrayRef) -> (ArrayRef, Vec<usize>) {
    match array.data_type() {
        DataType::FixedSizeList(..) => {
            let lists = array.as_fixed_size_list();
            let length = lists.value_length() as usize;
            let values = lists.values().slice(lists.value_offset_at(0), lists.len() * length);
            (values, vec![length; lists.len()])
        }
        DataType::List(_) => {
            let lists = array.as_list::<i32>();
            let offsets = lists.value_offsets();
            let (start, end) = (offsets[0] as usize, offsets[lists.len()] as usize);
            let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
            (lists.values().slice(start, end - start), lengths)
        }
        DataType::LargeList(_) => {
            let lists = array.as_list::<i64>();
            let offsets = lists.value_offsets();
            let (start, end) = (offsets[0] as usize, offsets[lists.len()] as usize);
            let lengths = offsets.windows(2).map(|pair| (pair[1] - pair[0]) as usize).collect();
            (lists.values().slice(start, end - start), lengths)
        }
        _ => (Arc::clone(array), vec![1; array.len()]),
    }
}
