//! Infers the columns of a shard from all of its lines.
//!
//! The type of a column is the narrowest type that represents all its values. If there is none, the first value determines the
//! type, and a row with a value of another kind fails when it is read. The result depends only on the rows.

use std::collections::HashMap;

use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};

use super::scan::{
    BOOL, DECIMAL, INEXACT, KindSink, LARGE, LIST, NEGATIVE, NULL, OBJECT, POSITIVE, ScanStop, TEXT,
    ValueKinds, scan_line,
};
use crate::select::{InferenceNotes, ResolvedColumn, Selection};

const INTEGER: ValueKinds = NEGATIVE | POSITIVE | LARGE;

/// The columns of the lines so far.
pub(super) struct Inference<'a> {
    selection: &'a Selection,
    columns: Vec<Column>,
    indexes: HashMap<String, usize>,
    nodes: Vec<Node>,
    /// Whether any line is a JSON object.
    pub(super) has_rows: bool,
    /// The column that probably follows, because lines usually have the same keys in the same order.
    expected: usize,
}

struct Column {
    name: String,
    /// The index of the column's node; `None` if the pipeline does not read the column.
    node: Option<usize>,
}

/// The values of a column, or the elements of lists.
#[derive(Default)]
struct Node {
    kinds: ValueKinds,
    /// The kinds of the first value that is not null.
    first: ValueKinds,
    /// Whether an integer that float64 cannot represent occurred before the first decimal number.
    is_integer: bool,
    /// The index of the node of the elements, if a value is a list.
    elements: Option<usize>,
}

impl<'a> Inference<'a> {
    pub(super) fn new(selection: &'a Selection) -> Self {
        Self {
            selection,
            columns: Vec::new(),
            indexes: HashMap::new(),
            nodes: Vec::new(),
            has_rows: false,
            expected: 0,
        }
    }

    /// Adds a line. Ignores a line that the decoder does not accept, because its row fails. `is_accepted` decodes the line,
    /// and is called only for lines that change the columns.
    pub(super) fn add(&mut self, line: &[u8], is_accepted: impl FnOnce(&[u8]) -> bool) {
        self.expected = 0;
        let is_known = match scan_line(line, &mut Check(self)) {
            Ok(()) => self.has_rows,
            Err(ScanStop::NewColumns) => false,
            Err(ScanStop::Malformed) => return,
        };
        if !is_known && is_accepted(line) {
            self.has_rows = true;
            self.expected = 0;
            // The decoder has accepted the line, so it has no defects.
            let _ = scan_line(line, &mut Merge(self));
        }
    }

    /// Returns the columns, sorted by name, so that their order does not depend on the order of the rows.
    pub(super) fn finish(self) -> (Vec<ResolvedColumn>, InferenceNotes) {
        let mut notes = InferenceNotes::default();
        let mut columns = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            let Some(node) = column.node else {
                columns.push((column.name.clone(), Ok(ColumnType::Utf8)));
                continue;
            };
            let inferred = self.infer(node);
            if !inferred.is_typed {
                notes.untyped.insert(column.name.clone());
            }
            if let Some(from) = inferred.widened_from {
                notes.widened_from.insert(column.name.clone(), from);
            }
            columns.push((column.name.clone(), inferred.column_type));
        }
        columns.sort_by(|(a, _), (b, _)| a.cmp(b));
        (columns, notes)
    }

    fn infer(&self, node: usize) -> Inferred {
        let node = &self.nodes[node];
        let typed =
            |column_type| Inferred { column_type: Ok(column_type), is_typed: true, widened_from: None };
        let has = |kinds: ValueKinds| node.kinds & kinds != 0;
        // No type represents both negative and large integers. Rows with large integers then fail.
        let integer = if has(LARGE) && !has(NEGATIVE) { ScalarType::UInt64 } else { ScalarType::Int64 };
        match node.first {
            // Text can represent every value.
            0 => Inferred { is_typed: false, ..typed(ColumnType::Utf8) },
            BOOL => typed(ColumnType::Scalar(ScalarType::Bool)),
            TEXT => typed(ColumnType::Utf8),
            LIST => match node.elements {
                // A single value is delivered as a list.
                Some(elements) if has(!(LIST | NULL)) => {
                    let inferred = self.infer(elements);
                    let item = inferred.column_type.clone().ok();
                    Inferred { widened_from: item, ..inferred.into_list() }
                }
                Some(elements) => self.infer(elements).into_list(),
                None => Inferred { is_typed: false, ..typed(ColumnType::Utf8) }.into_list(),
            },
            OBJECT => Inferred {
                column_type: Err("nested objects are not supported".to_owned()),
                is_typed: true,
                widened_from: None,
            },
            _ if !has(DECIMAL) || node.is_integer => typed(ColumnType::Scalar(integer)),
            _ => Inferred {
                widened_from: has(INTEGER).then_some(ColumnType::Scalar(integer)),
                ..typed(ColumnType::Scalar(ScalarType::Float64))
            },
        }
    }

    /// Whether the line with a new key must be added. Above the limit, only the columns that the pipeline names matter.
    fn is_needed(&self, name: &str) -> bool {
        self.columns.len() <= MAX_COLUMNS || self.selection.names(name)
    }

    /// Returns the index of a column.
    fn find(&mut self, key: &[u8]) -> Option<usize> {
        if self.columns.get(self.expected).is_some_and(|column| column.name.as_bytes() == key) {
            self.expected += 1;
            return Some(self.expected - 1);
        }
        let index = *self.indexes.get(std::str::from_utf8(key).ok()?)?;
        self.expected = index + 1;
        Some(index)
    }
}

