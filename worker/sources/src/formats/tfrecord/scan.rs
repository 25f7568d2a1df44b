//! Infers the columns of a shard from all of its records.
//!
//! A record that adds nothing to the columns is only parsed. Before a record changes the columns, its checksum is verified.

use std::collections::HashMap;

use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};

use super::example::{FeatureValues, each_bytes, each_float, each_int, read_features};
use super::framing::verified_data;
use crate::select::{ResolvedColumn, Selection};

/// The number of values of a feature in a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ValueCount {
    One,
    /// No value, or several.
    Other,
}

/// Infers the columns.
pub(crate) struct SchemaScan<'a> {
    selection: &'a Selection,
    /// Whether any record is a valid example.
    has_examples: bool,
    features: Vec<FeatureSummary>,
    indexes: HashMap<String, usize>,
    /// The feature that probably follows, because most records have the same features in the same order.
    expected: usize,
}

/// A feature in the records so far.
struct FeatureSummary {
    name: String,
    /// The kind of the first values.
    kind: &'static str,
    /// Whether any record has no value or several values. A record without the feature does not count.
    is_list: bool,
}

impl<'a> SchemaScan<'a> {
    pub(crate) fn new(selection: &'a Selection) -> Self {
        Self { selection, has_examples: false, features: Vec::new(), indexes: HashMap::new(), expected: 0 }
    }

    /// Whether the features of an unverified record are known, so that the record does not change the columns.
    pub(crate) fn knows(&mut self, example: &[u8]) -> bool {
        self.begin_record();
        let mut is_known = self.has_examples;
        let is_example = read_features(example, |name, values| {
            is_known = is_known && self.knows_feature(name, values);
        });
        is_known && is_example.is_ok()
    }

    /// Starts an unverified record. The caller then passes the features to [`Self::knows_feature`] or [`Self::knows_values`].
    pub(super) fn begin_record(&mut self) {
        self.expected = 0;
    }

    pub(super) fn has_examples(&self) -> bool {
        self.has_examples
    }

    pub(super) fn knows_feature(&mut self, name: &[u8], values: FeatureValues<'_>) -> bool {
        let Some(index) = self.find(name) else {
            return values == FeatureValues::Unset || !self.reads(name);
        };
        let feature = &self.features[index];
        feature.is_list || values.kind() != feature.kind || count_values(values) == Ok(ValueCount::One)
    }

    /// Whether a feature with this number of values is known.
    pub(super) fn knows_values(&mut self, name: &[u8], kind: &'static str, count: ValueCount) -> bool {
        let Some(index) = self.find(name) else { return !self.reads(name) };
        let feature = &self.features[index];
        feature.is_list || kind != feature.kind || count == ValueCount::One
    }

    /// Adds a framed record. Skips a damaged record, whose row fails when it is read.
    pub(super) fn add(&mut self, record: &[u8]) -> Result<(), String> {
        match verified_data(record) {
            Ok(example) => self.add_example(example).map(drop),
            Err(_) => Ok(()),
        }
    }

    /// Adds an example without framing. Returns whether it is valid.
    pub(crate) fn add_example(&mut self, example: &[u8]) -> Result<bool, String> {
        let mut features = Vec::new();
        let is_example = read_features(example, |name, values| features.push((name, values))).is_ok();
        if !is_example {
            return Ok(false);
        }
        self.has_examples = true;
        self.begin_record();
        for (name, values) in features {
            if let (Ok(count), true) = (count_values(values), values != FeatureValues::Unset) {
                self.record(name, values.kind(), count)?;
            }
        }
        Ok(true)
    }

    /// Returns the columns, sorted by name. `None` if no record is a valid example.
    pub(crate) fn columns(&self) -> Option<Vec<ResolvedColumn>> {
        if !self.has_examples {
            return None;
        }
        let mut found: Vec<ResolvedColumn> =
            self.features.iter().map(|seen| (seen.name.clone(), Ok(seen.column_type()))).collect();
        // Sort, because the order of a protobuf map is undefined.
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Some(found)
    }

    fn record(&mut self, name: &[u8], kind: &'static str, count: ValueCount) -> Result<(), String> {
        let is_list = count == ValueCount::Other;
        if let Some(index) = self.find(name) {
            let feature = &mut self.features[index];
            feature.is_list |= is_list && feature.kind == kind;
            return Ok(());
        }
        let Ok(name) = std::str::from_utf8(name).map(str::to_owned) else {
            // No pipeline can name it.
            return if self.selection.reads_all() {
                let name = String::from_utf8_lossy(name);
                Err(format!(
                    "the name of the feature `{name}` is not UTF-8: list the features to read under `source.features`"
                ))
            } else {
                Ok(())
            };
        };
        if !self.is_needed(&name) {
            if self.selection.reads(&name) {
                return Err(format!(
                    "the records exceed the limit of {MAX_COLUMNS} features: write fewer features, or combine \
                     features into lists"
                ));
            }
            return Ok(());
        }
        self.indexes.insert(name.clone(), self.features.len());
        self.features.push(FeatureSummary { name, kind, is_list });
        Ok(())
    }

    /// Whether a new feature matters. Above the limit, one that the pipeline reads is an error.
    fn reads(&self, name: &[u8]) -> bool {
        let name = String::from_utf8_lossy(name);
        self.is_needed(&name) || self.selection.reads(&name)
    }

    /// Whether a new feature must be added. Above the limit, only the columns that the pipeline names matter.
    fn is_needed(&self, name: &str) -> bool {
        self.features.len() < MAX_COLUMNS || self.selection.names(name)
    }

    fn find(&mut self, name: &[u8]) -> Option<usize> {
        if self.features.get(self.expected).is_some_and(|feature| feature.name.as_bytes() == name) {
            self.expected += 1;
            return Some(self.expected - 1);
        }
        let index = *self.indexes.get(&*String::from_utf8_lossy(name))?;
        self.expected = index + 1;
        Some(index)
    }
}

impl FeatureSummary {
    fn column_type(&self) -> ColumnType {
        let item = match self.kind {
            "bytes" => ColumnType::Binary,
            "float" => ColumnType::Scalar(ScalarType::Float32),
            _ => ColumnType::Scalar(ScalarType::Int64),
        };
        if self.is_list { ColumnType::List(Box::new(item)) } else { item }
    }
}

fn count_values(values: FeatureValues<'_>) -> Result<ValueCount, ()> {
    let mut count = 0_usize;
    let counted = match values {
        FeatureValues::Unset => Ok(()),
        FeatureValues::Bytes(list) => each_bytes(list, |_| count += 1),
        FeatureValues::Floats(list) => each_float(list, |_| count += 1),
        FeatureValues::Ints(list) => each_int(list, |_| count += 1),
    };
    counted.map_err(drop)?;
    Ok(if count == 1 { ValueCount::One } else { ValueCount::Other })
}
