//! The pipeline: a serialisable graph from source to batch, as the user writes it.
//!
//! [`spec`] holds the types; parsing, checking and building them live beside it.

mod access;
mod builder;
mod check;
mod column_rules;
mod functions;
mod infer;
mod limits;
mod operator_serde;
mod operators;
mod parameter_checks;
mod reads;
mod render;
mod source_serde;
pub mod spec;
#[cfg(test)]
mod strategies;
mod suggest;
mod yaml;

pub use builder::PipelineBuilder;
pub use infer::infer;
pub use limits::{MAX_COLUMN_NAME_BYTES, MAX_FILE_BYTES, MAX_NESTING};
pub use operators::*;
pub use spec::*;
pub(crate) use suggest::{did_you_mean, listed};

/// Why a pipeline was refused: one sentence with the place and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PipelineError {
    /// The sentence.
    pub message: String,
}

impl PipelineError {
    /// An error with this sentence.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