/// The inferred type of a column or of elements.
struct Inferred {
    column_type: Result<ColumnType, String>,
    is_typed: bool,
    widened_from: Option<ColumnType>,
}

impl Inferred {
    fn into_list(self) -> Self {
        let list = |item| ColumnType::List(Box::new(item));
        Self {
            column_type: self.column_type.map(list),
            is_typed: self.is_typed,
            widened_from: self.widened_from.map(list),
        }
    }
}

/// Checks that a line does not change the columns.
struct Check<'a, 'b>(&'a mut Inference<'b>);

impl KindSink for Check<'_, '_> {
    type Node = usize;

    fn column(&mut self, key: &[u8]) -> Result<Option<usize>, ScanStop> {
        match self.0.find(key) {
            Some(index) => Ok(self.0.columns[index].node),
            None if std::str::from_utf8(key).is_ok_and(|name| self.0.is_needed(name)) => {
                Err(ScanStop::NewColumns)
            }
            None => Ok(None),
        }
    }

    fn has(&self, node: usize, kinds: ValueKinds) -> bool {
        self.0.nodes[node].kinds & kinds == kinds
    }

    fn value(&mut self, node: usize, kinds: ValueKinds) -> Result<(), ScanStop> {
        if self.has(node, kinds) { Ok(()) } else { Err(ScanStop::NewColumns) }
    }

    fn elements(&mut self, list: usize) -> Result<usize, ScanStop> {
        self.0.nodes[list].elements.ok_or(ScanStop::NewColumns)
    }
}

/// Adds the columns and kinds of a line.
struct Merge<'a, 'b>(&'a mut Inference<'b>);

impl KindSink for Merge<'_, '_> {
    type Node = usize;

    fn column(&mut self, key: &[u8]) -> Result<Option<usize>, ScanStop> {
        let inference = &mut *self.0;
        if let Some(index) = inference.find(key) {
            return Ok(inference.columns[index].node);
        }
        let name = std::str::from_utf8(key).map_err(|_| ScanStop::Malformed)?;
        if !inference.is_needed(name) {
            return Ok(None);
        }
        let node = inference.selection.reads(name).then(|| {
            inference.nodes.push(Node::default());
            inference.nodes.len() - 1
        });
        inference.indexes.insert(name.to_owned(), inference.columns.len());
        inference.columns.push(Column { name: name.to_owned(), node });
        inference.expected = inference.columns.len();
        Ok(node)
    }

    fn has(&self, node: usize, kinds: ValueKinds) -> bool {
        self.0.nodes[node].kinds & kinds == kinds
    }

    fn value(&mut self, node: usize, kinds: ValueKinds) -> Result<(), ScanStop> {
        let node = &mut self.0.nodes[node];
        if node.first == 0 && kinds != NULL {
            node.first = kinds;
        }
        if kinds & INEXACT != 0 && node.kinds & DECIMAL == 0 {
            node.is_integer = true;
        }
        node.kinds |= kinds;
        Ok(())
    }

    fn elements(&mut self, list: usize) -> Result<usize, ScanStop> {
        if let Some(elements) = self.0.nodes[list].elements {
            return Ok(elements);
        }
        self.0.nodes.push(Node::default());
        let elements = self.0.nodes.len() - 1;
        self.0.nodes[list].elements = Some(elements);
        Ok(elements)
    }
}
