//! `recode_jpeg`: adds an index to JPEGs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{is_binary, require_column_type};
use crate::pipeline::parameter_checks::check_column;
use crate::schema::{ColumnType, Schema};

/// Parameters of `recode_jpeg`. The operator adds a segment of about 1 % of the JPEG's size, which other decoders ignore.
/// The pixels do not change. Other formats and progressive or corrupt JPEGs pass through unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecodeJpeg {
    /// Column of encoded bytes.
    pub column: String,
}

impl OperatorDefinition for RecodeJpeg {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        require_column_type(input, &self.column, "bytes", is_binary, |found| match found {
            ColumnType::Image | ColumnType::Tensor { .. } => {
                "move recode_jpeg before the operator that decodes the column"
            }
            _ => "",
        })?;
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        self.column.clone()
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }

    fn is_encoding_only(&self) -> bool {
        true
    }
}

impl PipelineBuilder {
    /// Adds an index to JPEGs, so that the decoder reads only the data of a crop.
    pub fn recode_jpeg(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RecodeJpeg(RecodeJpeg { column: column.into() }))
    }
}
