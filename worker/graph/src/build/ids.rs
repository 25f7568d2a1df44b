//! Ids of nodes that are text, or integers that are not positions. They are numbered by an external sort: in the order of a table of
//! ids, or in their sorted order.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use arrow::array::Array;
use feedline_data::graph::description::NodeNames;
use feedline_data::schema::ScalarType;

use super::edge_input::ResolvedNodes;
use super::run::BuildSettings;
use super::scatter::RowScatter;
use super::table::{ColumnChoice, Table};
use super::text_sorter::{SortedTexts, TextSorter};
use super::values::{ValueError, shown, texts};
use crate::error::GraphError;
use crate::hashed_file::ArrayWriter;

/// The bit of numbers that are uses of an id. Numbers of the table of ids sort before them.
const USE: u64 = 1 << 63;
/// The bit of uses that do not define a node. Uses that define nodes sort before them.
const SEED: u64 = 1 << 62;

/// Finds the positions of the nodes of a type by their ids.
pub(super) struct IdResolver<'a> {
    settings: &'a BuildSettings,
    folder: &'a Path,
    node_type: &'a str,
    sorter: TextSorter,
    /// The name of the table of ids. `None` numbers the ids in their sorted order.
    table_name: Option<String>,
    names: NameWriter,
    /// The number of rows of the table of ids.
    table_rows: u64,
    uses: Vec<IdUse>,
    use_count: u64,
}

/// A column that uses ids.
struct IdUse {
    /// The files for messages.
    name: String,
    first: u64,
    end: u64,
}

/// The result of a resolver.
pub(super) struct ResolvedIds {
    /// The number of nodes.
    pub(super) count: u64,
    /// The ids, in the order of the nodes.
    pub(super) names: NodeNames,
    /// The positions of the nodes of each column, in the order in which the columns were added.
    pub(super) columns: Vec<ResolvedNodes>,
}

impl<'a> IdResolver<'a> {
    /// Creates a resolver for a node type. `folder` is the folder of the graph, and `spill` that of temporary files.
    pub(super) fn new(
        settings: &'a BuildSettings,
        folder: &Path,
        spill: &'a Path,
        node_type: &'a str,
    ) -> Result<Self, GraphError> {
        Ok(Self {
            settings,
            folder: spill,
            node_type,
            sorter: TextSorter::new(spill, (settings.memory_bytes / 2).max(1 << 10)),
            table_name: None,
            names: NameWriter::create(folder, node_type)?,
            table_rows: 0,
            uses: Vec::new(),
            use_count: 0,
        })
    }

    /// Sets the ids of all nodes, in the order of the nodes.
    pub(super) fn set_table(&mut self, table: &Table, column: &ColumnChoice) -> Result<(), GraphError> {
        let (sorter, names) = (&mut self.sorter, &mut self.names);
        let mut count = 0;
        scan_texts(table, column, self.settings, &mut |row, id| {
            names.push(id.as_bytes())?;
            count = row + 1;
            sorter.push(id, row)
        })?;
        self.table_rows = count;
        self.table_name = Some(table.name().to_owned());
        Ok(())
    }

    /// Adds a column whose ids are to be found. Without a table of ids, the ids of edges define the nodes, but those of seeds do not.
    pub(super) fn add_use(
        &mut self,
        table: &Table,
        column: &ColumnChoice,
        is_seed: bool,
    ) -> Result<(), GraphError> {
        let (sorter, first) = (&mut self.sorter, self.use_count);
        let flags = if is_seed { USE | SEED } else { USE };
        let mut end = first;
        scan_texts(table, column, self.settings, &mut |row, id| {
            end = first + row + 1;
            sorter.push(id, flags | (first + row))
        })?;
        let name = table.name().to_owned();
        self.uses.push(IdUse { name, first, end });
        self.use_count = end;
        Ok(())
    }

    /// Finds all ids.
    ///
    /// # Errors
    /// Returns an error if an id is not in the table of ids, or occurs twice in it.
    pub(super) fn finish(self) -> Result<ResolvedIds, GraphError> {
        let Self { settings, folder, node_type, sorter, table_name, mut names, table_rows, uses, use_count } =
            self;
        let sorted = sorter.finish()?;
        let row_bytes = size_of::<u32>();
        let mut scatter = RowScatter::create(folder, use_count, row_bytes, settings.memory_bytes / 2)?;
        let numbered = IdNumbering { settings, node_type, table_name: table_name.as_deref(), uses: &uses };
        let found = numbered.number(sorted, &mut names, &mut scatter)?;
        let count = if table_name.is_some() { table_rows } else { found };
        let path = folder.join(format!("ids-{node_type}"));
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let mut file = file.map_err(|error| GraphError::io("create", &path, &error))?;
        scatter.finish(&mut |rows| {
            file.write_all(rows).map_err(|error| GraphError::io("write", &path, &error))
        })?;
        let file = Arc::new(file);
        let column =
            |used: &IdUse| ResolvedNodes { file: Arc::clone(&file), path: path.clone(), first: used.first };
        let columns = uses.iter().map(column).collect();
        Ok(ResolvedIds { count, names: names.finish()?, columns })
    }
}

