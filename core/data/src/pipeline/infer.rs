//! Checks a pipeline against the columns of its source, and infers the columns after each operator.

use super::check::check_operator;
use super::check_error::operator_path;
use super::{Pipeline, PipelineError};
use crate::schema::Schema;

#[cfg(test)]
mod tests;

/// Returns the columns after the source and after each operator: `operators.len() + 1` schemas.
///
/// Also checks the parameters of each operator. [`Pipeline::check`] checks the pipeline as a whole, such as the batching
/// operator at the end.
///
/// # Errors
/// Returns a message that names the operator and the fix.
pub fn infer(pipeline: &Pipeline, source: &Schema) -> Result<Vec<Schema>, PipelineError> {
    let mut schemas = Vec::with_capacity(pipeline.operators.len() + 1);
    schemas.push(source.clone());
    for (index, operator) in pipeline.operators.iter().enumerate() {
        let output = check_operator(operator)
            .and_then(|()| operator.kind.definition().infer(&schemas[index]))
            .map_err(|sentence| {
                PipelineError::new(format!("{}: {sentence}", operator_path(index, &operator.kind)))
            })?;
        schemas.push(output);
    }
    Ok(schemas)
}
