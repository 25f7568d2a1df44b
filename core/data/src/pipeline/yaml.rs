//! Reads and writes pipeline files. Errors name the file and line, and suggest known names.

use serde_yaml_ng::Value;

use super::check_error::ErrorPath;
use super::{Pipeline, PipelineError};

mod lines;
mod sentence;
mod size;
#[cfg(test)]
mod tests;

impl Pipeline {
    /// Parses a pipeline file and [checks](Pipeline::check) the pipeline. `file` is the file name in error messages.
    ///
    /// # Errors
    /// Returns a message such as ``pipeline.yaml:7: unknown key `siez` in batch; did you mean `size`?``.
    pub fn from_yaml(text: &str, file: &str) -> Result<Self, PipelineError> {
        size::check(text).map_err(|sentence| error_at(file, None, &sentence))?;
        check_document(text, file)?;
        let pipeline: Self =
            serde_yaml_ng::from_str(text).map_err(|error| parser_error(&error, text, file))?;
        match pipeline.first_error() {
            None => Ok(pipeline),
            Some(error) => {
                let line = match error.path {
                    ErrorPath::Name => lines::line_of_key(text, "name"),
                    ErrorPath::Source(field) => lines::line_of_nested_key(text, "source", field),
                    ErrorPath::Operators => lines::line_of_key(text, "operators"),
                    ErrorPath::Operator(index) => {
                        lines::line_of_entry(text, "operators", index, pipeline.operators.len())
                    }
                };
                Err(error_at(file, line, &error.message(&pipeline)))
            }
        }
    }

    /// Returns the pipeline as YAML. [`Pipeline::from_yaml`] parses it back to an equal pipeline.
    pub fn to_yaml(&self) -> String {
        serde_yaml_ng::to_string(self)
            .expect("a pipeline contains only text, numbers, lists and text-keyed maps")
    }
}

/// Checks that the document is a mapping without duplicate keys. Deserializing the pipeline would accept duplicate features.
fn check_document(text: &str, file: &str) -> Result<(), PipelineError> {
    let document = match serde_yaml_ng::from_str::<Value>(text) {
        Ok(document) => document,
        Err(error) => return Err(parser_error(&error, text, file)),
    };
    let kind = match document {
        Value::Mapping(_) => return Ok(()),
        Value::Null => {
            return Err(error_at(file, None, "the file is empty; add at least name, source and operators"));
        }
        Value::Sequence(_) => "a list",
        Value::Tagged(_) => "a tagged value",
        Value::Bool(_) | Value::Number(_) | Value::String(_) => "a single value",
    };
    let sentence =
        format!("the file contains {kind}; write a mapping with the keys name, source and operators");
    Err(error_at(file, lines::first_content_line(text), &sentence))
}

/// Converts a parser error to a sentence with file and line.
fn parser_error(error: &serde_yaml_ng::Error, text: &str, file: &str) -> PipelineError {
    let line = error.location().map(|location| location.line());
    if let Some(tabbed) = line.and_then(|line| lines::line_indented_with_tab(text, line)) {
        return error_at(
            file,
            Some(tabbed),
            "the line is indented with a tab, which YAML does not allow; use spaces",
        );
    }
    let message = sentence::describe_parser_error(&error.to_string());
    let line = match (&message.repeated_key, line) {
        (Some(key), Some(line)) => lines::second_line_of_key(text, line, key).or(Some(line)),
        (_, line) => line,
    };
    error_at(file, line, &message.sentence)
}

fn error_at(file: &str, line: Option<usize>, sentence: &str) -> PipelineError {
    match line {
        Some(line) => PipelineError::new(format!("{file}:{line}: {sentence}")),
        None => PipelineError::new(format!("{file}: {sentence}")),
    }
}
