//! Reads and writes pipeline files. Errors name file and line, and the nearest known name.

use serde_yaml_ng::Value;

use super::check::ErrorPath;
use super::{Pipeline, PipelineError};

mod lines;
mod sentence;
mod size;
#[cfg(test)]
mod tests;

impl Pipeline {
    /// Reads a pipeline file and [checks](Pipeline::check) it. `file` is the name shown in errors, which are one
    /// sentence such as ``pipeline.yaml:7: unknown key `siez` in batch; did you mean `size`?``.
    pub fn from_yaml(text: &str, file: &str) -> Result<Self, PipelineError> {
        size::check(text).map_err(|sentence| placed(file, None, &sentence))?;
        check_document(text, file)?;
        let pipeline: Self = serde_yaml_ng::from_str(text).map_err(|error| refused(&error, text, file))?;
        match pipeline.refusal() {
            None => Ok(pipeline),
            Some(refusal) => {
                let line = match refusal.place {
                    ErrorPath::Name => lines::of_key(text, "name"),
                    ErrorPath::Source(field) => lines::of_nested_key(text, "source", field),
                    ErrorPath::Operators => lines::of_key(text, "operators"),
                    ErrorPath::Operator(index) => {
                        lines::of_entry(text, "operators", index, pipeline.operators.len())
                    }
                };
                Err(placed(file, line, &refusal.text(&pipeline)))
            }
        }
    }

    /// The pipeline as a file that [`Pipeline::from_yaml`] reads back to an equal one.
    pub fn to_yaml(&self) -> String {
        serde_yaml_ng::to_string(self)
            .expect("a pipeline holds only text, numbers, lists and text-keyed maps")
    }
}

/// Refuses what is no single mapping, or gives a key twice anywhere: serde would let the last of two features win.
fn check_document(text: &str, file: &str) -> Result<(), PipelineError> {
    let document = match serde_yaml_ng::from_str::<Value>(text) {
        Ok(document) => document,
        Err(error) => return Err(refused(&error, text, file)),
    };
    let found = match document {
        Value::Mapping(_) => return Ok(()),
        Value::Null => {
            return Err(placed(file, None, "the file is empty; write at least name, source and operators"));
        }
        Value::Sequence(_) => "a list",
        Value::Tagged(_) => "a tagged value",
        Value::Bool(_) | Value::Number(_) | Value::String(_) => "a single value",
    };
    let sentence =
        format!("a pipeline is a mapping with the keys name, source and operators, but this is {found}");
    Err(placed(file, lines::first_of_content(text), &sentence))
}

/// A parser's error as a sentence with file and line.
fn refused(error: &serde_yaml_ng::Error, text: &str, file: &str) -> PipelineError {
    let line = error.location().map(|location| location.line());
    if let Some(tabbed) = line.and_then(|line| lines::tab_indented(text, line)) {
        return placed(file, Some(tabbed), "the line is indented with a tab, which YAML forbids; use spaces");
    }
    let told = sentence::tell(&error.to_string());
    let line = match (&told.repeated_key, line) {
        (Some(key), Some(line)) => lines::second_of_key(text, line, key).or(Some(line)),
        (_, line) => line,
    };
    placed(file, line, &told.sentence)
}

fn placed(file: &str, line: Option<usize>, sentence: &str) -> PipelineError {
    match line {
        Some(line) => PipelineError::new(format!("{file}:{line}: {sentence}")),
        None => PipelineError::new(format!("{file}: {sentence}")),
    }
}
