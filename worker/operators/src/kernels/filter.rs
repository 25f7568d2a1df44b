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
mod values;

pub(super) use analyze::parse;
use expression::{ExprType, FilterExpr};

/// Checks the expression of a filter against its input columns.
pub fn check_filter(predicate: &str, schema: &Schema) -> Result<(), PipelineError> {
    FilterOperator::new(predicate, schema).map(|_| ()).map_err(PipelineError::new)
}

impl KernelDefinition for Filter {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(FilterOperator::new(&self.predicate, context.input)?))
    }
}

/// Keeps the rows for which an expression is true.
#[derive(Debug)]
pub(crate) struct FilterOperator {
    predicate: FilterExpr,
}

impl FilterOperator {
    pub(crate) fn new(predicate: &str, schema: &Schema) -> Result<Self, String> {
        let typed = analyze::analyze(predicate, schema)?;
        match typed.kind {
            ExprType::Bool | ExprType::Null => Ok(Self { predicate: typed.into_kind(ExprType::Bool).node }),
            other => Err(format!(
                "where: `{predicate}` is {other}, but must be a boolean; write a comparison, such as `label < 10`"
            )),
        }
    }

    /// Returns for each row whether the expression is true. Null counts as false.
    pub(super) fn select_rows(&self, chunk: &Chunk) -> Result<Vec<bool>, OperatorError> {
        let value = evaluate::evaluate(&self.predicate, chunk)?;
        let booleans: &BooleanArray = value.array.as_boolean();
        let is_true = |row: usize| booleans.is_valid(row) && booleans.value(row);
        Ok(if value.is_scalar {
            vec![is_true(0); chunk.rows()]
        } else {
            (0..chunk.rows()).map(is_true).collect()
        })
    }
}

impl OperatorKernel for FilterOperator {
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let selected = self.select_rows(chunk)?;
        chunk.retain(&selected);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
