//! `random_horizontal_flip`: flips images horizontally with a probability.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::require_column_type;
use crate::pipeline::parameter_checks::{check_column, check_probability};
use crate::schema::{ColumnType, Schema};

/// Parameters of `random_horizontal_flip`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomHorizontalFlip {
    /// Column of images or image tensors.
    pub column: String,
    /// Probability of a flip.
    #[serde(default = "default_probability")]
    pub p: f64,
}

impl OperatorDefinition for RandomHorizontalFlip {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_probability("p", self.p)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let needs = "images or tensors [height, width, channels]";
        require_column_type(input, &self.column, needs, can_be_flipped, |found| match found {
            ColumnType::Binary => {
                "add decode_image, resize or random_resized_crop before random_horizontal_flip"
            }
            ColumnType::Tensor { .. } => {
                "move random_horizontal_flip before normalize, which puts channels first"
            }
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
    /// Flips images horizontally with probability 0.5.
    pub fn random_horizontal_flip(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RandomHorizontalFlip(RandomHorizontalFlip {
            column: column.into(),
            p: default_probability(),
        }))
    }
}

/// Whether a column can be flipped. The width of a channels-last tensor is the second axis. A last axis above 4 means
/// channels first, which is not supported.
fn can_be_flipped(column_type: &ColumnType) -> bool {
    match column_type {
        ColumnType::Image => true,
        ColumnType::Tensor { shape, .. } => shape.len() == 3 && shape[2] <= 4,
        _ => false,
    }
}

fn default_probability() -> f64 {
    0.5
}
