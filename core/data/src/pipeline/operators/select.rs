//! `select`: selects columns, in the given order.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::find_column;
use crate::pipeline::parameter_checks::check_columns;
use crate::schema::{Field, Schema};

/// Parameters of `select`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Select {
    /// Columns to keep, in this order.
    pub columns: Vec<String>,
}

impl OperatorDefinition for Select {
    fn check(&self) -> Result<(), String> {
        check_columns(&self.columns)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let mut fields = Vec::with_capacity(self.columns.len());
        for name in &self.columns {
            fields.push(Field { name: name.clone(), column_type: find_column(input, name)?.clone() });
        }
        Ok(Schema { fields: fields.into() })
    }

    fn summary(&self) -> String {
        self.columns.join(", ")
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        *required = self.columns.iter().cloned().collect();
    }
}

impl PipelineBuilder {
    /// Selects these columns, in this order.
    pub fn select(self, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.operator(OperatorKind::Select(Select { columns: columns.into_iter().map(Into::into).collect() }))
    }
}
