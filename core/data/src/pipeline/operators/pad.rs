//! `pad`: pads lists to a length.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{number_list_element, with_column_type};
use crate::pipeline::parameter_checks::{check_column, check_positive, check_tensor_length};
use crate::schema::{ColumnType, Schema};

/// Parameters of `pad`. The column becomes a tensor of shape `[length]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pad {
    /// Column of lists.
    pub column: String,
    /// The length of every row after padding, in elements. A longer row fails.
    pub length: u32,
    /// The padding value.
    #[serde(default)]
    pub value: i64,
}

impl OperatorDefinition for Pad {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_tensor_length("length", self.length)?;
        check_positive("length", self.length)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let scalar = number_list_element(input, &self.column, self.value)?;
        Ok(with_column_type(input, &self.column, ColumnType::Tensor { scalar, shape: vec![self.length] }))
    }

    fn summary(&self) -> String {
        format!("{} to {} with {}", self.column, self.length, self.value)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Pads lists with zeros to a length.
    pub fn pad(self, column: impl Into<String>, length: u32) -> Self {
        self.operator(OperatorKind::Pad(Pad { column: column.into(), length, value: 0 }))
    }
}
