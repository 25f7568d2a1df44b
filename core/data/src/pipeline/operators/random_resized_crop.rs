//! `random_resized_crop`: crops a random area of images and resizes it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::column_rules::infer_fixed_size;
use crate::pipeline::parameter_checks::{check_bounds, check_column, check_size};
use crate::pipeline::{PipelineBuilder, Size};
use crate::schema::Schema;

/// Parameters of `random_resized_crop`. The defaults match torchvision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomResizedCrop {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
    /// Bounds of the crop's area as a fraction of the image's area.
    #[serde(default = "default_scale")]
    pub scale: [f64; 2],
    /// Bounds of the crop's width / height.
    #[serde(default = "default_ratio")]
    pub ratio: [f64; 2],
}

impl OperatorDefinition for RandomResizedCrop {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_size(self.size)?;
        check_bounds("scale", self.scale)?;
        check_bounds("ratio", self.ratio)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_fixed_size(input, &self.column, self.size)
    }

    fn summary(&self) -> String {
        let [height, width] = self.size;
        let ([smallest, largest], [narrowest, widest]) = (self.scale, self.ratio);
        format!(
            "{} to {height}x{width}, scale {smallest:.4} to {largest:.4}, ratio {narrowest:.4} to {widest:.4}",
            self.column
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
    /// Crops a random area with a random aspect ratio and resizes it, with torchvision's defaults.
    pub fn random_resized_crop(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::RandomResizedCrop(RandomResizedCrop {
            column: column.into(),
            size,
            scale: default_scale(),
            ratio: default_ratio(),
        }))
    }
}

fn default_scale() -> [f64; 2] {
    [0.08, 1.0]
}

fn default_ratio() -> [f64; 2] {
    [3.0 / 4.0, 4.0 / 3.0]
}
