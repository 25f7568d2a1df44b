//! Selects and renames columns of the data, as `source.features` of the pipeline specifies.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use feedline_data::manifest::{ColumnKind, ColumnNotes, RoundedColumn, ShardRef, WidenedColumn};
use feedline_data::pipeline::Source;
use feedline_data::schema::{ColumnType, MAX_COLUMNS, Schema};

use crate::error::SourceError;
use crate::limits::{check_column, check_column_count};

/// A column of a shard: the name in the data, and the type, or the reason why the column cannot be read.
pub(crate) type ResolvedColumn = (String, Result<ColumnType, String>);

/// Which columns of `source.features` a shard may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AbsentColumns {
    /// No column, except optional columns. For formats with a fixed schema per shard.
    Rejected,
    /// Every column. For formats in which each row has its own columns. The coordinator checks that a column is in any shard.
    Allowed,
}

/// Additional results of inferring the columns of a shard, with the names in the data.
#[derive(Debug, Default)]
pub(crate) struct InferenceNotes {
    /// Columns whose values are all null or empty lists.
    pub(crate) untyped: HashSet<String>,
    /// Columns in which values have another type, which is converted to the type of the column.
    pub(crate) widened_from: HashMap<String, ColumnType>,
    /// Columns whose values are rounded, and how.
    pub(crate) rounded: HashMap<String, &'static str>,
    /// What the numbers of columns mean.
    pub(crate) kinds: HashMap<String, &'static str>,
}

impl InferenceNotes {
    /// Returns the notes with other names of the columns.
    #[cfg(feature = "kafka")]
    pub(crate) fn renamed(self, rename: impl Fn(String) -> String) -> Self {
        Self {
            untyped: self.untyped.into_iter().map(&rename).collect(),
            widened_from: self.widened_from.into_iter().map(|(name, from)| (rename(name), from)).collect(),
            rounded: self.rounded.into_iter().map(|(name, reason)| (rename(name), reason)).collect(),
            kinds: self.kinds.into_iter().map(|(name, kind)| (rename(name), kind)).collect(),
        }
    }
}

/// Maps column names of the pipeline to column names in the data. By default, all columns are read under their own names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    /// Whether only `features` are read. These may be empty, if the pipeline reads only values that are the same in all rows.
    is_restricted: bool,
    features: BTreeMap<String, String>,
    /// The columns of `features` that a shard may lack.
    optional: BTreeSet<String>,
}

impl Selection {
    pub(crate) fn new(source: &Source) -> Self {
        let features = source.features.clone();
        Self { is_restricted: !features.is_empty(), features, optional: source.optional.clone() }
    }

    /// Whether all columns of the data are read.
    pub(crate) fn reads_all(&self) -> bool {
        !self.is_restricted
    }

    /// The requested columns with their names in the data, unless all columns are read.
    pub(crate) fn features(&self) -> &BTreeMap<String, String> {
        &self.features
    }

    /// Returns the selection without the columns that have one of these names in the data.
    pub(crate) fn without(&self, is_removed: impl Fn(&str) -> bool) -> Self {
        let kept = self.features.iter().filter(|(_, name)| !is_removed(name));
        let features = kept.map(|(column, name)| (column.clone(), name.clone())).collect();
        Self { features, ..self.clone() }
    }

    /// The name that a pipeline column has in the data.
    pub(crate) fn data_name<'a>(&'a self, column: &'a str) -> &'a str {
        self.features.get(column).map_or(column, String::as_str)
    }

    /// The names that the columns of a schema have in the data.
    pub(crate) fn data_names<'a>(&'a self, schema: &'a Schema) -> Vec<&'a str> {
        schema.names().map(|column| self.data_name(column)).collect()
    }

    /// Returns the selected columns of a shard in a format with a fixed schema, with their names in the pipeline. The shard must
    /// contain every column that is not optional.
    pub(crate) fn resolve_fixed(
        &self,
        shard: &ShardRef,
        found: &[ResolvedColumn],
        inferred: &InferenceNotes,
    ) -> Result<(Schema, ColumnNotes), SourceError> {
        let (schema, notes) = self.resolve_sampled(shard, found, inferred)?;
        Ok((schema, ColumnNotes { is_fixed: true, ..notes }))
    }

    /// Returns the selected columns of a shard of which only the first rows are known, with their names in the pipeline. They must
    /// contain every column that is not optional.
    pub(crate) fn resolve_sampled(
        &self,
        shard: &ShardRef,
        found: &[ResolvedColumn],
        inferred: &InferenceNotes,
    ) -> Result<(Schema, ColumnNotes), SourceError> {
        let schema = self.schema(shard, found, AbsentColumns::Rejected)?;
        let notes = self.notes(&schema, found, inferred);
        Ok((schema, notes))
    }

    /// Returns the selected columns of a shard in a format in which each row has its own columns, with their names in the
    /// pipeline.
    pub(crate) fn resolve_inferred(
        &self,
        shard: &ShardRef,
        found: &[ResolvedColumn],
        inferred: &InferenceNotes,
    ) -> Result<(Schema, ColumnNotes), SourceError> {
        let schema = self.schema(shard, found, AbsentColumns::Allowed)?;
        let notes = self.notes(&schema, found, inferred);
        Ok((schema, notes))
    }

