//! Selects and renames columns of the data, as `source.features` of the pipeline specifies.

use std::collections::{BTreeMap, HashMap};

use feedline_data::manifest::ShardRef;
use feedline_data::schema::{ColumnType, MAX_COLUMNS, Schema};

use crate::error::SourceError;
use crate::limits::{check_column, check_column_count};

/// A column of a shard: the name in the data, and the type, or the reason why the column cannot be read.
pub(crate) type ResolvedColumn = (String, Result<ColumnType, String>);

/// Maps column names of the pipeline to column names in the data. Without entries, all columns are read under their own names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    features: BTreeMap<String, String>,
}

impl Selection {
    pub(crate) fn new(features: BTreeMap<String, String>) -> Self {
        Self { features }
    }

    /// The requested columns with their names in the data; empty if all columns are read.
    pub(crate) fn features(&self) -> &BTreeMap<String, String> {
        &self.features
    }

    /// Returns the selection without the columns that have one of these names in the data.
    pub(crate) fn without(&self, is_removed: impl Fn(&str) -> bool) -> Self {
        let kept = self.features.iter().filter(|(_, name)| !is_removed(name));
        Self { features: kept.map(|(column, name)| (column.clone(), name.clone())).collect() }
    }

    /// The name that a pipeline column has in the data.
    pub(crate) fn data_name<'a>(&'a self, column: &'a str) -> &'a str {
        self.features.get(column).map_or(column, String::as_str)
    }

    /// The names that the columns of a schema have in the data.
    pub(crate) fn data_names<'a>(&'a self, schema: &'a Schema) -> Vec<&'a str> {
        schema.names().map(|column| self.data_name(column)).collect()
    }

    /// Returns the schema of a shard: the selected columns with their names in the pipeline.
    pub(crate) fn schema(&self, shard: &ShardRef, found: &[ResolvedColumn]) -> Result<Schema, SourceError> {
        let readable = |name: &str, column_type: &Result<ColumnType, String>| {
            column_type.clone().map_err(|reason| {
                let reason = format!(
                    "column `{name}`: {reason}; list the columns that you need under `source.features`"
                );
                SourceError::unsupported(shard, reason)
            })
        };
        let mut schema = Schema::default();
        if self.features.is_empty() {
            check_column_count(shard, found.len())?;
            for (name, column_type) in found {
                schema.set(name, readable(name, column_type)?);
            }
        } else {
            // If several columns have the same name, the first column is used.
            let known: HashMap<&str, &Result<ColumnType, String>> =
                found.iter().rev().map(|(name, column_type)| (name.as_str(), column_type)).collect();
            for (column, name) in &self.features {
                let Some(&column_type) = known.get(name.as_str()) else {
                    return Err(self.missing(shard, column, name, found));
                };
                schema.set(column, readable(name, column_type)?);
            }
        }
        schema.fields.iter().try_for_each(|field| check_column(shard, field))?;
        Ok(schema)
    }

    fn missing(&self, shard: &ShardRef, column: &str, name: &str, found: &[ResolvedColumn]) -> SourceError {
        let nearest = found
            .iter()
            .take(MAX_COLUMNS)
            .map(|(known, _)| (strsim::jaro_winkler(name, known), known))
            .max_by(|a, b| a.0.total_cmp(&b.0))
            .filter(|(similarity, _)| *similarity > 0.7);
        let names: Vec<String> = found.iter().take(12).map(|(known, _)| format!("`{known}`")).collect();
        let hint = match nearest {
            Some((_, known)) => format!("did you mean `{known}`? The columns are {}", names.join(", ")),
            None if names.is_empty() => "the shard has no columns".to_owned(),
            None => format!("the columns are {}", names.join(", ")),
        };
        SourceError::MissingFeature {
            url: shard.url.clone(),
            column: column.to_owned(),
            name: name.to_owned(),
            hint,
        }
    }
}
