//! `truncate`: truncates lists to a length.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{list_hint, require_column_type};
use crate::pipeline::parameter_checks::{check_column, check_positive};
use crate::schema::{ColumnType, Schema};

/// Parameters of `truncate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truncate {
    /// Column of lists.
    pub column: String,
    /// The maximum length in elements. Further elements are removed from the end.
    pub length: u32,
}

impl OperatorDefinition for Truncate {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_positive("length", self.length)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        require_column_type(input, &self.column, "a list", |t| matches!(t, ColumnType::List(_)), list_hint)?;
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("{} to {}", self.column, self.length)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Truncates lists to a length.
    pub fn truncate(self, column: impl Into<String>, length: u32) -> Self {
        self.operator(OperatorKind::Truncate(Truncate { column: column.into(), length }))
    }
}
