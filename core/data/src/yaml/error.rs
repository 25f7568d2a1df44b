//! Errors in YAML files, in terms of the file instead of the parser.

use serde_path_to_error::{Path, Segment};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

use super::document::Document;
use super::options::{MAX_DEPTH, MAX_VALUES};
use crate::pipeline::{did_you_mean, join_names};

/// An error in a YAML file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct YamlError {
    /// Counted from 1. `None` if the error is not in one line.
    pub line: Option<usize>,
    /// The path of the field or mapping with the error, such as `operators[2].batch.size`; empty for the whole file.
    pub path: String,
    /// What is wrong.
    pub problem: YamlProblem,
}

/// What is wrong in a YAML file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum YamlProblem {
    /// The file contains no value.
    Empty,
    /// The file contains more than one document.
    SeveralDocuments,
    /// The mapping has a key that does not exist.
    UnknownKey {
        /// The key in the file.
        key: String,
        /// The keys that exist.
        known: Vec<&'static str>,
    },
    /// The mapping has a key twice.
    DuplicateKey(String),
    /// The mapping lacks a key.
    MissingKey(&'static str),
    /// The field has a value that does not exist.
    UnknownValue {
        /// The value in the file.
        value: String,
        /// The values that exist.
        known: Vec<&'static str>,
    },
    /// The field has a value of another type or length.
    WrongType {
        /// The expected value, such as "a whole number".
        expected: String,
        /// The value in the file, such as "text `many`". `None` if the file has further errors.
        actual: Option<String>,
    },
    /// An error of the type of the field, as a sentence.
    Invalid(String),
    /// An error of the file's syntax or size, as a sentence.
    Syntax(String),
}

impl YamlError {
    pub(super) fn empty() -> Self {
        Self { line: None, path: String::new(), problem: YamlProblem::Empty }
    }

    pub(super) fn new(error: &Error, path: Option<&Path>, document: Option<&Document>) -> Self {
        let value = path.zip(document).and_then(|(path, document)| document.value_at(path));
        let reported = error.location().and_then(|location| usize::try_from(location.line()).ok());
        let error = unwrapped(error);
        // The parser reports these errors at the mapping around the value.
        let line = match error {
            Error::SerdeInvalidLength { .. } | Error::SerdeMissingField { .. } => {
                value.map(|value| value.line).or(reported)
            }
            _ => reported.filter(|line| *line > 0).or(value.map(|value| value.line)),
        };
        let problem = problem(error, value.map(|value| value.description.clone()));
        let has_key = matches!(problem, YamlProblem::UnknownKey { .. });
        let path = path.map(|path| path_of_mapping(path, has_key)).unwrap_or_default();
        Self { line, path, problem }
    }

    /// The error as `file:line: sentence`.
    pub fn message(&self, file: &str) -> String {
        self.locate(file, &self.sentence(&self.path))
    }

    /// Puts the file and the line before a sentence.
    pub(crate) fn locate(&self, file: &str, sentence: &str) -> String {
        match self.line {
            Some(line) => format!("{file}:{line}: {sentence}"),
            None => format!("{file}: {sentence}"),
        }
    }

    /// Describes the error. `field` is the name of the field or mapping in the sentence.
    pub(crate) fn sentence(&self, field: &str) -> String {
        let in_mapping = if self.path.is_empty() { String::new() } else { format!(" in {field}") };
        let field = if field.is_empty() { "the file" } else { field };
        match &self.problem {
            YamlProblem::Empty => "the file is empty; write a mapping with the required keys".to_owned(),
            YamlProblem::SeveralDocuments => {
                "the file contains several YAML documents; keep one document and remove the second `---`"
                    .to_owned()
            }
            YamlProblem::UnknownKey { key, known } => {
                format!("unknown key `{key}`{in_mapping}{}", hint(key, known))
            }
            YamlProblem::DuplicateKey(key) => {
                format!("key `{key}` appears twice{in_mapping}; remove one of them")
            }
            YamlProblem::MissingKey(key) => format!("{field} has no key `{key}`; add the key"),
            YamlProblem::UnknownValue { value, known } => {
                format!("unknown {field} `{value}`{}", hint(value, known))
            }
            YamlProblem::WrongType { expected, actual: Some(actual) } if is_blank(expected, actual) => {
                format!("{field} must be {expected}, got nothing; remove the key, or add its content")
            }
            YamlProblem::WrongType { expected, actual: None } => format!("{field} must be {expected}"),
            YamlProblem::WrongType { expected, actual: Some(actual) } => {
                format!("{field} must be {expected}, got {actual}")
            }
            YamlProblem::Invalid(sentence) if !self.path.is_empty() => format!("{field}: {sentence}"),
            YamlProblem::Invalid(sentence) | YamlProblem::Syntax(sentence) => sentence.clone(),
        }
    }
}

/// Whether a list or mapping has no content, for example because its lines are comments.
fn is_blank(expected: &str, actual: &str) -> bool {
    actual == "nothing" && ["a list", "a mapping"].contains(&expected)
}

