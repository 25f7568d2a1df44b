//! `filter`: keeps the rows for which an SQL expression is true.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray};
use feedline_data::pipeline::{Filter, PipelineError};
use feedline_data::schema::Schema;

use super::{KernelContext, KernelDefinition};
use crate::{Chunk, OperatorError, OperatorKernel, OutputBuffers};

mod analyze;
mod calls;
mod evaluate;
mod expression;
mod functions;
mod numeric;

use expression::{ExprType, FilterExpr};

/// Checks a filter's expression against the columns it will see: the error is one sentence.
pub fn check_filter(predicate: &str, schema: &Schema) -> Result<(), PipelineError> {
    FilterOperator::new(predicate, schema).map(|_| ()).map_err(PipelineError::new)
}

impl KernelDefinition for Filter {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(FilterOperator::new(&self.predicate, context.input)?))
    }
}

/// Keeps rows by an expression.
#[derive(Debug)]
pub(crate) struct FilterOperator {
    predicate: FilterExpr,
}

impl FilterOperator {
    pub(crate) fn new(predicate: &str, schema: &Schema) -> Result<Self, String> {
        let typed = analyze::analyze(predicate, schema)?;
        match typed.kind {
            ExprType::Bool | ExprType::Null => Ok(Self { predicate: typed.into_kind(ExprType::Bool).node }),
            other => {
                Err(format!("where: `{predicate}` is {other}, not true or false; compare it with something"))
            }
        }
    }

    /// The rows for which the expression is true; null counts as false.
    fn kept(&self, chunk: &Chunk) -> Result<Vec<bool>, OperatorError> {
        let value = evaluate::evaluate(&self.predicate, chunk)?;
        let truth: &BooleanArray = value.array.as_boolean();
        let is_kept = |row: usize| truth.is_valid(row) && truth.value(row);
        Ok(if value.is_scalar {
            vec![is_kept(0); chunk.rows()]
        } else {
            (0..chunk.rows()).map(is_kept).collect()
        })
    }
}

impl OperatorKernel for FilterOperator {
    fn apply(&self, chunk: &mut Chunk, _slots: &mut OutputBuffers) -> Result<(), OperatorError> {
        let kept = self.kept(chunk)?;
        chunk.retain(&kept);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
