//! `random_grayscale`: converts images to grayscale with a probability.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::require_column_type;
use crate::pipeline::parameter_checks::{check_column, check_probability};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `random_grayscale`. The defaults match torchvision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomGrayscale {
    /// Column of images or of `uint8` tensors `[height, width, 3]`.
    pub column: String,
    /// Probability that an image is converted.
    #[serde(default = "default_probability")]
    pub p: f64,
}

impl OperatorDefinition for RandomGrayscale {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_probability("p", self.p)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let needs = "images or uint8 tensors [height, width, 3]";
        require_column_type(input, &self.column, needs, can_be_grayscaled, |found| match found {
            ColumnType::Binary => "add decode_image, resize or random_resized_crop before random_grayscale",
            ColumnType::Tensor { .. } => "move random_grayscale before normalize and cast",
            _ => "",
        })?;
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("{}, p {}", self.column, self.p)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }

    fn is_random(&self) -> bool {
        true
    }
}

impl PipelineBuilder {
    /// Converts images to grayscale with probability 0.1.
    pub fn random_grayscale(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RandomGrayscale(RandomGrayscale {
            column: column.into(),
            p: default_probability(),
        }))
    }
}

fn can_be_grayscaled(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::Image => true,
        ColumnType::Tensor { scalar, shape } => {
            *scalar == ScalarType::UInt8 && shape.len() == 3 && shape[2] == 3
        }
        _ => false,
    }
}

fn default_probability() -> f64 {
    0.1
}
