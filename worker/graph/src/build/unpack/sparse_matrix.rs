//! Sparse matrices of SciPy (`scipy.sparse.save_npz`). The entry in row i and column j is the edge from node i to node j.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::Path;

use feedline_data::schema::ScalarType;
use feedline_sources::{LocalArchive, NpyArrayHeader};

use super::super::run::BuildSettings;
use super::super::table::{ColumnChoice, NumpyAxes, RowChunk, Table};
use super::super::values::{ValueError, append_positions};
use crate::error::GraphError;
use crate::npy;

/// Maximum size of the members with the shape and the format.
const MAX_SMALL_BYTES: u64 = 1 << 16;
/// Size of the buffer of the file.
const BUFFER_BYTES: usize = 1 << 20;

/// A matrix in compressed rows or columns, whose arrays have been extracted.
pub(super) struct SparseMatrixFile {
    /// The path of the archive, for messages.
    name: String,
    pub(super) rows: u64,
    pub(super) columns: u64,
    /// Whether the pointers divide the indexes into columns. Otherwise, they divide them into rows.
    has_columns: bool,
    pointers: Table,
    indexes: Table,
}

impl SparseMatrixFile {
    /// Opens a matrix. `pointers` and `indexes` are the paths of the extracted arrays.
    ///
    /// # Errors
    /// Returns an error if the format is not `csc` or `csr`, or the sizes of the arrays do not match.
    pub(super) fn open(
        name: &str,
        archive: &LocalArchive,
        pointers: String,
        indexes: String,
    ) -> Result<Self, GraphError> {
        let invalid = |reason: &str| GraphError::file(name, reason);
        let format = read_small(name, archive, "format.npy")?;
        let has_columns = match format.last_chunk::<3>() {
            Some(b"csc") => true,
            Some(b"csr") => false,
            _ => return Err(invalid("the matrix is neither csc nor csr: save `matrix.tocsc()`")),
        };
        let [rows, columns] = read_shape(&read_small(name, archive, "shape.npy")?).ok_or_else(|| {
            invalid("the shape of the matrix is invalid: save it with `scipy.sparse.save_npz`")
        })?;
        let [pointers, indexes] = [pointers, indexes].map(|path| Table::open(&[path], NumpyAxes::Rows));
        let matrix = Self {
            name: name.to_owned(),
            rows,
            columns,
            has_columns,
            pointers: pointers?,
            indexes: indexes?,
        };
        let major = if has_columns { columns } else { rows };
        if matrix.pointers.rows() != Some(major + 1) {
            return Err(invalid("the number of pointers does not match the shape: save the matrix again"));
        }
        Ok(matrix)
    }

    /// Writes the edges as an array with the sources in the first row and the targets in the second row.
    ///
    /// # Errors
    /// Returns an error if an index or a pointer is invalid, or the file cannot be written.
    pub(super) fn write_edges(&self, path: &Path, settings: &BuildSettings) -> Result<(), GraphError> {
        let edges = u32::try_from(self.indexes.rows().unwrap_or(0)).map_err(|_| {
            let reason = format!("the matrix has more than {} entries: pass the edges as an array", u32::MAX);
            GraphError::file(&self.name, reason)
        })?;
        let failed = |error: std::io::Error| GraphError::io("write", path, &error);
        let file = File::create_new(path).map_err(failed)?;
        let mut writer = EdgeRowWriter { file: BufWriter::with_capacity(BUFFER_BYTES, file), path };
        writer.write(&npy::header(ScalarType::UInt32, 2, &[edges]))?;
        if self.has_columns {
            self.write_indexes(&mut writer, self.rows, settings)?;
            self.write_pointers(&mut writer, edges, settings)?;
        } else {
            self.write_pointers(&mut writer, edges, settings)?;
            self.write_indexes(&mut writer, self.columns, settings)?;
        }
        writer.file.flush().map_err(failed)
    }

