//! Properties derived from a pipeline: sizes, names, required source columns and the fingerprint.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Cache, CacheTier, Filter, Format, OnError, Operator, OperatorKind, Pipeline, PlacementMode, Remainder,
    Shuffle, infer,
};
use crate::schema::Schema;

#[cfg(test)]
mod tests;

/// The predicate of the filter that drops all rows of a pipeline that fills a cache.
const DROP_ALL: &str = "false";

impl Pipeline {
    /// Returns the number of rows of a full batch, or 1 for a pipeline without a batching operator, which
    /// [`Pipeline::check`] rejects.
    pub fn batch_size(&self) -> u32 {
        let mut sizes = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Batch(batch) => Some(batch.size),
            OperatorKind::BucketByLength(bucket) => bucket.batch_rows_per_bucket().into_iter().max(),
            OperatorKind::Pack(pack) => Some(pack.size),
            OperatorKind::SampleNeighbors(sample) => Some(sample.size),
            _ => None,
        });
        sizes.next().unwrap_or(1)
    }

    /// What happens to the rows of an epoch that do not fill a batch.
    pub fn remainder(&self) -> Remainder {
        let mut remainders = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Batch(batch) => Some(batch.remainder),
            OperatorKind::SampleNeighbors(sample) => Some(sample.remainder),
            _ => None,
        });
        remainders.next().unwrap_or_default()
    }

    /// Whether the pipeline ends with `bucket_by_length` or `pack`, which form the batches of all consumers together.
    pub fn is_coordinated(&self) -> bool {
        self.operators.last().is_some_and(|operator| operator.kind.is_coordinated())
    }

    /// Whether the pipeline ends with an operator that forms one record from the rows of each batch.
    pub fn is_indivisible(&self) -> bool {
        self.operators.last().is_some_and(|operator| operator.kind.is_indivisible())
    }

    /// The path or URL of the graph that the pipeline samples: that of the last operator, or that of the source.
    pub fn graph_url(&self) -> Option<&str> {
        let last = self.operators.last().filter(|operator| operator.kind.is_indivisible())?;
        last.kind.definition().graph().or_else(|| self.source.graph_urls().next())
    }

    /// Whether each worker of the job holds only some rows of the features of nodes.
    pub fn partitions_features(&self) -> bool {
        let last = self.operators.last().map(|operator| &operator.kind);
        matches!(last, Some(OperatorKind::SampleNeighbors(sample)) if sample.placement == PlacementMode::Partition)
    }

    /// The name of the credentials with which the graph is read: those of the dataset that lists its description.
    pub fn graph_credentials(&self) -> Option<&str> {
        let datasets = self.source.datasets();
        let names_graph = self.operators.last().is_some_and(|last| last.kind.definition().graph().is_some());
        let dataset = match names_graph {
            true => datasets.last(),
            false => datasets.iter().find(|dataset| dataset.format == Format::Graph),
        };
        dataset?.credentials.as_deref()
    }

    /// The number of passes over the rows in an epoch; 1 without a `repeat`.
    pub fn repeat_count(&self) -> u32 {
        let mut counts = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Repeat(repeat) => Some(repeat.count),
            _ => None,
        });
        counts.next().unwrap_or(1)
    }

    /// Whether the output may have fewer rows than the input, because of a filter, skipped rows, or rows without a record.
    pub fn changes_rows(&self) -> bool {
        self.operators.iter().any(|operator| operator.kind.drops_rows())
            || self.on_error == OnError::Skip
            || self.source.may_have_absent_rows()
    }

    /// Returns the operators before the `cache` operator and the tier of the cache, or `None` without a `cache`.
    pub fn cached_prefix(&self) -> Option<(&[Operator], CacheTier)> {
        self.operators.iter().enumerate().find_map(|(place, operator)| match &operator.kind {
            OperatorKind::Cache(cache) => Some((&self.operators[..place], cache.tier)),
            _ => None,
        })
    }

    /// Inserts a `cache` after the first `after` operators that run in stages. Returns a pipeline that already has a `cache`
    /// unchanged.
    pub fn with_cache_after(&self, after: u32, tier: CacheTier) -> Self {
        let mut cached = self.clone();
        if self.cached_prefix().is_none() {
            let runs =
                self.operators.iter().enumerate().filter(|(_, operator)| !operator.kind.is_engine_operator());
            let before = runs.take(after as usize).last().map_or(0, |(place, _)| place + 1);
            let cache = Operator { kind: OperatorKind::Cache(Cache { tier }), parallelism: None };
            cached.operators.insert(before, cache);
        }
        cached
    }

    /// Returns a pipeline that fills the cache of this pipeline: it reads each row once in storage order and delivers no
    /// rows. Both pipelines use the same cache keys. Returns `None` without a `cache`.
    pub fn cache_fill_pipeline(&self) -> Option<Self> {
        let place = self.cached_prefix()?.0.len();
        // Keep the operators after the cache, because they determine the required columns. The filter drops all rows before
        // these operators.
        let drop_all = Filter { predicate: DROP_ALL.to_owned() };
        let mut operators = self.operators.clone();
        operators.insert(place + 1, Operator { kind: OperatorKind::Filter(drop_all), parallelism: None });
        operators.retain(|operator| !matches!(operator.kind, OperatorKind::Repeat(_)));
        Some(Self { operators, shuffle: Shuffle::default(), ..self.clone() })
    }

    /// Whether the pipeline only fills its cache, and delivers no rows: see [`Self::cache_fill_pipeline`].
    pub fn fills_cache(&self) -> bool {
        self.operators.windows(2).any(|pair| match (&pair[0].kind, &pair[1].kind) {
            (OperatorKind::Cache(_), OperatorKind::Filter(filter)) => filter.predicate == DROP_ALL,
            _ => false,
        })
    }

    /// Returns a unique name for each operator, in order. The second `resize` is named `resize#2`.
    pub fn operator_names(&self) -> Vec<String> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut names = Vec::with_capacity(self.operators.len());
        for operator in &self.operators {
            let name = operator.kind.name();
            let count = seen.entry(name).or_default();
            *count += 1;
            names.push(if *count == 1 { name.to_owned() } else { format!("{name}#{count}") });
        }
        names
    }

    /// Returns the source columns that can influence the output, in the order of the source. These are the columns of the
    /// output and the columns that operators read, because a row on which an operator fails also changes the output. Returns
    /// all columns if the pipeline is incompatible with the source.
    pub fn required_columns(&self, source: &Schema) -> Vec<String> {
        let Ok(schemas) = infer(self, source) else {
            return source.names().map(str::to_owned).collect();
        };
        let mut required: BTreeSet<String> = match schemas.last() {
            Some(output) => output.names().map(str::to_owned).collect(),
            None => BTreeSet::new(),
        };
        for (operator, input) in self.operators.iter().zip(&schemas).rev() {
            operator.kind.definition().require_inputs(input, &mut required);
        }
        source.names().filter(|name| required.contains(*name)).map(str::to_owned).collect()
    }

    /// Replaces the pickled code of each versioned function with the code in `other` if the versions are equal. Two
    /// processes may pickle the same function into different bytes.
    pub fn adopt_function_code(&mut self, other: &Self) {
        for (own, other) in self.operators.iter_mut().zip(&other.operators) {
            if let (Some(own), Some(other)) =
                (own.kind.definition_mut().function_mut(), other.kind.function())
                && own.version.is_some()
                && own.version == other.version
            {
                own.code.clone_from(&other.code);
            }
        }
    }

    /// Returns a hash of everything that affects the content and order of rows, as 16 hex digits. The hash is the xxh3-64 of
    /// the canonical JSON form without the pipeline's name, `cache` operators, credential names, `parallelism` and `placement`.
    pub fn fingerprint(&self) -> String {
        self.canonical().hash()
    }

    /// Returns the pipeline without everything that does not affect the content and order of rows.
    pub(super) fn canonical(&self) -> Self {
        let mut canonical = self.clone();
        canonical.name.clear();
        canonical.source.credentials = None;
        for part in canonical.source.mix.iter_mut().flat_map(|mix| &mut mix.parts) {
            part.source.credentials = None;
        }
        canonical.source.clear_commit_group();
        canonical.operators.retain(|operator| !matches!(operator.kind, OperatorKind::Cache(_)));
        for operator in &mut canonical.operators {
            operator.parallelism = None;
            if let OperatorKind::SampleNeighbors(sample) = &mut operator.kind {
                sample.placement = PlacementMode::default();
            }
            if let Some(function) = operator.kind.definition_mut().function_mut() {
                *function = function.without_execution_settings();
            }
        }
        canonical
    }

    /// Returns the xxh3-64 of the JSON form, as 16 hex digits.
    pub(super) fn hash(&self) -> String {
        let json = serde_json::to_vec(self)
            .expect("a pipeline contains only text, numbers, lists and text-keyed maps");
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&json))
    }
}