    fn schema(
        &self,
        shard: &ShardRef,
        found: &[ResolvedColumn],
        absent: AbsentColumns,
    ) -> Result<Schema, SourceError> {
        let readable = |name: &str, column_type: &Result<ColumnType, String>| {
            column_type.clone().map_err(|reason| {
                let reason = format!(
                    "column `{name}`: {reason}; list the columns that you need under `source.features`"
                );
                SourceError::unsupported(shard, reason)
            })
        };
        check_unique_names(shard, found.iter().map(|(name, _)| name.as_str()), |name| self.reads(name))?;
        let mut schema = Schema::default();
        if self.reads_all() {
            check_column_count(shard, found.len())?;
            for (name, column_type) in found {
                schema.set(name, readable(name, column_type)?);
            }
        } else {
            let known: HashMap<&str, &Result<ColumnType, String>> =
                found.iter().map(|(name, column_type)| (name.as_str(), column_type)).collect();
            for (column, name) in &self.features {
                let Some(&column_type) = known.get(name.as_str()) else {
                    if absent == AbsentColumns::Allowed {
                        continue;
                    }
                    if self.optional.contains(column) {
                        check_no_fields(shard, name, found)?;
                        continue;
                    }
                    return Err(self.missing(shard, column, name, found));
                };
                schema.set(column, readable(name, column_type)?);
            }
        }
        schema.fields.iter().try_for_each(|field| check_column(shard, field))?;
        Ok(schema)
    }

    /// Returns the notes about the columns of a shard with their names in the pipeline.
    fn notes(&self, schema: &Schema, found: &[ResolvedColumn], inferred: &InferenceNotes) -> ColumnNotes {
        let mut notes = ColumnNotes::default();
        for field in &schema.fields {
            let name = self.data_name(&field.name);
            if inferred.untyped.contains(name) {
                notes.untyped.push(field.name.clone());
            }
            if let Some(from) = inferred.widened_from.get(name) {
                let (column, to) = (field.name.clone(), field.column_type.clone());
                notes.widened.push(WidenedColumn { column, from: from.clone(), to });
            }
            if let Some(&reason) = inferred.rounded.get(name) {
                notes.rounded.push(RoundedColumn { column: field.name.clone(), reason: reason.to_owned() });
            }
        }
        for field in &schema.fields {
            if let Some(&kind) = inferred.kinds.get(self.data_name(&field.name)) {
                notes.kinds.push(ColumnKind { column: field.name.clone(), kind: kind.to_owned() });
            }
        }
        if !self.reads_all() {
            let read: HashSet<&str> = self.features.values().map(String::as_str).collect();
            let names = found.iter().map(|(name, _)| name).filter(|name| !read.contains(name.as_str()));
            notes.ignored = names.take(MAX_COLUMNS).cloned().collect();
        }
        notes
    }

    /// Whether the pipeline reads the column `name` of the data.
    pub(crate) fn reads(&self, name: &str) -> bool {
        self.reads_all() || self.names(name)
    }

    /// Whether `source.features` contains the column `name` of the data.
    pub(crate) fn names(&self, name: &str) -> bool {
        self.features.values().any(|read| read == name)
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
        let hint = format!(
            "{hint}; to read null for shards without the column, declare `{column}: {{ name: {name}, optional: true }}` under `source.features`"
        );
        SourceError::MissingFeature {
            url: shard.url.clone(),
            column: column.to_owned(),
            name: name.to_owned(),
            hint,
        }
    }
}

/// Checks that an optional column is absent, and not a struct, of which only the fields are columns.
fn check_no_fields(shard: &ShardRef, name: &str, found: &[ResolvedColumn]) -> Result<(), SourceError> {
    let is_field = |known: &str| known.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
    match found.iter().find(|(known, _)| is_field(known)) {
        Some((field, _)) => Err(SourceError::unsupported(
            shard,
            format!(
                "the optional column `{name}` is a struct, list or map with fields such as `{field}`; list these instead"
            ),
        )),
        None => Ok(()),
    }
}

/// Checks that no selected column has the name of another column. `names` are the names of all columns in their order.
pub(crate) fn check_unique_names<'a>(
    shard: &ShardRef,
    names: impl IntoIterator<Item = &'a str>,
    is_selected: impl Fn(&str) -> bool,
) -> Result<(), SourceError> {
    let mut positions: HashMap<&str, usize> = HashMap::new();
    for (position, name) in (1..).zip(names) {
        let Some(first) = positions.insert(name, position) else { continue };
        if is_selected(name) {
            let fix = "rename one of them, or list other columns under `source.features`";
            let reason = match name {
                "" => format!("columns {first} and {position} have no name: {fix}"),
                _ => format!("columns {first} and {position} have the same name `{name}`: {fix}"),
            };
            return Err(SourceError::unsupported(shard, reason));
        }
    }
    Ok(())
}
