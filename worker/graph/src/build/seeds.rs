//! Seed sets: Arrow files with one row per seed, in the user's order. The columns are the nodes, labels, the time, and the position
//! of the row in the user's seeds.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, UInt32Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::ipc::writer::FileWriter;
use feedline_data::graph::description::{SeedKind, SeedSet};

use super::edge_input::ResolvedNodes;
use super::labels::NodeLabels;
use super::node_table::NodeTable;
use super::run::BuildSettings;
use super::table::{ColumnChoice, RowChunk, Table};
use super::values::{ValueError, append_positions, append_times, is_text, shown, texts};
use crate::error::GraphError;
use crate::hashed_file::HashedFile;

/// Number of rows of a record batch.
const BATCH_ROWS: u64 = 1 << 16;

/// The seeds of a set in the input.
#[derive(Debug)]
pub(super) enum SeedInput {
    /// All nodes of the type, in the user's order.
    All,
    /// The rows of a table.
    Rows(Box<SeedRowsTable>),
}

/// A table of seeds.
#[derive(Debug)]
pub(super) struct SeedRowsTable {
    pub(super) table: Table,
    /// The columns with nodes: one, or the source and the target.
    pub(super) ends: Vec<ColumnChoice>,
    /// The positions of nodes that are identified by ids.
    pub(super) resolved: Vec<Option<ResolvedNodes>>,
    /// The column of the seed set with the label, and its values.
    pub(super) label: Option<(String, SeedValues)>,
    pub(super) time: Option<SeedValues>,
}

/// Numbers that belong to seeds.
#[derive(Debug)]
pub(super) enum SeedValues {
    /// In a column of the table.
    Column(ColumnChoice),
    /// In a NumPy array.
    Array(Box<Table>),
}

impl SeedValues {
    /// The column of the table, if the values are in one.
    fn column(&self) -> Option<&ColumnChoice> {
        match self {
            Self::Column(column) => Some(column),
            Self::Array(_) => None,
        }
    }

    /// Returns the values of a chunk. `columns` are the remaining columns of the chunk.
    fn read<'c>(
        &self,
        chunk: &RowChunk,
        columns: &mut impl Iterator<Item = &'c ArrayRef>,
    ) -> Result<ArrayRef, GraphError> {
        match self {
            Self::Column(_) => Ok(Arc::clone(columns.next().expect("the chunk contains all chosen columns"))),
            Self::Array(table) => table.read_rows(chunk.first_row, chunk.rows),
        }
    }
}

/// A seed set to store.
#[derive(Debug)]
pub(super) struct SeedJob<'a> {
    pub(super) name: &'a str,
    pub(super) kind: SeedKind,
    pub(super) input: &'a SeedInput,
    /// The nodes at the ends.
    pub(super) nodes: Vec<&'a NodeTable>,
    pub(super) labels: &'a [NodeLabels],
}

/// A part of the rows of a seed set.
#[derive(Debug, Default)]
struct SeedRows {
    /// The positions of the nodes of each end in the user's order.
    positions: Vec<Vec<u64>>,
    label: Option<ArrayRef>,
    times: Option<Vec<i64>>,
}

