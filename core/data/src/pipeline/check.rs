//! What can be checked in a pipeline without knowing the source's columns.

use super::limits::check_limits;
use super::{Operator, OperatorKind, OrderMode, Pipeline, PipelineError, Source};

#[cfg(test)]
mod tests;

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
    operator.kind.definition().check()
}
