//! What can be checked in a pipeline without knowing the source's columns.

use std::collections::BTreeSet;

use super::functions::{check_filter_function, check_map};
use super::limits::check_limits;
use super::{BucketByLength, Operator, OperatorKind, OrderMode, Pipeline, PipelineError, Size, Source};
use crate::schema::ScalarType;

#[cfg(test)]
mod tests;

/// Largest image side in pixels.
const SIDE_MAX: u32 = 16_384;
/// Largest batch in rows.
const BATCH_ROWS_MAX: u32 = 1_000_000;
/// Longest time a `wait` or `burn` may spend on one row: beyond it a pipeline would seem to hang.
const ROW_SECONDS_MAX: u64 = 60;
/// Most datasets of a mix.
const MAX_PARTS: usize = 64;
/// Smallest and largest weight of a dataset: beyond that rows of it would come once in a year, or nothing else.
const LEAST_WEIGHT: f64 = 1e-6;
const MOST_WEIGHT: f64 = 1e6;

/// Where in a pipeline something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorPath {
    /// The name.
    Name,
    /// A field of the source.
    Source(&'static str),
    /// The list of operators.
    Operators,
    /// The operator at this index, from 0.
    Operator(usize),
}

/// A place and what is wrong there.
#[derive(Debug)]
pub(super) struct CheckError {
    pub(super) place: ErrorPath,
    pub(super) sentence: String,
}

impl CheckError {
    pub(super) fn new(place: ErrorPath, sentence: impl Into<String>) -> Self {
        Self { place, sentence: sentence.into() }
    }

    /// The sentence with its place in words.
    pub(super) fn text(&self, pipeline: &Pipeline) -> String {
        let sentence = &self.sentence;
        match self.place {
            ErrorPath::Name => format!("name: {sentence}"),
            ErrorPath::Source(field) => format!("source.{field}: {sentence}"),
            ErrorPath::Operators => format!("operators: {sentence}"),
            ErrorPath::Operator(index) => match pipeline.operators.get(index) {
                Some(operator) => format!("{}: {sentence}", operator_place(index, &operator.kind)),
                None => format!("operator {}: {sentence}", index + 1),
            },
        }
    }
}

/// `operator 2 (resize)`: operators are counted from 1 in messages.
pub(super) fn operator_place(index: usize, kind: &OperatorKind) -> String {
    format!("operator {} ({})", index + 1, kind.name())
}

impl Pipeline {
    /// Checks everything that can be checked without the source's columns. The error is one sentence with the place
    /// and the fix; [`infer`](super::infer()) checks the rest.
    pub fn check(&self) -> Result<(), PipelineError> {
        self.refusal().map_or(Ok(()), |refusal| Err(PipelineError::new(refusal.text(self))))
    }

    /// The first thing that is wrong.
    pub(super) fn refusal(&self) -> Option<CheckError> {
        check_all(self).err()
    }
}

fn check_all(pipeline: &Pipeline) -> Result<(), CheckError> {
    check_limits(pipeline)?;
    check_name(&pipeline.name).map_err(|sentence| CheckError::new(ErrorPath::Name, sentence))?;
    check_sources(&pipeline.source)?;
    for (index, operator) in pipeline.operators.iter().enumerate() {
        check_operator(operator).map_err(|sentence| CheckError::new(ErrorPath::Operator(index), sentence))?;
    }
    check_graph(&pipeline.operators)?;
    check_order(pipeline)
}

/// In relaxed mode consumers take what is ready, so no two of them are in the same step.
fn check_order(pipeline: &Pipeline) -> Result<(), CheckError> {
    if pipeline.order == OrderMode::Deterministic || !pipeline.is_coordinated() {
        return Ok(());
    }
    let last = pipeline.operators.len() - 1;
    let sentence = "it gives all consumers the same step, which `order: relaxed` does not know; use `order: deterministic`";
    Err(CheckError::new(ErrorPath::Operator(last), sentence))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the pipeline's name is empty; write one, such as `imagenet-train`".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    match name.chars().find(|&c| !allowed(c)) {
        Some(c) => Err(format!("`{name}` contains {c:?}; use only letters, digits, `_`, `.` and `-`")),
        None => Ok(()),
    }
}