impl SeedJob<'_> {
    /// Writes the file of the seed set.
    ///
    /// # Errors
    /// Returns an error if the input is invalid, or the file cannot be written.
    pub(super) fn store(&self, folder: &Path, settings: &BuildSettings) -> Result<SeedSet, GraphError> {
        let file = HashedFile::create(folder, format!("seeds/{}.arrow", self.name))?;
        let mut writer = SeedWriter { file: Some(file), writer: None, rows: 0 };
        match self.input {
            SeedInput::All => self.store_all(&mut writer, settings)?,
            SeedInput::Rows(table) => {
                table.check_mask(self.nodes[0])?;
                table.table.scan_in_order(settings, &table.columns(), &mut |chunk| {
                    let rows = table.read(chunk)?;
                    self.write(&mut writer, rows, &|row, reason| chunk.invalid_row(row, reason))
                })?;
            }
        }
        if writer.writer.is_none() {
            // An empty set has columns too.
            let rows = SeedRows { positions: vec![Vec::new(); self.nodes.len()], ..SeedRows::default() };
            self.write(&mut writer, rows, &|_, reason| GraphError::Setting(reason))?;
        }
        let (rows, file) = (writer.rows, writer.finish()?);
        let classes = self.labels.iter().filter(|label| !label.classes.is_empty());
        let classes: BTreeMap<_, _> =
            classes.map(|label| (label.name.clone(), label.classes.clone())).collect();
        Ok(SeedSet { name: self.name.to_owned(), of: self.kind.clone(), rows, classes, file: file.finish()? })
    }

    fn store_all(&self, writer: &mut SeedWriter, settings: &BuildSettings) -> Result<(), GraphError> {
        let count = u64::from(self.nodes[0].count);
        for first in (0..count).step_by(BATCH_ROWS as usize) {
            settings.check_stop()?;
            let positions = (first..count.min(first + BATCH_ROWS)).collect();
            let rows = SeedRows { positions: vec![positions], ..SeedRows::default() };
            self.write(writer, rows, &|_, reason| GraphError::Setting(reason))?;
        }
        Ok(())
    }

    fn write(
        &self,
        writer: &mut SeedWriter,
        rows: SeedRows,
        invalid: &dyn Fn(usize, String) -> GraphError,
    ) -> Result<(), GraphError> {
        let count = rows.positions.first().map_or(0, Vec::len);
        let names: &[&str] = if rows.positions.len() == 1 { &["node"] } else { &["source", "target"] };
        let mut columns: Vec<(Field, ArrayRef)> = Vec::new();
        for ((name, positions), nodes) in names.iter().zip(&rows.positions).zip(&self.nodes) {
            let mut ids = Vec::with_capacity(count);
            for (row, &position) in positions.iter().enumerate() {
                ids.push(nodes.id(position).map_err(|unknown| invalid(row, unknown.to_string()))?);
            }
            columns.push((Field::new(*name, DataType::UInt32, false), Arc::new(UInt32Array::from(ids))));
        }
        for label in self.labels {
            let values = label.of_nodes(&rows.positions[0])?;
            if let Some(row) = (0..values.len()).find(|&row| values.is_null(row)) {
                return Err(invalid(row, format!("the node has no label `{}`", label.name)));
            }
            columns.push((Field::new(&label.name, label.data_type().clone(), false), values));
        }
        if let (Some(label), SeedInput::Rows(table)) = (rows.label, self.input)
            && let Some((name, _)) = &table.label
        {
            columns.push((Field::new(name, label.data_type().clone(), true), label));
        }
        if let Some(times) = rows.times {
            columns.push((Field::new("time", DataType::Int64, false), Arc::new(Int64Array::from(times))));
        }
        let first = writer.rows as i64;
        let input_ids = Int64Array::from_iter_values(first..first + count as i64);
        columns.push((Field::new("input_id", DataType::Int64, false), Arc::new(input_ids)));
        writer.write(columns)
    }
}

impl SeedInput {
    /// Returns the ids of the nodes at each end. `nodes` are the nodes at the ends.
    pub(super) fn nodes(
        &self,
        nodes: &[&NodeTable],
        settings: &BuildSettings,
    ) -> Result<Vec<Vec<u32>>, GraphError> {
        let table = match self {
            Self::All => return Ok(vec![(0..nodes[0].count).collect()]),
            Self::Rows(table) => table,
        };
        table.check_mask(nodes[0])?;
        let mut ids: Vec<Vec<u32>> = vec![Vec::new(); nodes.len()];
        table.table.scan_in_order(settings, &table.columns(), &mut |chunk| {
            let rows = table.read(chunk)?;
            for ((ids, positions), nodes) in ids.iter_mut().zip(&rows.positions).zip(nodes) {
                if size_of_val(ids.as_slice()) as u64 > settings.memory_bytes / 2 {
                    return Err(
                        chunk.invalid_file("the seeds do not fit in memory: pass a larger `--memory`")
                    );
                }
                for (row, &position) in positions.iter().enumerate() {
                    ids.push(nodes.id(position).map_err(|unknown| chunk.invalid_row(row, unknown))?);
                }
            }
            Ok(())
        })?;
        Ok(ids)
    }
}

impl SeedRowsTable {
    /// The columns that [`Self::read`] expects.
    fn columns(&self) -> Vec<ColumnChoice> {
        let mut columns = self.ends.clone();
        let label = self.label.as_ref().map(|(_, label)| label);
        columns.extend(label.into_iter().chain(&self.time).filter_map(SeedValues::column).cloned());
        columns
    }

