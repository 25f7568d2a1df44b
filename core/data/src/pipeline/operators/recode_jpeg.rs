//! `recode_jpeg`: adds an index to JPEGs.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{demand, is_binary};
use crate::pipeline::parameter_checks::check_column;
use crate::schema::{ColumnType, Schema};

/// Parameters of `recode_jpeg`. A JPEG gets a segment of about 1 % of its size that other decoders pass over; its pixels
/// stay as they are. What has no such index (other formats, progressive or damaged JPEGs) passes unchanged.
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
        demand(input, &self.column, "bytes", is_binary, |found| match found {
            ColumnType::Image | ColumnType::Tensor { .. } => "put it before the operator that decodes it",
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
    /// Gives JPEGs an index of their data, by which a crop of one is decoded faster.
    pub fn recode_jpeg(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RecodeJpeg(RecodeJpeg { column: column.into() }))
    }
}