    fn write_indexes(
        &self,
        writer: &mut EdgeRowWriter<'_>,
        limit: u64,
        settings: &BuildSettings,
    ) -> Result<(), GraphError> {
        self.scan(&self.indexes, settings, &mut |position, index| {
            if index >= limit {
                let index = index as i64;
                return Err(self.invalid("indices", position, format!("{index} is not below {limit}")));
            }
            writer.write(&(index as u32).to_le_bytes())
        })
    }

    /// Writes the row or column of each entry.
    fn write_pointers(
        &self,
        writer: &mut EdgeRowWriter<'_>,
        edges: u32,
        settings: &BuildSettings,
    ) -> Result<(), GraphError> {
        let mut written = 0_u64;
        self.scan(&self.pointers, settings, &mut |position, end| {
            let is_first = position == 0;
            if end < written || end > u64::from(edges) || (is_first && end != 0) {
                let reason = format!("the pointers must ascend from 0 to {edges}");
                return Err(self.invalid("indptr", position, reason));
            }
            // The first pointer is the start of the node 0.
            let node = (position.saturating_sub(1) as u32).to_le_bytes();
            while written < end {
                writer.write(&node)?;
                written += 1;
            }
            Ok(())
        })?;
        if written == u64::from(edges) {
            return Ok(());
        }
        let last = self.pointers.rows().unwrap_or(0).saturating_sub(1);
        Err(self.invalid("indptr", last, format!("the last pointer must be {edges}")))
    }

    /// Passes the positions and numbers of an array.
    fn scan(
        &self,
        table: &Table,
        settings: &BuildSettings,
        on_number: &mut dyn FnMut(u64, u64) -> Result<(), GraphError>,
    ) -> Result<(), GraphError> {
        let mut numbers = Vec::new();
        table.scan_in_order(settings, &[ColumnChoice::Index(0)], &mut |chunk: &RowChunk| {
            numbers.clear();
            append_positions(&chunk.columns[0], &mut numbers).map_err(|error| match error {
                ValueError::Row(row, reason) => chunk.invalid_row(row, reason),
                ValueError::Column(reason) => chunk.invalid_file(reason),
            })?;
            for (position, &number) in (chunk.first_row..).zip(&numbers) {
                on_number(position, number)?;
            }
            Ok(())
        })
    }

    fn invalid(&self, array: &str, position: u64, reason: String) -> GraphError {
        GraphError::file(&self.name, format!("`{array}` at {position}: {reason}: save the matrix again"))
    }
}

/// Writes the rows of the array of edges.
struct EdgeRowWriter<'a> {
    file: BufWriter<File>,
    path: &'a Path,
}

impl EdgeRowWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> Result<(), GraphError> {
        self.file.write_all(bytes).map_err(|error| GraphError::io("write", self.path, &error))
    }
}

/// Reads a small member.
fn read_small(name: &str, archive: &LocalArchive, member: &str) -> Result<Vec<u8>, GraphError> {
    let reader = archive.member(member).map_err(|reason| GraphError::file(name, reason))?;
    let mut bytes = Vec::new();
    let read = reader.take(MAX_SMALL_BYTES).read_to_end(&mut bytes);
    read.map_err(|error| GraphError::file(name, format!("{error}: write the file again")))?;
    Ok(bytes)
}

/// Returns the numbers of rows and columns, which have 32 bits.
fn read_shape(bytes: &[u8]) -> Option<[u64; 2]> {
    let header = NpyArrayHeader::parse(bytes).ok()?;
    let data = bytes.get(header.data_start as usize..)?;
    if header.is_big_endian || header.shape != [2] {
        return None;
    }
    let numbers = match header.scalar {
        ScalarType::Int64 => {
            [0, 8].map(|at| data.get(at..)?.first_chunk().map(|bytes| i64::from_le_bytes(*bytes)))
        }
        ScalarType::Int32 => {
            [0, 4].map(|at| data.get(at..)?.first_chunk().map(|bytes| i64::from(i32::from_le_bytes(*bytes))))
        }
        _ => return None,
    };
    let [rows, columns] = numbers.map(|number| number.and_then(|number| u32::try_from(number).ok()));
    Some([u64::from(rows?), u64::from(columns?)])
}