    /// Booleans must be one per node.
    fn check_mask(&self, nodes: &NodeTable) -> Result<(), GraphError> {
        if !self.is_mask()? {
            return Ok(());
        }
        match self.table.rows() {
            Some(rows) if rows != u64::from(nodes.count) => {
                let reason = format!(
                    "the column has {rows} booleans, but there are {} nodes: save one for each node",
                    nodes.count
                );
                Err(GraphError::file(self.table.name(), reason))
            }
            _ => Ok(()),
        }
    }

    /// Whether the seeds are the nodes whose boolean is true.
    fn is_mask(&self) -> Result<bool, GraphError> {
        match (self.ends.as_slice(), &self.label, &self.time) {
            ([column], None, None) => self.table.has_booleans(column),
            _ => Ok(false),
        }
    }

    fn read(&self, chunk: &RowChunk) -> Result<SeedRows, GraphError> {
        let failed = |error: ValueError| match error {
            ValueError::Row(row, reason) => chunk.invalid_row(row, reason),
            ValueError::Column(reason) => chunk.invalid_file(reason),
        };
        let mut rows = SeedRows::default();
        for (end, resolved) in self.resolved.iter().enumerate() {
            let array = &chunk.columns[end];
            let mut positions = Vec::new();
            match (resolved, array.as_boolean_opt()) {
                (Some(resolved), _) => resolved.append(chunk, None, &mut positions)?,
                (None, Some(mask)) if self.ends.len() == 1 && self.label.is_none() && self.time.is_none() => {
                    let accepted = (0..mask.len()).filter(|&row| mask.is_valid(row) && mask.value(row));
                    positions.extend(accepted.map(|row| chunk.first_row + row as u64));
                }
                (None, _) => append_positions(array, &mut positions).map_err(failed)?,
            }
            rows.positions.push(positions);
        }
        let mut others = chunk.columns[self.ends.len()..].iter();
        if let Some((_, label)) = &self.label {
            rows.label = Some(label_column(&label.read(chunk, &mut others)?).map_err(failed)?);
        }
        if let Some(time) = &self.time {
            let mut times = Vec::new();
            append_times(&time.read(chunk, &mut others)?, &mut times).map_err(failed)?;
            rows.times = Some(times);
        }
        Ok(rows)
    }
}

/// Converts the labels of a CSV file to integers.
fn label_column(array: &ArrayRef) -> Result<ArrayRef, ValueError> {
    if !is_text(array.data_type()) {
        return Ok(Arc::clone(array));
    }
    let mut labels = Vec::new();
    for (row, text) in texts(array)?.iter().enumerate() {
        let text = text.unwrap_or_default().trim();
        let label: i64 = text.parse().map_err(|_| {
            ValueError::Row(
                row,
                format!("the label `{}` is not an integer: use a Parquet file for other types", shown(text)),
            )
        })?;
        labels.push(label);
    }
    Ok(Arc::new(Int64Array::from(labels)))
}

/// Writes record batches. The first batch determines the schema.
struct SeedWriter {
    file: Option<HashedFile>,
    writer: Option<FileWriter<HashedFile>>,
    rows: u64,
}

impl SeedWriter {
    fn write(&mut self, columns: Vec<(Field, ArrayRef)>) -> Result<(), GraphError> {
        let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        let failed = |error: arrow::error::ArrowError| {
            GraphError::Setting(format!("cannot write a seed set: {error}"))
        };
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).map_err(failed)?;
        if let Some(file) = self.file.take() {
            self.writer = Some(FileWriter::try_new(file, &schema).map_err(failed)?);
        }
        self.rows += batch.num_rows() as u64;
        match &mut self.writer {
            Some(writer) if batch.num_rows() > 0 => writer.write(&batch).map_err(failed),
            _ => Ok(()),
        }
    }

    fn finish(self) -> Result<HashedFile, GraphError> {
        let failed = |error: arrow::error::ArrowError| {
            GraphError::Setting(format!("cannot write a seed set: {error}"))
        };
        let mut writer = self.writer.expect("each seed set has at least one batch");
        writer.finish().map_err(failed)?;
        writer.into_inner().map_err(failed)
    }
}
