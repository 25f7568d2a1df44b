//! The edges of a relation as numbers, read from its table: positions of nodes, weights and times.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray};
use arrow::compute::filter;

use super::run::BuildSettings;
use super::table::{ColumnChoice, RowChunk, Table};
use super::values::{ValueError, append_positions, append_times, append_weights, texts};
use crate::error::GraphError;

/// Number of parts whose first rows [`EdgeInput::sample`] reads.
const SAMPLED_PARTS: usize = 16;

/// The edges of a relation in the input.
#[derive(Debug)]
pub(super) struct EdgeInput {
    table: Table,
    columns: Vec<ColumnChoice>,
    /// The source and the target.
    endpoints: [Endpoint; 2],
    weight: Option<EdgeValues>,
    time: Option<EdgeValues>,
    /// The columns of filters, and the text of their values.
    filters: Vec<(usize, String)>,
}

/// How an end of an edge identifies a node.
#[derive(Debug)]
pub(super) enum Endpoint {
    /// By the position of the node, in the column with this index in [`EdgeInput`].
    Position(usize),
    /// By an id. The position has been found before.
    Resolved(ResolvedNodes),
}

/// Positions of nodes in a temporary file, one for each row of a table.
#[derive(Debug, Clone)]
pub(super) struct ResolvedNodes {
    /// The file with numbers of 32 bits.
    pub(super) file: Arc<File>,
    /// The path of the file.
    pub(super) path: PathBuf,
    /// The index of the first row in the file.
    pub(super) first: u64,
}

/// Numbers that belong to edges.
#[derive(Debug)]
pub(super) enum EdgeValues {
    /// In the column with this index in [`EdgeInput`].
    Column(usize),
    /// In a NumPy array.
    Array(Box<Table>),
}

/// Consecutive edges of the input, without rows that the filters reject.
#[derive(Debug, Default)]
pub(super) struct EdgeChunk {
    /// The position of the first row of the chunk in the table.
    first_row: u64,
    /// The rows that the filters accept, counted from `first_row`; `None` for all.
    accepted: Option<Vec<u32>>,
    pub(super) sources: Vec<u64>,
    pub(super) targets: Vec<u64>,
    /// Empty without weights.
    pub(super) weights: Vec<f64>,
    /// Empty without times.
    pub(super) times: Vec<i64>,
}

impl EdgeChunk {
    /// The index of an edge among the rows of the chunk.
    pub(super) fn row_in_chunk(&self, edge: usize) -> usize {
        self.accepted.as_ref().map_or(edge, |accepted| accepted[edge] as usize)
    }

    /// The position of an edge in the table.
    pub(super) fn row(&self, edge: usize) -> u64 {
        self.first_row + self.row_in_chunk(edge) as u64
    }
}

/// The columns of the edges of a relation.
#[derive(Debug, Default)]
pub(super) struct EdgeColumnsChoice {
    pub(super) endpoints: Vec<ColumnChoice>,
    pub(super) filters: Vec<(ColumnChoice, String)>,
    pub(super) weight: Option<ColumnChoice>,
    pub(super) time: Option<ColumnChoice>,
}

impl EdgeInput {
    /// Creates an input. `weight` and `time` are NumPy arrays that replace columns of the table. `resolved` contains the positions of
    /// the ends that are identified by ids.
    pub(super) fn new(
        table: Table,
        choice: EdgeColumnsChoice,
        (weight, time): (Option<Table>, Option<Table>),
        resolved: [Option<ResolvedNodes>; 2],
    ) -> Self {
        let mut columns: Vec<ColumnChoice> = Vec::new();
        let mut index_of = |column: ColumnChoice| {
            columns.push(column);
            columns.len() - 1
        };
        let mut ends = choice.endpoints.into_iter();
        let endpoints = resolved.map(|resolved| {
            let column = ends.next();
            match (resolved, column) {
                (Some(resolved), _) => Endpoint::Resolved(resolved),
                (None, column) => Endpoint::Position(index_of(column.unwrap_or(ColumnChoice::Row))),
            }
        });
        let filters = choice.filters.into_iter().map(|(column, value)| (index_of(column), value)).collect();
        let mut value = |column: Option<ColumnChoice>, array: Option<Table>| match array {
            Some(array) => Some(EdgeValues::Array(Box::new(array))),
            None => column.map(|column| EdgeValues::Column(index_of(column))),
        };
        let weight = value(choice.weight, weight);
        let time = value(choice.time, time);
        Self { table, columns, endpoints, weight, time, filters }
    }

    /// Whether edges have weights.
    pub(super) fn has_weights(&self) -> bool {
        self.weight.is_some()
    }

    /// Whether edges have times.
    pub(super) fn has_times(&self) -> bool {
        self.time.is_some()
    }

    /// Returns the number of edges, if it is known without reading them.
    pub(super) fn known_edges(&self) -> Option<u64> {
        self.table.rows().filter(|_| self.filters.is_empty())
    }

    /// Returns an estimate of the number of edges.
    pub(super) fn estimated_edges(&self) -> u64 {
        self.table.estimated_rows()
    }

    /// Returns the largest position at an end, if it is known without reading the edges.
    pub(super) fn maximum(&self, end: usize) -> Option<i64> {
        match &self.endpoints[end] {
            Endpoint::Position(column) if self.filters.is_empty() => {
                self.table.maximum(&self.columns[*column])
            }
            _ => None,
        }
    }

