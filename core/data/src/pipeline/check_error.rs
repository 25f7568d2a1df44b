//! The error of a pipeline check: the invalid part of the pipeline and a one-sentence message.

use super::{OperatorKind, Pipeline};

/// The part of a pipeline in which a check found an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ErrorPath {
    /// The name of the pipeline.
    Name,
    /// A field of the source.
    Source(&'static str),
    /// The list of operators.
    Operators,
    /// The operator at this index, from 0.
    Operator(usize),
}

/// A check error without the file and line, which are not known yet.
#[derive(Debug)]
pub(super) struct CheckError {
    pub(super) path: ErrorPath,
    pub(super) sentence: String,
}

impl CheckError {
    pub(super) fn new(path: ErrorPath, sentence: impl Into<String>) -> Self {
        Self { path, sentence: sentence.into() }
    }

    /// Formats the error without file and line: the invalid part, then the sentence.
    pub(super) fn message(&self, pipeline: &Pipeline) -> String {
        let sentence = &self.sentence;
        match self.path {
            ErrorPath::Name => format!("name: {sentence}"),
            ErrorPath::Source(field) => format!("source.{field}: {sentence}"),
            ErrorPath::Operators => format!("operators: {sentence}"),
            ErrorPath::Operator(index) => match pipeline.operators.get(index) {
                Some(operator) => format!("{}: {sentence}", operator_path(index, &operator.kind)),
                None => format!("operator {}: {sentence}", index + 1),
            },
        }
    }
}

/// Describes an operator in messages, such as `operator 2 (resize)`. Messages count operators from 1.
pub(super) fn operator_path(index: usize, kind: &OperatorKind) -> String {
    format!("operator {} ({})", index + 1, kind.name())
}
