//! Labels of nodes, which become columns of the seed sets. Text labels are numbered in their sorted order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int64Array, StringArray, UInt64Array};
use arrow::compute::{concat, take};
use arrow::datatypes::DataType;

use super::run::BuildSettings;
use super::spec::ColumnRef;
use super::table::{ColumnChoice, NumpyAxes, RowChunk, Table};
use super::values::{ValueError, is_text, texts};
use crate::error::GraphError;

/// Maximum number of different text labels.
const MAX_CLASSES: usize = 1 << 20;

/// The labels of all nodes of a type, in the user's order.
#[derive(Debug)]
pub(super) struct NodeLabels {
    pub(super) name: String,
    values: ArrayRef,
    /// The text of each class; empty if the labels are numbers.
    pub(super) classes: Vec<String>,
}

impl NodeLabels {
    /// Reads labels.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read, the labels do not fit in memory, or their number is not `count`.
    pub(super) fn load(
        name: &str,
        from: &ColumnRef,
        count: u32,
        settings: &BuildSettings,
    ) -> Result<Self, GraphError> {
        let table = Table::open(std::slice::from_ref(&from.path), NumpyAxes::Rows)?;
        let choice = from.column.as_deref().map(ColumnChoice::parse);
        let columns = table.choose(choice.as_ref().map(std::slice::from_ref), 1)?;
        let codes = LabelCodes::find(&table, &columns, settings)?;
        let mut chunks: Vec<ArrayRef> = Vec::new();
        let mut bytes = 0;
        table.scan_in_order(settings, &columns, &mut |chunk| {
            let array = &chunk.columns[0];
            let array = if is_text(array.data_type()) { codes.apply(chunk)? } else { Arc::clone(array) };
            bytes += array.get_array_memory_size() as u64;
            if bytes > settings.memory_bytes / 2 {
                let reason =
                    format!("the labels need more than {bytes} bytes of memory: pass a larger `--memory`");
                return Err(chunk.invalid_file(reason));
            }
            chunks.push(array);
            Ok(())
        })?;
        let rows: usize = chunks.iter().map(|chunk| chunk.len()).sum();
        let invalid = |reason: String| GraphError::file(table.name(), reason);
        if rows as u64 != u64::from(count) {
            return Err(invalid(format!("the label `{name}` has {rows} rows, but there are {count} nodes")));
        }
        let slices: Vec<&dyn Array> = chunks.iter().map(|chunk| chunk.as_ref()).collect();
        let values: ArrayRef = if slices.is_empty() {
            Arc::new(Int64Array::from(Vec::<i64>::new()))
        } else {
            concat(&slices).map_err(|error| invalid(error.to_string()))?
        };
        let classes = if codes.are_integers { Vec::new() } else { codes.of_text.into_keys().collect() };
        Ok(Self { name: name.to_owned(), values, classes })
    }

    /// The type of the column.
    pub(super) fn data_type(&self) -> &DataType {
        self.values.data_type()
    }

    /// Returns the labels of nodes, which exist.
    pub(super) fn of_nodes(&self, positions: &[u64]) -> Result<ArrayRef, GraphError> {
        let positions = UInt64Array::from(positions.to_vec());
        take(&self.values, &positions, None).map_err(|error| GraphError::Setting(error.to_string()))
    }
}

/// The numbers of text labels.
#[derive(Debug, Default)]
struct LabelCodes {
    of_text: BTreeMap<String, i64>,
    /// Whether the text consists of integers, as in a CSV file. They keep their values.
    are_integers: bool,
}

impl LabelCodes {
    /// Reads all labels. There are no codes if the labels are not text.
    fn find(table: &Table, columns: &[ColumnChoice], settings: &BuildSettings) -> Result<Self, GraphError> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        let mut is_number = false;
        table.scan_in_order(settings, columns, &mut |chunk| {
            if is_number || !is_text(chunk.columns[0].data_type()) {
                is_number = true;
                return Ok(());
            }
            for text in label_texts(chunk)?.iter().flatten() {
                if !names.contains(text) {
                    names.insert(text.to_owned());
                }
            }
            if names.len() > MAX_CLASSES {
                let reason = format!("the labels have more than {MAX_CLASSES} different texts: use numbers");
                return Err(chunk.invalid_file(reason));
            }
            Ok(())
        })?;
        let integers: Option<BTreeMap<String, i64>> =
            names.iter().map(|text| Some((text.clone(), text.trim().parse().ok()?))).collect();
        match integers.filter(|_| table.is_csv()) {
            Some(of_text) => Ok(Self { of_text, are_integers: true }),
            None => Ok(Self { of_text: names.into_iter().zip(0..).collect(), are_integers: false }),
        }
    }

    fn apply(&self, chunk: &RowChunk) -> Result<ArrayRef, GraphError> {
        let texts = label_texts(chunk)?;
        let code = |text: Option<&str>| text.and_then(|text| self.of_text.get(text).copied());
        Ok(Arc::new(texts.iter().map(code).collect::<Int64Array>()))
    }
}

fn label_texts(chunk: &RowChunk) -> Result<StringArray, GraphError> {
    texts(&chunk.columns[0]).map_err(|error| match error {
        ValueError::Row(row, reason) => chunk.invalid_row(row, reason),
        ValueError::Column(reason) => chunk.invalid_file(reason),
    })
}