/// A mix has datasets with weights, and none of them is itself one.
fn check_sources(source: &Source) -> Result<(), CheckError> {
    let Some(mix) = &source.mix else { return check_source(source) };
    let refused = |sentence: String| CheckError::new(ErrorPath::Source("mix"), sentence);
    if mix.parts.is_empty() {
        return Err(refused("the list is empty; write at least one dataset with url and format".to_owned()));
    }
    if mix.parts.len() > MAX_PARTS {
        let parts = mix.parts.len();
        return Err(refused(format!(
            "{parts} datasets are more than {MAX_PARTS}; put some into one by a list of urls"
        )));
    }
    for (place, part) in mix.parts.iter().enumerate() {
        let number = place + 1;
        if !(LEAST_WEIGHT..=MOST_WEIGHT).contains(&part.weight) {
            return Err(refused(format!(
                "the weight of dataset {number} is {}; write a number from {LEAST_WEIGHT} to {MOST_WEIGHT}",
                part.weight
            )));
        }
        if part.source.mix.is_some() {
            return Err(refused(format!("dataset {number} is itself a mix; list its datasets here")));
        }
        check_source(&part.source)
            .map_err(|refusal| refused(format!("dataset {number}: {}", refusal.sentence)))?;
    }
    Ok(())
}

fn check_source(source: &Source) -> Result<(), CheckError> {
    if source.url.is_empty() {
        return Err(CheckError::new(
            ErrorPath::Source("url"),
            "the list is empty; write at least one path, glob or URL",
        ));
    }
    if source.url.iter().any(|url| url.trim().is_empty()) {
        return Err(CheckError::new(
            ErrorPath::Source("url"),
            "an entry is empty; write a path, glob or URL, or remove it",
        ));
    }
    for (column, data_name) in &source.features {
        if column.is_empty() || data_name.is_empty() {
            return Err(CheckError::new(
                ErrorPath::Source("features"),
                format!("`{column}: {data_name}` lacks a name; write `column: name in the data`"),
            ));
        }
    }
    Ok(())
}

/// One batch, at the end; at most one repeat; a cache where it can be.
fn check_graph(operators: &[Operator]) -> Result<(), CheckError> {
    let places_of = |wanted: &str| -> Vec<usize> {
        let named = operators.iter().enumerate().filter(|(_, operator)| operator.kind.name() == wanted);
        named.map(|(index, _)| index).collect()
    };
    if let [first, second, ..] = places_of("repeat")[..] {
        let sentence =
            format!("operator {} repeats already; keep one repeat with the product of the counts", first + 1);
        return Err(CheckError::new(ErrorPath::Operator(second), sentence));
    }
    check_cache(operators, &places_of("cache"))?;
    let last = operators.len().saturating_sub(1);
    let batching: Vec<usize> =
        (0..operators.len()).filter(|&place| operators[place].kind.is_batching()).collect();
    let name = |place: usize| operators[place].kind.name();
    match batching[..] {
        [] => Err(CheckError::new(
            ErrorPath::Operators,
            "there is no batch; end the list with `- batch: {size: 128}`",
        )),
        [only] if only == last => Ok(()),
        [only] => {
            let sentence =
                format!("operators follow it, but {} must be the last; move it to the end", name(only));
            Err(CheckError::new(ErrorPath::Operator(only), sentence))
        }
        [first, second, ..] if name(first) == "batch" && name(second) == "batch" => Err(CheckError::new(
            ErrorPath::Operator(first),
            "there is another batch after it; keep only the one at the end",
        )),
        [first, second, ..] => {
            let sentence = format!("{} after it makes batches as well; keep one of them", name(second));
            Err(CheckError::new(ErrorPath::Operator(first), sentence))
        }
    }
}

