//! What others ask of a pipeline: names, sizes, which source columns matter, and its fingerprint.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Cache, CacheTier, Filter, Function, OnError, Operator, OperatorKind, Pipeline, Remainder, Shuffle, infer,
};
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
            require_inputs(&operator.kind, input, &mut required);
        }
        source.names().filter(|name| required.contains(*name)).map(str::to_owned).collect()
    }

    /// Takes over the code of functions of the same version: two processes may have sent the same function in different bytes.
    pub fn take_codes(&mut self, other: &Self) {
        for (own, other) in self.operators.iter_mut().zip(&other.operators) {
            if let (
                OperatorKind::Map(own) | OperatorKind::FilterFunction(own),
                OperatorKind::Map(other) | OperatorKind::FilterFunction(other),
            ) = (&mut own.kind, &other.kind)
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
            if let OperatorKind::Map(function) | OperatorKind::FilterFunction(function) = &mut operator.kind {
                *function = function.of_rows();
            }
        }
        let json = serde_json::to_vec(&canonical)
            .expect("a pipeline holds only text, numbers, lists and text-keyed maps");
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&json))
    }
}

/// Turns the columns required after an operator into those required before it.
fn require_inputs(kind: &OperatorKind, input: &Schema, required: &mut BTreeSet<String>) {
    match kind {
        OperatorKind::DecodeImage(p) => require(&p.column, required),
        OperatorKind::Resize(p) => require(&p.column, required),
        OperatorKind::CenterCrop(p) => require(&p.column, required),
        OperatorKind::RandomResizedCrop(p) => require(&p.column, required),
        OperatorKind::RandomHorizontalFlip(p) => require(&p.column, required),
        OperatorKind::Normalize(p) => require(&p.column, required),
        OperatorKind::Cast(p) => require(&p.column, required),
        OperatorKind::Truncate(p) => require(&p.column, required),
        OperatorKind::Pad(p) => require(&p.column, required),
        OperatorKind::Select(p) => *required = p.columns.iter().cloned().collect(),
        OperatorKind::Rename(p) => {
            for new in p.columns.keys() {
                required.remove(new);
            }
            required.extend(p.columns.values().cloned());
        }
        OperatorKind::Filter(p) => {
            let mentioned = input.names().filter(|name| mentions(&p.predicate, name));
            required.extend(mentioned.map(str::to_owned));
        }
        OperatorKind::Tokenize(p) => {
            if let Some(output) = &p.output {
                required.remove(output);
            }
            require(&p.column, required);
        }
        OperatorKind::RecodeJpeg(p) => require(&p.column, required),
        OperatorKind::Map(p) | OperatorKind::FilterFunction(p) => {
            for output in p.outputs.keys() {
                required.remove(output);
            }
            match p.columns.as_slice() {
                [] => required.extend(input.names().map(str::to_owned)),
                columns => required.extend(columns.iter().cloned()),
            }
        }
        OperatorKind::BucketByLength(p) => required.extend(p.columns.iter().cloned()),
        OperatorKind::Pack(p) => *required = p.columns.iter().cloned().collect(),
        OperatorKind::Cache(_)
        | OperatorKind::Batch(_)
        | OperatorKind::Repeat(_)
        | OperatorKind::Burn(_)
        | OperatorKind::Wait(_) => {}
    }
}

fn require(column: &str, required: &mut BTreeSet<String>) {
    required.insert(column.to_owned());
}

/// Whether the column's name may stand in the expression: as a word, in any case; or anywhere where it is no word.
/// A word inside a text literal counts too, which costs a column read for nothing but never loses one.
fn mentions(predicate: &str, column: &str) -> bool {
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
    let (predicate, column) = (predicate.to_lowercase(), column.to_lowercase());
    if !column.chars().all(is_word_char) {
        // A quoted name doubles the quotes inside it.
        return predicate.contains(&column) || predicate.contains(&column.replace('"', "\"\""));
    }
    predicate.split(|c: char| !is_word_char(c)).any(|word| word == column)
}

impl OperatorKind {
    /// The operator's key in a pipeline file.
    pub fn name(&self) -> &'static str {
        match self {
            Self::DecodeImage(_) => "decode_image",
            Self::Resize(_) => "resize",
            Self::CenterCrop(_) => "center_crop",
            Self::RandomResizedCrop(_) => "random_resized_crop",
            Self::RandomHorizontalFlip(_) => "random_horizontal_flip",
            Self::Normalize(_) => "normalize",
            Self::Cast(_) => "cast",
            Self::Select(_) => "select",
            Self::Rename(_) => "rename",
            Self::Filter(_) => "filter",
            Self::Tokenize(_) => "tokenize",
            Self::Truncate(_) => "truncate",
            Self::Pad(_) => "pad",
            Self::RecodeJpeg(_) => "recode_jpeg",
            Self::Cache(_) => "cache",
            Self::Batch(_) => "batch",
            Self::BucketByLength(_) => "bucket_by_length",
            Self::Pack(_) => "pack",
            Self::Repeat(_) => "repeat",
            Self::Burn(_) => "burn",
            Self::Wait(_) => "wait",
            Self::Map(_) => "map",
            Self::FilterFunction(_) => "filter_function",
        }
    }

    /// Whether it draws anew in each pass, or may do something else the next time: nothing behind it is kept.
    pub fn is_random(&self) -> bool {
        matches!(self, Self::RandomResizedCrop(_) | Self::RandomHorizontalFlip(_))
            || self.function().is_some_and(Function::may_differ)
    }

    /// The Python function that it calls, if it does.
    pub fn function(&self) -> Option<&Function> {
        match self {
            Self::Map(function) | Self::FilterFunction(function) => Some(function),
            _ => None,
        }
    }

    /// Whether rows leave that have not failed.
    pub fn drops_rows(&self) -> bool {
        matches!(self, Self::Filter(_) | Self::FilterFunction(_))
    }

    /// Whether it is a matter of the engine, and no step of a row: it has no place among the operators that run.
    pub fn is_engines(&self) -> bool {
        matches!(self, Self::Batch(_) | Self::Repeat(_) | Self::Cache(_)) || self.is_coordinated()
    }

    /// Whether it makes batches for all consumers together.
    pub fn is_coordinated(&self) -> bool {
        matches!(self, Self::BucketByLength(_) | Self::Pack(_))
    }

    /// Whether it makes batches, and so is the last operator.
    pub fn is_batching(&self) -> bool {
        matches!(self, Self::Batch(_)) || self.is_coordinated()
    }
}