/// Numbers sorted ids.
struct IdNumbering<'a> {
    settings: &'a BuildSettings,
    node_type: &'a str,
    table_name: Option<&'a str>,
    uses: &'a [IdUse],
}

impl IdNumbering<'_> {
    /// Writes the position of the node of each use. Returns the number of nodes that were numbered in the order of their ids.
    fn number(
        &self,
        mut sorted: SortedTexts,
        names: &mut NameWriter,
        scatter: &mut RowScatter,
    ) -> Result<u64, GraphError> {
        let (mut previous, mut text) = (Vec::new(), Vec::new());
        let mut node: Option<u32> = None;
        let mut count = 0_u64;
        let mut is_first = true;
        while let Some(number) = sorted.next(&mut text)? {
            self.settings.check_stop()?;
            if is_first || text != previous {
                is_first = false;
                previous.clear();
                previous.extend_from_slice(&text);
                node = None;
                if self.table_name.is_none() && number & SEED == 0 {
                    names.push(&text)?;
                    node = Some(position(self.node_type, count)?);
                    count += 1;
                }
            }
            if number & USE == 0 {
                if node.is_some() {
                    let reason =
                        format!("the id `{}` occurs twice: remove one of the rows", shown_bytes(&text));
                    return Err(GraphError::file(self.table_name.unwrap_or_default(), reason));
                }
                node = Some(position(self.node_type, number)?);
                continue;
            }
            let number = number & !(USE | SEED);
            let Some(node) = node else { return Err(self.unknown(number, &text)) };
            scatter.write(number, &node.to_le_bytes())?;
        }
        Ok(count)
    }

    fn unknown(&self, number: u64, text: &[u8]) -> GraphError {
        let used = self.uses.iter().find(|used| (used.first..used.end).contains(&number));
        let (name, row) = used.map_or(("", 0), |used| (used.name.as_str(), number - used.first));
        let place = self.table_name.map_or("in any edge".to_owned(), |table| format!("in `{table}`"));
        let reason = format!(
            "row {row}: the id `{}` of node type `{}` is not {place}",
            shown_bytes(text),
            self.node_type
        );
        GraphError::file(name, reason)
    }
}

/// Returns the position of a node with 32 bits.
fn position(node_type: &str, number: u64) -> Result<u32, GraphError> {
    super::node_table::checked_count(node_type, number + 1).map(|count| count - 1)
}

fn shown_bytes(text: &[u8]) -> String {
    shown(&String::from_utf8_lossy(text))
}

/// Passes the row and the text of each id to `on_id`.
fn scan_texts(
    table: &Table,
    column: &ColumnChoice,
    settings: &BuildSettings,
    on_id: &mut dyn FnMut(u64, &str) -> Result<(), GraphError>,
) -> Result<(), GraphError> {
    table.scan_in_order(settings, std::slice::from_ref(column), &mut |chunk| {
        let array = texts(&chunk.columns[0]).map_err(|error| match error {
            ValueError::Row(row, reason) => chunk.invalid_row(row, reason),
            ValueError::Column(reason) => chunk.invalid_file(reason),
        })?;
        for row in 0..array.len() {
            if array.is_null(row) {
                return Err(chunk.invalid_row(row, "the id is missing"));
            }
            on_id(chunk.first_row + row as u64, array.value(row))?;
        }
        Ok(())
    })
}

/// Writes the ids of a node type.
struct NameWriter {
    offsets: ArrayWriter,
    text: ArrayWriter,
    length_bytes: u64,
}

impl NameWriter {
    fn create(folder: &Path, node_type: &str) -> Result<Self, GraphError> {
        let array = |name: &str, dtype: ScalarType| {
            ArrayWriter::create(folder, format!("ids/{node_type}.{name}.npy"), dtype, &[])
        };
        let mut offsets = array("offsets", ScalarType::UInt64)?;
        offsets.write_numbers(&[0_u64])?;
        Ok(Self { offsets, text: array("text", ScalarType::UInt8)?, length_bytes: 0 })
    }

    fn push(&mut self, id: &[u8]) -> Result<(), GraphError> {
        self.length_bytes += id.len() as u64;
        self.text.write(id)?;
        self.offsets.write_numbers(&[self.length_bytes])
    }

    fn finish(self) -> Result<NodeNames, GraphError> {
        let (offsets, text) = (self.offsets.finish()?, self.text.finish()?);
        Ok(NodeNames { length_bytes: self.length_bytes, offsets, text })
    }
}