/// Suggests a known name, and lists all of them.
pub(crate) fn hint(name: &str, known: &[&str]) -> String {
    let hint = did_you_mean(name, known.iter().copied());
    let names = join_names(known.iter().copied());
    if hint.is_empty() { format!("; known: {names}") } else { format!("{hint} (known: {names})") }
}

/// Removes the wrappers for aliases and snippets.
fn unwrapped(mut error: &Error) -> &Error {
    while let Error::AliasError { error: inner, .. } | Error::WithSnippet { error: inner, .. } = error {
        error = inner;
    }
    error
}

/// The path without keys that cannot be read, and without the last key if it is unknown.
fn path_of_mapping(path: &Path, ends_with_unknown_key: bool) -> String {
    let mut segments: Vec<&Segment> =
        path.iter().filter(|segment| !matches!(segment, Segment::Unknown)).collect();
    if ends_with_unknown_key {
        segments.pop();
    }
    let mut text = String::new();
    for segment in segments {
        if !text.is_empty() && !matches!(segment, Segment::Seq { .. }) {
            text.push('.');
        }
        text += &segment.to_string();
    }
    text
}

fn problem(error: &Error, actual: Option<String>) -> YamlProblem {
    let wrong_type = |expected: String| YamlProblem::WrongType { expected, actual: actual.clone() };
    let syntax = |sentence: &str| YamlProblem::Syntax(sentence.to_owned());
    match error {
        Error::MultipleDocuments { .. } => YamlProblem::SeveralDocuments,
        Error::SerdeUnknownField { field, expected, .. } => {
            YamlProblem::UnknownKey { key: field.clone(), known: expected.clone() }
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            YamlProblem::UnknownValue { value: variant.clone(), known: expected.clone() }
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => YamlProblem::DuplicateKey(key.clone()),
        Error::SerdeMissingField { field, .. } => YamlProblem::MissingKey(field),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            wrong_type(expected_value(expected))
        }
        Error::SerdeInvalidLength { len, expected, .. } => YamlProblem::WrongType {
            expected: expected_value(expected),
            actual: Some(format!("a list of length {len}")),
        },
        Error::InvalidScalar { ty, .. } => wrong_type(expected_value(ty)),
        Error::InvalidBooleanStrict { .. } => wrong_type("true or false".to_owned()),
        Error::Unexpected { expected, .. } => wrong_type(expected_value(expected)),
        Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. } => wrong_type("a name".to_owned()),
        Error::MergeKeyNotAllowed { .. } => {
            syntax("merge keys (`<<`) are not supported; write the keys in each mapping")
        }
        Error::UnsupportedTag { tag, .. } => YamlProblem::Syntax(format!(
            "the tag `{tag}` is not supported; remove it, or put the text in quotes"
        )),
        Error::UnknownAnchor { .. } => syntax(
            "the alias has no anchor; define the anchor with `&` before the alias, or put the text in quotes",
        ),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => too_deep(),
        Error::ExternalMessage { msg, .. } if msg.contains("recursion limit") => too_deep(),
        Error::Budget { .. } | Error::AliasReplayLimitExceeded { .. } => YamlProblem::Syntax(format!(
            "the file has more than {MAX_VALUES} values after alias expansion; write fewer values, and use fewer aliases"
        )),
        Error::Message { msg, .. } => YamlProblem::Invalid(msg.clone()),
        Error::ExternalMessage { msg, .. } if msg.contains("tab") && msg.contains("indentation") => {
            syntax("the line is indented with a tab, which YAML does not allow; use spaces")
        }
        _ => YamlProblem::Syntax(format!(
            "invalid YAML: {}; check the brackets, quotes and indentation of this line and the previous lines",
            UserMessageFormatter.format_message(error)
        )),
    }
}

fn too_deep() -> YamlProblem {
    YamlProblem::Syntax(format!(
        "lists and mappings are nested more than {MAX_DEPTH} levels deep; write fewer levels"
    ))
}

/// Describes the expectation of a deserializer in terms of the file.
fn expected_value(expected: &str) -> String {
    match expected {
        "u32" => format!("a whole number from 0 to {}", u32::MAX),
        "u64" => format!("a whole number from 0 to {}", u64::MAX),
        "i64" => "a whole number".to_owned(),
        "f64" | "floating point" => "a number".to_owned(),
        "a string" => "text".to_owned(),
        "string scalar" => "a single value".to_owned(),
        "a sequence" | "sequence start" => "a list".to_owned(),
        "a boolean" | "boolean" => "true or false".to_owned(),
        "a map" | "mapping start" => "a mapping".to_owned(),
        other if other.starts_with("struct ") => "a mapping".to_owned(),
        other => match other.rsplit_once(' ') {
            Some(("an array of length" | "a tuple of size", length)) => format!("a list of length {length}"),
            _ => other.to_owned(),
        },
    }
}
