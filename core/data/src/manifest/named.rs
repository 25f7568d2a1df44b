//! Checks the columns that a source names against the columns of its shards.

use std::collections::{BTreeMap, BTreeSet};

use super::{Manifest, Shard};
use crate::pipeline::{Source, did_you_mean, join_names};
use crate::schema::{ColumnType, Schema};

/// Maximum number of names in a message.
const MAX_LISTED_NAMES: usize = 12;

impl Manifest {
    /// Builds the manifest of the indexed shards of a source. An optional column that no shard contains becomes a text column.
    ///
    /// # Errors
    /// Returns a message that names a shard whose columns are incompatible with those of the other shards, or a column of
    /// `source.features` that no shard contains.
    pub fn of_source(shards: Vec<Shard>, source: &Source) -> Result<Self, String> {
        let mut manifest = Self::build(shards)?;
        if let Some(message) = manifest.missing_column(source) {
            return Err(message);
        }
        manifest.add_optional_columns(source);
        Ok(manifest)
    }

    /// Describes the first column of `source.features` that no shard contains and that is not optional.
    pub fn missing_column(&self, source: &Source) -> Option<String> {
        let mut datasets = (0..).zip(source.datasets());
        datasets.find_map(|(part, dataset)| {
            let absent = self.absent_features(part, dataset);
            let (column, name) =
                absent.into_iter().find(|(column, _)| !dataset.optional.contains(*column))?;
            Some(not_found(column, name, dataset, &self.shards_of(part).collect::<Vec<_>>()))
        })
    }

    /// Adds the optional columns that no shard contains. Their values are null, so they are text, which represents every value.
    pub fn add_optional_columns(&mut self, source: &Source) {
        for (part, dataset) in (0..).zip(source.datasets()) {
            for (column, _) in self.absent_features(part, dataset) {
                if dataset.optional.contains(column) && self.schema.get(column).is_none() {
                    self.schema.set(column, ColumnType::Utf8);
                }
            }
        }
    }

    /// The columns of `source.features` that no shard with rows contains, with their names in the data.
    fn absent_features<'a>(&self, part: u32, dataset: &'a Source) -> Vec<(&'a String, &'a String)> {
        if dataset.features.is_empty() || self.shards_of(part).next().is_none() {
            return Vec::new();
        }
        let schemas = self.shards_of(part).filter_map(|shard| shard.index.schema.as_ref());
        let present: BTreeSet<&str> = schemas.flat_map(Schema::names).collect();
        dataset.features.iter().filter(|(column, _)| !present.contains(column.as_str())).collect()
    }

    /// Checks that each shard with a fixed schema contains the columns that a job reads, or that they are optional.
    ///
    /// # Errors
    /// Returns a message that names a shard without a column, and the fix.
    pub fn check_columns(&self, source: &Source, required: &[String]) -> Result<(), String> {
        for (part, dataset) in (0..).zip(source.datasets()) {
            // The first shard with each column, and the columns of the last complete shard.
            let mut first: BTreeMap<&str, &Shard> = BTreeMap::new();
            let mut known: Option<&Schema> = None;
            for shard in self.shards_of(part) {
                let Some(schema) = &shard.index.schema else { continue };
                if known != Some(schema) {
                    for name in schema.names() {
                        first.entry(name).or_insert(shard);
                    }
                    known = Some(schema);
                }
            }
            let checked = first.into_iter().filter(|(name, _)| {
                required.iter().any(|required| required.as_str() == *name)
                    && !dataset.optional.contains(*name)
            });
            let checked: BTreeMap<&str, &Shard> = checked.collect();
            let mut complete: Option<&Schema> = None;
            for shard in self.shards_of(part) {
                let Some(schema) = shard.index.schema.as_ref().filter(|_| shard.index.columns.is_fixed)
                else {
                    continue;
                };
                if complete == Some(schema) {
                    continue;
                }
                let names: BTreeSet<&str> = schema.names().collect();
                if let Some((column, first)) = checked.iter().find(|(name, _)| !names.contains(**name)) {
                    let name = dataset.features.get(*column).map_or(*column, String::as_str);
                    return Err(format!(
                        "shard {} has no column `{name}`, which {} has; to read null for shards without the column, declare `{column}: {{ name: {name}, optional: true }}` under `source.features`, with all other columns that you need",
                        shard.object.url, first.object.url
                    ));
                }
                complete = Some(schema);
            }
        }
        Ok(())
    }

    /// The shards with rows of a dataset of a mix, or of the source.
    fn shards_of(&self, part: u32) -> impl Iterator<Item = &Shard> {
        self.shards.iter().filter(move |shard| shard.object.part == part && shard.index.schema.is_some())
    }
}

/// Describes a column that no shard contains, with the columns of the data.
fn not_found(column: &str, name: &str, dataset: &Source, shards: &[&Shard]) -> String {
    let mut found: BTreeSet<&str> = BTreeSet::new();
    for shard in shards {
        found.extend(shard.index.columns.ignored.iter().map(String::as_str));
        let read = shard.index.schema.iter().flat_map(Schema::names);
        found.extend(read.filter_map(|column| dataset.features.get(column)).map(String::as_str));
    }
    let place = match shards {
        [shard] => format!("`{}` has", shard.object.url),
        [first, ..] => format!("none of {} shards, such as `{}`, has", shards.len(), first.object.url),
        [] => "the dataset has".to_owned(),
    };
    let negation = if shards.len() == 1 { "no" } else { "a" };
    let hint = did_you_mean(name, found.iter().copied());
    let names = join_names(found.iter().copied().take(MAX_LISTED_NAMES));
    format!(
        "{place} {negation} column `{name}`, which the pipeline reads as `{column}`{hint} (the columns are: {names})"
    )
}
