//! `random_erasing`: fills a random rectangle of images with a probability.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::require_column_type;
use crate::pipeline::parameter_checks::{check_bounds, check_column, check_probability, check_range};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `random_erasing`. The defaults match torchvision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomErasing {
    /// Column of images or image tensors, channels last or first.
    pub column: String,
    /// Probability that a rectangle is erased.
    #[serde(default = "default_probability")]
    pub p: f64,
    /// Bounds of the rectangle's area as a fraction of the image's area.
    #[serde(default = "default_scale")]
    pub scale: [f64; 2],
    /// Bounds of the rectangle's height / width.
    #[serde(default = "default_ratio")]
    pub ratio: [f64; 2],
    /// The value that fills each channel of the rectangle.
    #[serde(default)]
    pub value: f64,
}

impl OperatorDefinition for RandomErasing {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_probability("p", self.p)?;
        check_bounds("scale", self.scale)?;
        check_range("the larger scale", self.scale[1], 0.0, 1.0)?;
        check_bounds("ratio", self.ratio)?;
        if self.value.is_finite() {
            return Ok(());
        }
        Err(format!("value is {}; expected a finite number", self.value))
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        let needs = "images, or uint8 or float tensors with three axes and at most 4 channels";
        let found = require_column_type(input, &self.column, needs, can_be_erased, |found| match found {
            ColumnType::Binary => "add decode_image, resize or random_resized_crop before random_erasing",
            _ => "",
        })?;
        let is_float = matches!(found, ColumnType::Tensor { scalar, .. } if *scalar != ScalarType::UInt8);
        let fits_uint8 = self.value.fract() == 0.0 && (0.0..=255.0).contains(&self.value);
        if !is_float && !fits_uint8 {
            return Err(format!(
                "value {} does not fit uint8, the element type of column `{}`; write a whole number from 0 to 255",
                self.value, self.column
            ));
        }
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        let ([smallest, largest], [widest, tallest]) = (self.scale, self.ratio);
        format!(
            "{}, p {}, scale {smallest:.4} to {largest:.4}, ratio {widest:.4} to {tallest:.4}, value {}",
            self.column, self.p, self.value
        )
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }

    fn is_random(&self) -> bool {
        true
    }
}

impl PipelineBuilder {
    /// Erases a random rectangle with probability 0.5 and torchvision's defaults.
    pub fn random_erasing(self, column: impl Into<String>) -> Self {
        self.operator(OperatorKind::RandomErasing(RandomErasing {
            column: column.into(),
            p: default_probability(),
            scale: default_scale(),
            ratio: default_ratio(),
            value: 0.0,
        }))
    }
}

/// Whether a column can be erased. The channel axis is the last axis if its extent is at most 4, and the first axis
/// otherwise.
fn can_be_erased(column_type: &ColumnType) -> bool {
    use ScalarType::{Float16, Float32, Float64, UInt8};
    match column_type {
        ColumnType::Image => true,
        ColumnType::Tensor { scalar: UInt8 | Float16 | Float32 | Float64, shape } => {
            shape.len() == 3 && (shape[2] <= 4 || shape[0] <= 4)
        }
        _ => false,
    }
}

fn default_probability() -> f64 {
    0.5
}

fn default_scale() -> [f64; 2] {
    [0.02, 0.33]
}

fn default_ratio() -> [f64; 2] {
    [0.3, 3.3]
}
