//! What others ask of a pipeline: names, sizes, which source columns matter, and its fingerprint.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cache, CacheTier, Filter, OnError, Operator, OperatorKind, Pipeline, Remainder, Shuffle, infer};
use crate::schema::Schema;

#[cfg(test)]
mod tests;

impl Pipeline {
    /// Rows of a full batch; 1 where there is no batch, which [`Pipeline::check`] refuses.
    pub fn batch_size(&self) -> u32 {
        let mut sizes = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Batch(batch) => Some(batch.size),
            OperatorKind::BucketByLength(bucket) => bucket.sizes().into_iter().max(),
            OperatorKind::Pack(pack) => Some(pack.size),
            _ => None,
        });
        sizes.next().unwrap_or(1)
    }

    /// What happens to the rows of an epoch that do not fill a batch.
    pub fn remainder(&self) -> Remainder {
        let mut remainders = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Batch(batch) => Some(batch.remainder),
            _ => None,
        });
        remainders.next().unwrap_or_default()
    }

    /// Whether all consumers get batches of one kind in the same step: it ends with `bucket_by_length` or `pack`.
    pub fn is_coordinated(&self) -> bool {
        self.operators.last().is_some_and(|operator| operator.kind.is_coordinated())
    }

    /// Passes over the rows within an epoch; 1 without a `repeat`.
    pub fn repeat_count(&self) -> u32 {
        let mut counts = self.operators.iter().filter_map(|operator| match &operator.kind {
            OperatorKind::Repeat(repeat) => Some(repeat.count),
            _ => None,
        });
        counts.next().unwrap_or(1)
    }

    /// Whether fewer rows may come out than go in: there is a filter, or failing rows are skipped.
    pub fn changes_rows(&self) -> bool {
        self.operators.iter().any(|operator| operator.kind.drops_rows()) || self.on_error == OnError::Skip
    }

    /// The operators before the `cache`, and where it keeps what they make; `None` without one.
    pub fn cached(&self) -> Option<(&[Operator], CacheTier)> {
        self.operators.iter().enumerate().find_map(|(place, operator)| match &operator.kind {
            OperatorKind::Cache(cache) => Some((&self.operators[..place], cache.tier)),
            _ => None,
        })
    }

    /// The same rows with what the first `after` operators make of them kept, of those that run; as it is where it has a
    /// `cache` of its own.
    pub fn keeping(&self, after: u32, tier: CacheTier) -> Self {
        let mut keeping = self.clone();
        if self.cached().is_none() {
            let runs = self.operators.iter().enumerate().filter(|(_, operator)| !operator.kind.is_engines());
            let before = runs.take(after as usize).last().map_or(0, |(place, _)| place + 1);
            let cache = Operator { kind: OperatorKind::Cache(Cache { tier }), parallelism: None };
            keeping.operators.insert(before, cache);
        }
        keeping
    }

    /// A pipeline that fills this one's cache and delivers nothing: each row once, as it is stored, up to the `cache`. What
    /// it keeps is what this pipeline looks for. `None` without a `cache`.
    pub fn filling_cache(&self) -> Option<Self> {
        let place = self.cached()?.0.len();
        // The operators behind stay, since they say which columns are needed; no row comes to them.
        let nothing = Filter { predicate: "false".to_owned() };
        let mut operators = self.operators.clone();
        operators.insert(place + 1, Operator { kind: OperatorKind::Filter(nothing), parallelism: None });
        operators.retain(|operator| !matches!(operator.kind, OperatorKind::Repeat(_)));
        Some(Self { operators, shuffle: Shuffle::default(), ..self.clone() })
    }

    /// One name per operator, in order and unique: the second of a kind is `resize#2`.
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

    /// The source's columns that can influence the output, in the source's order: those that come out, and those that
    /// an operator reads, since a row that fails there changes the output too. A source cut to these columns gives the
    /// same batches; all of them where the pipeline does not fit the source.
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

    /// Takes over the code of functions of the same version: two processes may have sent the same function in different bytes.
    pub fn take_codes(&mut self, other: &Self) {
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

    /// 16 hex digits that stand for everything that affects the rows' content and order: all but the name, caches, the name
    /// of credentials and each operator's parallelism. xxh3-64 of the canonical JSON form.
    pub fn fingerprint(&self) -> String {
        let mut canonical = self.clone();
        canonical.name.clear();
        canonical.source.credentials = None;
        for part in canonical.source.mix.iter_mut().flat_map(|mix| &mut mix.parts) {
            part.source.credentials = None;
        }
        canonical.operators.retain(|operator| !matches!(operator.kind, OperatorKind::Cache(_)));
        for operator in &mut canonical.operators {
            operator.parallelism = None;
            if let Some(function) = operator.kind.definition_mut().function_mut() {
                *function = function.of_rows();
            }
        }
        let json = serde_json::to_vec(&canonical)
            .expect("a pipeline holds only text, numbers, lists and text-keyed maps");
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&json))
    }
}
