//! An error of a pipeline check: the faulty part of the pipeline, and one sentence.

use super::{OperatorKind, Pipeline};

/// The part of a pipeline in which a check found an error.
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

/// An error of a check, before the file and line are known.
#[derive(Debug)]
pub(super) struct CheckError {
    pub(super) path: ErrorPath,
    pub(super) sentence: String,
}

impl CheckError {
    pub(super) fn new(path: ErrorPath, sentence: impl Into<String>) -> Self {
        Self { path, sentence: sentence.into() }
    }

    /// The error message without file and line: the path in words, then the sentence.
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

/// `operator 2 (resize)`: messages count operators from 1.
pub(super) fn operator_path(index: usize, kind: &OperatorKind) -> String {
    format!("operator {} ({})", index + 1, kind.name())
}
