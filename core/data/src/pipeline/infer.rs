//! Checks a pipeline against its source's columns and infers the columns after each operator.

use super::check::{check_operator, operator_place};
use super::{Pipeline, PipelineError};
use crate::schema::Schema;

#[cfg(test)]
mod tests;

/// The columns after the source and after each operator: `operators.len() + 1` schemas.
///
/// Each operator's own parameters are checked too; what concerns the pipeline as a whole (a batch at the end, one
/// repeat) is [`Pipeline::check`]'s.
pub fn infer(pipeline: &Pipeline, source: &Schema) -> Result<Vec<Schema>, PipelineError> {
    let mut schemas = Vec::with_capacity(pipeline.operators.len() + 1);
    schemas.push(source.clone());
    for (index, operator) in pipeline.operators.iter().enumerate() {
        let output = check_operator(operator)
            .and_then(|()| operator.kind.definition().infer(&schemas[index]))
            .map_err(|sentence| {
                PipelineError::new(format!("{}: {sentence}", operator_place(index, &operator.kind)))
            })?;
        schemas.push(output);
    }
    Ok(schemas)
}
