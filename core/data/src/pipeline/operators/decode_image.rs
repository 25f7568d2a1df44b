//! `decode_image`: decodes JPEG, PNG or WebP bytes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{is_binary, require_column_type, with_column_type};
use crate::pipeline::parameter_checks::check_column;
use crate::schema::{ColumnType, Schema};

/// Parameters of `decode_image`. The column becomes an image: `uint8`, RGB.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DecodeImage {
    /// Column of encoded bytes.
    pub column: String,
}

impl OperatorDefinition for DecodeImage {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        require_column_type(input, &self.column, "bytes", is_binary, |found| match found {
            ColumnType::Image | ColumnType::Tensor { .. } => {
                "the images are already decoded; remove this operator"
            }
            _ => "",
        })?;
        Ok(with_column_type(input, &self.column, ColumnType::Image))
    }

    fn summary(&self) -> String {
        self.column.clone()
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Decodes JPEG, PNG or WebP bytes.
    pub fn decode_image(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::DecodeImage(DecodeImage { column: column.into() }))
    }
}
