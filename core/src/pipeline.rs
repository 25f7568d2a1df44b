//! The pipeline: a serialisable graph from source to batch, as the user writes it.
//!
//! [`spec`] holds the types; parsing, checking and building them live beside it.

mod access;
mod builder;
mod check;
mod infer;
mod operator_serde;
mod render;
pub mod spec;
#[cfg(test)]
mod strategies;
mod suggest;
mod yaml;

pub use builder::PipelineBuilder;
pub use infer::infer;
pub use operator_serde::OPERATOR_NAMES;
pub use spec::*;

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