    /// Reads all edges from several threads.
    ///
    /// # Errors
    /// Returns the first error.
    pub(super) fn scan<S: Send>(
        &self,
        settings: &BuildSettings,
        create: impl Fn() -> S + Sync,
        on_edges: impl Fn(&mut S, &EdgeChunk, &RowChunk) -> Result<(), GraphError> + Sync,
    ) -> Result<Vec<S>, GraphError> {
        let states = self.table.scan(
            settings,
            &self.columns,
            || (EdgeChunk::default(), create()),
            |(edges, state), rows| {
                self.fill(rows, edges)?;
                on_edges(state, edges, rows)
            },
        )?;
        Ok(states.into_iter().map(|(_, state)| state).collect())
    }

    /// Reads the first edges of several parts.
    ///
    /// # Errors
    /// Returns an error if the input is invalid.
    pub(super) fn sample(&self, on_edges: &mut dyn FnMut(&EdgeChunk)) -> Result<(), GraphError> {
        let parts = self.table.parts();
        let mut edges = EdgeChunk::default();
        for part in (0..parts).step_by(parts.div_ceil(SAMPLED_PARTS).max(1)) {
            self.table.read_part(part, &self.columns, &mut |rows| {
                self.fill(rows, &mut edges)?;
                on_edges(&edges);
                Ok(false)
            })?;
        }
        Ok(())
    }

    /// Replaces the contents of `edges` by those of a chunk.
    fn fill(&self, rows: &RowChunk, edges: &mut EdgeChunk) -> Result<(), GraphError> {
        edges.first_row = rows.first_row;
        let mask = self.mask(rows)?;
        edges.accepted =
            mask.as_ref().map(|mask| mask.values().set_indices().map(|row| row as u32).collect());
        let failed = |edges: &EdgeChunk, what: &str, error: ValueError| match error {
            ValueError::Row(edge, reason) => {
                rows.invalid_row(edges.row_in_chunk(edge), format!("{what}: {reason}"))
            }
            ValueError::Column(reason) => rows.invalid_file(format!("{what}: {reason}")),
        };
        for (end, what) in [(0, "the source"), (1, "the target")] {
            let mut positions =
                std::mem::take(if end == 0 { &mut edges.sources } else { &mut edges.targets });
            positions.clear();
            match &self.endpoints[end] {
                Endpoint::Position(column) => {
                    let array = select(&rows.columns[*column], mask.as_ref(), rows)?;
                    append_positions(&array, &mut positions).map_err(|error| failed(edges, what, error))?;
                }
                Endpoint::Resolved(column) => {
                    column.append(rows, edges.accepted.as_deref(), &mut positions)?;
                }
            }
            *(if end == 0 { &mut edges.sources } else { &mut edges.targets }) = positions;
        }
        edges.weights.clear();
        if let Some(column) = &self.weight {
            let array = column.read(rows, mask.as_ref())?;
            let mut weights = std::mem::take(&mut edges.weights);
            append_weights(&array, &mut weights).map_err(|error| failed(edges, "the weight", error))?;
            edges.weights = weights;
        }
        edges.times.clear();
        if let Some(column) = &self.time {
            let array = column.read(rows, mask.as_ref())?;
            let mut times = std::mem::take(&mut edges.times);
            append_times(&array, &mut times).map_err(|error| failed(edges, "the time", error))?;
            edges.times = times;
        }
        Ok(())
    }

    /// Returns the rows that the filters accept; `None` without filters.
    fn mask(&self, rows: &RowChunk) -> Result<Option<BooleanArray>, GraphError> {
        let mut mask: Option<Vec<bool>> = None;
        for (column, value) in &self.filters {
            let array = texts(&rows.columns[*column]).map_err(|error| match error {
                ValueError::Row(row, reason) => rows.invalid_row(row, reason),
                ValueError::Column(reason) => rows.invalid_file(format!("the column of `where`: {reason}")),
            })?;
            let mask = mask.get_or_insert_with(|| vec![true; rows.rows]);
            for (is_accepted, text) in mask.iter_mut().zip(array.iter()) {
                *is_accepted &= text.is_some_and(|text| text.trim() == value);
            }
        }
        Ok(mask.map(BooleanArray::from))
    }
}

impl EdgeValues {
    fn read(&self, rows: &RowChunk, mask: Option<&BooleanArray>) -> Result<ArrayRef, GraphError> {
        let array = match self {
            Self::Column(column) => Arc::clone(&rows.columns[*column]),
            Self::Array(table) => table.read_rows(rows.first_row, rows.rows)?,
        };
        select(&array, mask, rows)
    }
}

impl ResolvedNodes {
    /// Appends the positions of the accepted rows of a chunk; `None` accepts all.
    pub(super) fn append(
        &self,
        rows: &RowChunk,
        accepted: Option<&[u32]>,
        positions: &mut Vec<u64>,
    ) -> Result<(), GraphError> {
        let mut bytes = vec![0; rows.rows * size_of::<u32>()];
        self.file
            .read_exact_at(&mut bytes, (self.first + rows.first_row) * size_of::<u32>() as u64)
            .map_err(|error| GraphError::io("read", &self.path, &error))?;
        let (words, _) = bytes.as_chunks::<4>();
        let position = |word: &[u8; 4]| u64::from(u32::from_le_bytes(*word));
        match accepted {
            Some(accepted) => positions.extend(accepted.iter().map(|&row| position(&words[row as usize]))),
            None => positions.extend(words.iter().map(position)),
        }
        Ok(())
    }
}

/// Returns the accepted rows of a column.
fn select(array: &ArrayRef, mask: Option<&BooleanArray>, rows: &RowChunk) -> Result<ArrayRef, GraphError> {
    match mask {
        Some(mask) => filter(array, mask).map_err(|error| rows.invalid_file(error.to_string())),
        None => Ok(Arc::clone(array)),
    }
}
