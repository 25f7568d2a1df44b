//! The pipeline that the user defines: a source and operators, ending with a batching operator.
//!
//! [`spec`] defines the types. The other modules parse, check, build and render them.

mod access;
mod builder;
mod check;
mod check_error;
mod column_rules;
mod functions;
mod identity;
mod infer;
mod limits;
mod listed;
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
pub use identity::PipelineId;
pub use infer::infer;
pub use limits::{MAX_FILE_BYTES, MAX_NESTING};
pub use operators::*;
pub use parameter_checks::MAX_COLUMN_NAME_BYTES;
pub use spec::*;
pub(crate) use suggest::{did_you_mean, join_names};
pub use yaml::PipelinePart;

/// An error in a pipeline: one sentence with the invalid part and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct PipelineError {
    /// The message: one sentence, which starts with the file and line if they are known.
    pub message: String,
}

impl PipelineError {
    /// Creates an error with this message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into() }
    }
}