/// One cache, and nothing random before it: each pass over the data draws anew.
fn check_cache(operators: &[Operator], caches: &[usize]) -> Result<(), CheckError> {
    let Some(&first) = caches.first() else { return Ok(()) };
    if let Some(&second) = caches.get(1) {
        let sentence = format!("operator {} caches already; keep the one that saves more work", first + 1);
        return Err(CheckError::new(ErrorPath::Operator(second), sentence));
    }
    match operators[..first].iter().position(|operator| operator.kind.is_random()) {
        Some(random) => {
            let place = operator_place(random, &operators[random].kind);
            let seeded = |function: &super::Function| function.seeded;
            let sentence = if operators[random].kind.function().is_none_or(seeded) {
                format!(
                    "{place} before it is random, and every pass would get the same rows; put cache before it"
                )
            } else {
                format!(
                    "the module of {place} before it may change while its rows are kept; say by `version:` which state \
                     of it this is, or put cache before it"
                )
            };
            Err(CheckError::new(ErrorPath::Operator(first), sentence))
        }
        None => Ok(()),
    }
}

/// An operator's own parameters; the sentence comes without its place.
pub(super) fn check_operator(operator: &Operator) -> Result<(), String> {
    if operator.parallelism == Some(0) {
        return Err(
            "parallelism is 0; write at least 1, or leave it out and let the engine choose".to_owned()
        );
    }
    match &operator.kind {
        OperatorKind::DecodeImage(p) => named("column", &p.column),
        OperatorKind::Resize(p) => named("column", &p.column).and_then(|()| sized(p.size)),
        OperatorKind::CenterCrop(p) => {
            named("column", &p.column)?;
            sized(p.size)?;
            p.resize.map_or(Ok(()), |side| within("resize", side, 1, SIDE_MAX))
        }
        OperatorKind::RandomResizedCrop(p) => {
            named("column", &p.column)?;
            sized(p.size)?;
            bounds("scale", p.scale)?;
            bounds("ratio", p.ratio)
        }
        OperatorKind::RandomHorizontalFlip(p) => {
            named("column", &p.column)?;
            if (0.0..=1.0).contains(&p.p) {
                Ok(())
            } else {
                Err(format!("p is {}; write a probability from 0 to 1", p.p))
            }
        }
        OperatorKind::Normalize(p) => {
            named("column", &p.column)?;
            moments(&p.mean, &p.std)?;
            match p.dtype {
                ScalarType::Float16 | ScalarType::Float32 => Ok(()),
                other => Err(format!("dtype is {}; write float32 or float16", other.name())),
            }
        }
        OperatorKind::Cast(p) => named("column", &p.column),
        OperatorKind::Select(p) => selectable(&p.columns),
        OperatorKind::Rename(p) => {
            let mut present = BTreeSet::new();
            if p.columns.is_empty() {
                return Err("columns is empty; write `{new: present}`, or remove this operator".to_owned());
            }
            for (new, old) in &p.columns {
                named("a new name", new)?;
                named("a present name", old)?;
                if !present.insert(old) {
                    return Err(format!("`{old}` is given two new names; keep one of them"));
                }
            }
            Ok(())
        }
        OperatorKind::Filter(p) => written("where", &p.predicate, "an expression, such as `label < 10`"),
        OperatorKind::Tokenize(p) => {
            named("column", &p.column)?;
            written("tokenizer", &p.tokenizer, "the path or URL of a tokenizer.json")?;
            p.output.as_deref().map_or(Ok(()), |output| named("output", output))
        }
        OperatorKind::Truncate(p) => {
            named("column", &p.column).and_then(|()| at_least_one("length", p.length))
        }
        OperatorKind::Pad(p) => named("column", &p.column).and_then(|()| at_least_one("length", p.length)),
        OperatorKind::RecodeJpeg(p) => named("column", &p.column),
        OperatorKind::Cache(_) => Ok(()),
        OperatorKind::Batch(p) => within("size", p.size, 1, BATCH_ROWS_MAX),
        OperatorKind::BucketByLength(p) => bucketable(p),
        OperatorKind::Pack(p) => {
            selectable(&p.columns)?;
            at_least_one("length", p.length)?;
            within("size", p.size, 1, BATCH_ROWS_MAX)?;
            p.window.map_or(Ok(()), windowed)
        }
        OperatorKind::Repeat(p) => at_least_one("count", p.count),
        OperatorKind::Burn(p) => within("cpu_us", p.cpu_us, 0, ROW_SECONDS_MAX * 1_000_000),
        OperatorKind::Wait(p) => within("ms", p.ms, 0, ROW_SECONDS_MAX * 1_000),
        OperatorKind::Map(p) => check_map(p),
        OperatorKind::FilterFunction(p) => check_filter_function(p),
    }
}

