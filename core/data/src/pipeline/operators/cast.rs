//! `cast`: converts the element type of a column.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{require_column_type, with_column_type};
use crate::pipeline::parameter_checks::check_column;
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `cast`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cast {
    /// Column of scalars, lists or tensors, or of text that contains numbers.
    pub column: String,
    /// New element type.
    pub dtype: ScalarType,
}

impl OperatorDefinition for Cast {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let needs = "scalars, lists, tensors or text";
        let found =
            require_column_type(input, &self.column, needs, |t| cast(t, self.dtype).is_some(), |_| "")?;
        let output = cast(found, self.dtype).unwrap_or_else(|| found.clone());
        Ok(with_column_type(input, &self.column, output))
    }

    fn summary(&self) -> String {
        format!("{} to {}", self.column, self.dtype.name())
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Converts a column's element type.
    pub fn cast(self, column: impl Into<String>, dtype: ScalarType) -> Self {
        self.operator(OperatorKind::Cast(Cast { column: column.into(), dtype }))
    }
}

/// Returns the column type after a cast, or `None` if the type cannot be cast.
fn cast(column_type: &ColumnType, dtype: ScalarType) -> Option<ColumnType> {
    match column_type {
        ColumnType::Scalar(_) | ColumnType::Utf8 => Some(ColumnType::Scalar(dtype)),
        ColumnType::List(inner) => cast(inner, dtype).map(|inner| ColumnType::List(Box::new(inner))),
        ColumnType::Tensor { shape, .. } => Some(ColumnType::Tensor { scalar: dtype, shape: shape.clone() }),
        ColumnType::Binary | ColumnType::Image => None,
    }
}
