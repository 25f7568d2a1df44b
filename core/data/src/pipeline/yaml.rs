//! Reads and writes pipeline files. Errors name the file and line, and suggest known names.

use super::check_error::ErrorPath;
use super::limits::MAX_FILE_BYTES;
use super::{BENCHMARK_OPERATORS, OPERATOR_NAMES, Pipeline, PipelineError};
use crate::yaml::{self, Document, YamlError, YamlProblem};

#[cfg(test)]
mod tests;

/// A part of a pipeline file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PipelinePart {
    /// A top-level key.
    Key(&'static str),
    /// A key of the source.
    Source(&'static str),
    /// The operator at this index, from 0.
    Operator(usize),
}

impl Pipeline {
    /// Parses a pipeline file and [checks](Pipeline::check) the pipeline. `file` is the file name in error messages.
    ///
    /// # Errors
    /// Returns a message such as ``pipeline.yaml:7: unknown key `siez` in batch; did you mean `size`?``.
    pub fn from_yaml(text: &str, file: &str) -> Result<Self, PipelineError> {
        if text.len() > MAX_FILE_BYTES {
            return Err(PipelineError::new(format!(
                "{file}: the file is {} bytes long; the limit is {MAX_FILE_BYTES} bytes; use globs, prefixes or braces in URLs",
                text.len()
            )));
        }
        let pipeline: Self =
            yaml::parse(text).map_err(|error| PipelineError::new(error.locate(file, &sentence(&error))))?;
        match pipeline.first_error() {
            None => Ok(pipeline),
            Some(error) => {
                let line = Document::parse(text).and_then(|document| line_of(&document, &error.path));
                let line = line.map(|line| format!(":{line}")).unwrap_or_default();
                Err(PipelineError::new(format!("{file}{line}: {}", error.message(&pipeline))))
            }
        }
    }

    /// Returns the line of a part of this pipeline in the text of its file, counted from 1. Returns `None` if the file is
    /// not written in block style.
    pub fn line_in(&self, text: &str, part: PipelinePart) -> Option<usize> {
        let document = Document::parse(text)?;
        match part {
            PipelinePart::Key(key) => document.line_of_key(key),
            PipelinePart::Source(field) => {
                let line = document.value_of_key("source").and_then(|source| source.line_of_key(field));
                line.or_else(|| document.line_of_key("source"))
            }
            PipelinePart::Operator(index) => {
                document.value_of_key("operators")?.item(index).map(|operator| operator.line)
            }
        }
    }

    /// Returns the pipeline as YAML. [`Pipeline::from_yaml`] parses it back to an equal pipeline.
    pub fn to_yaml(&self) -> String {
        yaml::format(self).expect("a pipeline contains only text, numbers, lists and text-keyed maps")
    }
}

/// The line of a part of a pipeline.
fn line_of(document: &Document, path: &ErrorPath) -> Option<usize> {
    match path {
        ErrorPath::Name => document.line_of_key("name"),
        ErrorPath::Source(field) => {
            let line = document.value_of_key("source").and_then(|source| source.line_of_key(field));
            line.or_else(|| document.line_of_key("source"))
        }
        ErrorPath::Operators => document.line_of_key("operators"),
        ErrorPath::Operator(index) => {
            document.value_of_key("operators")?.item(*index).map(|operator| operator.line)
        }
    }
}

/// Describes an error with the names of operators and their parameters.
fn sentence(error: &YamlError) -> String {
    let mut error = error.clone();
    let field = field_name(&error.path).to_owned();
    let operator = operator_of(&error.path).map(str::to_owned);
    let is_operator = operator.is_some();
    match &mut error.problem {
        YamlProblem::Invalid(sentence) => return sentence.clone(),
        YamlProblem::Empty => {
            return "the file is empty; add at least name, source and operators".to_owned();
        }
        YamlProblem::WrongType { actual, .. } if error.path.is_empty() => {
            let kind = match actual.as_deref() {
                Some("a list") => "a list",
                Some("a mapping") | None => "an invalid value",
                Some(_) => "a single value",
            };
            return format!(
                "the file contains {kind}; write a mapping with the keys name, source and operators"
            );
        }
        YamlProblem::WrongType { expected, actual } => {
            if expected.starts_with("an operator with") {
                let actual = actual.as_deref().unwrap_or("another value");
                return format!("an entry of operators must be {expected}, got {actual}");
            }
            if let (Some(name), Some("nothing")) = (&operator, actual.as_deref()) {
                return format!(
                    "{name} has no parameters; indent them below {name}, or write `- {name}: {{...}}`"
                );
            }
            if let Some(pair) = expected_pair(&field, expected) {
                *expected = pair.to_owned();
            }
        }
        YamlProblem::MissingKey(_) if error.path.is_empty() => return error.sentence("the pipeline"),
        YamlProblem::UnknownKey { known, .. } if is_operator && !known.contains(&"parallelism") => {
            known.push("parallelism");
        }
        YamlProblem::UnknownValue { known, .. } if known == OPERATOR_NAMES => {
            known.retain(|name| !BENCHMARK_OPERATORS.contains(name));
            return error.sentence("operator");
        }
        _ => {}
    }
    error.sentence(&field)
}

/// Describes parameters that are pairs of numbers.
fn expected_pair(field: &str, expected: &str) -> Option<&'static str> {
    let is_pair = matches!(expected, "a list" | "a list of length 2");
    match field.rsplit('.').next() {
        Some("size") if is_pair => Some("[height, width], such as [224, 224]"),
        Some("scale" | "ratio") if is_pair => Some("[smallest, largest], such as [0.5, 1.0]"),
        _ => None,
    }
}

/// Returns the name of a field for messages: `batch.size` for the path `operators[2].batch.size`.
fn field_name(path: &str) -> &str {
    match path.split_once("].") {
        Some((list, inside)) if list.starts_with("operators[") => inside,
        _ => path,
    }
}

/// Returns the operator with parameters at this path.
fn operator_of(path: &str) -> Option<&str> {
    let (list, name) = path.split_once("].")?;
    (list.starts_with("operators[") && OPERATOR_NAMES.contains(&name)).then_some(name)
}