fn bucketable(p: &BucketByLength) -> Result<(), String> {
    selectable(&p.columns)?;
    if p.boundaries.is_empty() {
        return Err(
            "boundaries is empty; write the longest length of each bucket, such as [16, 32, 64]".to_owned()
        );
    }
    if p.boundaries[0] == 0 || !p.boundaries.is_sorted_by(|left, right| left < right) {
        return Err(format!("boundaries is {:?}; write positive lengths, the smaller first", p.boundaries));
    }
    let count = p.boundaries.len();
    match p.tokens {
        Some(_) if !p.batch_sizes.is_empty() => {
            return Err("tokens and batch_sizes are both there; keep one of them".to_owned());
        }
        Some(tokens) => {
            let longest = p.boundaries[count - 1];
            if tokens < longest {
                return Err(format!(
                    "tokens is {tokens}, too few for one row of {longest}; write at least {longest}, or a smaller last boundary"
                ));
            }
        }
        None if p.batch_sizes.is_empty() => {
            return Err(format!(
                "there are no sizes; write batch_sizes, a number for each of the {count} buckets, or tokens"
            ));
        }
        None if p.batch_sizes.len() != count && p.batch_sizes.len() != count + 1 => {
            return Err(format!(
                "batch_sizes has {} numbers for {count} boundaries; write {count}, or {} to take longer rows as well",
                p.batch_sizes.len(),
                count + 1
            ));
        }
        None => {}
    }
    p.sizes().into_iter().try_for_each(|size| within("a batch size", size, 1, BATCH_ROWS_MAX))?;
    p.window.map_or(Ok(()), windowed)
}

fn windowed(window: u64) -> Result<(), String> {
    if window >= 1 { Ok(()) } else { Err("window is 0; write at least 1, or leave it out".to_owned()) }
}

pub(super) fn named(field: &str, name: &str) -> Result<(), String> {
    written(field, name, "a column's name")
}

pub(super) fn written(field: &str, text: &str, what: &str) -> Result<(), String> {
    if text.trim().is_empty() { Err(format!("{field} is empty; write {what}")) } else { Ok(()) }
}

fn sized([height, width]: Size) -> Result<(), String> {
    if [height, width].iter().all(|side| (1..=SIDE_MAX).contains(side)) {
        return Ok(());
    }
    Err(format!("size is [{height}, {width}]; write a height and a width from 1 to {SIDE_MAX}"))
}

pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    field: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), String> {
    if value >= least && value <= most {
        return Ok(());
    }
    Err(format!("{field} is {value}; write a number from {least} to {most}"))
}

fn at_least_one(field: &str, value: u32) -> Result<(), String> {
    if value >= 1 { Ok(()) } else { Err(format!("{field} is 0; write at least 1")) }
}

fn bounds(field: &str, [low, high]: [f64; 2]) -> Result<(), String> {
    if low > 0.0 && low <= high && high.is_finite() {
        return Ok(());
    }
    Err(format!("{field} is [{low}, {high}]; write two positive numbers, the smaller first"))
}

fn moments(mean: &[f64], std: &[f64]) -> Result<(), String> {
    if mean.len() != std.len() || mean.is_empty() {
        return Err(format!(
            "mean has {} numbers and std has {}; write one of each per channel, or one of each for all",
            mean.len(),
            std.len()
        ));
    }
    if let Some(bad) = mean.iter().find(|number| !number.is_finite()) {
        return Err(format!("mean contains {bad}; write finite numbers"));
    }
    match std.iter().find(|number| !(**number > 0.0 && number.is_finite())) {
        Some(bad) => Err(format!("std contains {bad}; write numbers above 0")),
        None => Ok(()),
    }
}

fn selectable(columns: &[String]) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    if columns.is_empty() {
        return Err("columns is empty; write at least one column".to_owned());
    }
    for name in columns {
        named("a column", name)?;
        if !seen.insert(name) {
            return Err(format!("column `{name}` is listed twice; keep one"));
        }
    }
    Ok(())
}
