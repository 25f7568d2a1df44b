//! Checks of a pipeline that do not need the columns of the source.

mod graph;
mod kafka;

use self::graph::{check_graph_source, check_sampling};
use self::kafka::{check_kafka, check_unbounded};
use super::check_error::{CheckError, ErrorPath, operator_path};
use super::limits::check_limits;
use super::{Format, Operator, OperatorKind, OrderMode, Pipeline, PipelineError, Source};

#[cfg(test)]
mod tests;

/// Maximum number of datasets in a mix.
const MAX_MIX_DATASETS: usize = 64;
/// Minimum and maximum weight of a dataset. With more extreme weights, a dataset would almost never contribute a row.
const MIN_WEIGHT: f64 = 1e-6;
const MAX_WEIGHT: f64 = 1e6;

impl Pipeline {
    /// Checks everything that does not depend on the source's columns; [`infer`](super::infer()) checks the rest.
    ///
    /// # Errors
    /// Returns a message that names the invalid part and the fix.
    pub fn check(&self) -> Result<(), PipelineError> {
        self.first_error().map_or(Ok(()), |error| Err(PipelineError::new(error.message(self))))
    }

    /// Returns the first error in the pipeline.
    pub(super) fn first_error(&self) -> Option<CheckError> {
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
    check_operators(&pipeline.operators)?;
    check_unbounded(pipeline)?;
    check_sampling(pipeline)?;
    check_order(pipeline)
}

/// Rejects relaxed order for coordinated batches, which need steps that all consumers share.
fn check_order(pipeline: &Pipeline) -> Result<(), CheckError> {
    if pipeline.order == OrderMode::Deterministic || !pipeline.is_coordinated() {
        return Ok(());
    }
    let last = pipeline.operators.len() - 1;
    let sentence = "the operator requires steps shared by all consumers, which `order: relaxed` does not provide; use `order: deterministic`";
    Err(CheckError::new(ErrorPath::Operator(last), sentence))
}

fn check_name(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("the pipeline name is empty; set a name, such as `imagenet-train`".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    match name.chars().find(|&c| !allowed(c)) {
        Some(c) => {
            Err(format!("invalid name `{name}`: {c:?} is not allowed; use letters, digits, `_`, `.` and `-`"))
        }
        None => Ok(()),
    }
}

/// Checks the source, or each dataset of a mix. Mixes cannot be nested.
fn check_sources(source: &Source) -> Result<(), CheckError> {
    let Some(mix) = &source.mix else { return check_source(source) };
    let error = |sentence: String| CheckError::new(ErrorPath::Source("mix"), sentence);
    if mix.parts.is_empty() {
        return Err(error("the list is empty; add at least one dataset with url and format".to_owned()));
    }
    if mix.parts.len() > MAX_MIX_DATASETS {
        let parts = mix.parts.len();
        return Err(error(format!(
            "{parts} datasets exceed the limit of {MAX_MIX_DATASETS}; merge some into one dataset with a list of urls"
        )));
    }
    for (number, part) in (1..).zip(&mix.parts) {
        if !(MIN_WEIGHT..=MAX_WEIGHT).contains(&part.weight) {
            return Err(error(format!(
                "the weight of dataset {number} is {}; expected a number from {MIN_WEIGHT} to {MAX_WEIGHT}",
                part.weight
            )));
        }
        if part.source.mix.is_some() {
            return Err(error(format!(
                "dataset {number} is a mix, but mixes cannot be nested; list its datasets in the outer mix"
            )));
        }
        if part.source.commit_group().is_some() {
            return Err(error(format!(
                "dataset {number} has a `commit_group`, which applies to a source that is not part of a mix; remove it"
            )));
        }
        check_source(&part.source).map_err(|cause| error(format!("dataset {number}: {}", cause.sentence)))?;
    }
    Ok(())
}

fn check_source(source: &Source) -> Result<(), CheckError> {
    if source.url.is_empty() {
        return Err(CheckError::new(
            ErrorPath::Source("url"),
            "the list is empty; add at least one path, glob or URL",
        ));
    }
    if source.url.iter().any(|url| url.trim().is_empty()) {
        return Err(CheckError::new(
            ErrorPath::Source("url"),
            "an entry is empty; write a path, glob or URL, or remove the entry",
        ));
    }
    for (key, value) in [("config", &source.config), ("split", &source.split)] {
        if value.is_some() && source.format != Format::HuggingFace {
            let format = source.format.name();
            let sentence = format!(
                "the format {format} has no {key}; remove `{key}`, or use `format: huggingface` for a dataset of Hugging Face"
            );
            return Err(CheckError::new(ErrorPath::Source(key), sentence));
        }
    }
    if source.compression.is_some() && !source.format.has_compressed_files() {
        let format = source.format.name();
        let sentence = format!(
            "files of the format {format} are not compressed as a whole; remove `compression`, which is for tfrecord, webdataset, jsonl, csv \
             and text"
        );
        return Err(CheckError::new(ErrorPath::Source("compression"), sentence));
    }
    for (column, data_name) in &source.features {
        if column.is_empty() || data_name.is_empty() {
            return Err(CheckError::new(
                ErrorPath::Source("features"),
                format!("`{column}: {data_name}` has an empty name; write `column: name in the data`"),
            ));
        }
    }
    check_graph_source(source)?;
    check_kafka(source)
}

/// Checks that the last operator is the only batching operator, that there is at most one `repeat`, and that the position of
/// the `cache` is valid.
fn check_operators(operators: &[Operator]) -> Result<(), CheckError> {
    let indexes_of = |accepts: &dyn Fn(&OperatorKind) -> bool| -> Vec<usize> {
        (0..operators.len()).filter(|&index| accepts(&operators[index].kind)).collect()
    };
    if let [first, second, ..] = indexes_of(&|kind| matches!(kind, OperatorKind::Repeat(_)))[..] {
        let sentence = format!(
            "operator {} is already a repeat; keep one repeat with the product of the counts",
            first + 1
        );
        return Err(CheckError::new(ErrorPath::Operator(second), sentence));
    }
    check_cache(operators, &indexes_of(&|kind| matches!(kind, OperatorKind::Cache(_))))?;
    let last = operators.len().saturating_sub(1);
    let name = |index: usize| operators[index].kind.name();
    match indexes_of(&OperatorKind::is_batching)[..] {
        [] => Err(CheckError::new(
            ErrorPath::Operators,
            "the pipeline has no batching operator; end the list with `- batch: {size: 128}`",
        )),
        [only] if only == last => Ok(()),
        [only] => {
            let name = name(only);
            let sentence = format!(
                "{name} must be the last operator, but other operators follow; move {name} to the end"
            );
            Err(CheckError::new(ErrorPath::Operator(only), sentence))
        }
        [first, second, ..] => {
            let sentence = format!(
                "operator {} ({}) also forms batches; keep only the batching operator at the end",
                second + 1,
                name(second)
            );
            Err(CheckError::new(ErrorPath::Operator(first), sentence))
        }
    }
}

/// Checks that there is at most one `cache`, and that no operator before the cache is random, because each pass must draw
/// new random values.
fn check_cache(operators: &[Operator], caches: &[usize]) -> Result<(), CheckError> {
    let Some(&first) = caches.first() else { return Ok(()) };
    if let Some(&second) = caches.get(1) {
        let sentence =
            format!("operator {} is already a cache; keep only the cache that saves more work", first + 1);
        return Err(CheckError::new(ErrorPath::Operator(second), sentence));
    }
    let Some(random) = operators[..first].iter().position(|operator| operator.kind.is_random()) else {
        return Ok(());
    };
    let kind = &operators[random].kind;
    let path = operator_path(random, kind);
    let sentence = if kind.function().is_none_or(|function| function.seeded) {
        format!(
            "{path} is random: a cache after it would replay the same random values in every pass; move cache before {path}"
        )
    } else {
        format!(
            "the Python module of {path} may change while its rows are cached; identify the module's state with `version:`, \
            or move cache before {path}"
        )
    };
    Err(CheckError::new(ErrorPath::Operator(first), sentence))
}

/// Checks an operator's own parameters. The error does not name the operator.
pub(super) fn check_operator(operator: &Operator) -> Result<(), String> {
    if operator.parallelism == Some(0) {
        return Err("parallelism is 0; set it to at least 1, or omit `parallelism` to let the engine choose"
            .to_owned());
    }
    operator.kind.definition().check()
}
