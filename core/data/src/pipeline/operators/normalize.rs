//! `normalize`: converts pixels to floats by `(x / 255 - mean) / std`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{require_column_type, with_column_type};
use crate::pipeline::parameter_checks::{check_column, check_count};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Maximum number of values in `mean` and in `std`.
const MAX_CHANNELS: usize = 64;

/// Parameters of `normalize`. Output: a tensor of `dtype`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalize {
    /// Column of image tensors, `uint8`, height x width x channels.
    pub column: String,
    /// Mean per channel on the scale 0 to 1.
    pub mean: Vec<f64>,
    /// Standard deviation per channel on the scale 0 to 1.
    pub std: Vec<f64>,
    /// Element type of the result: `float32` or `float16`.
    #[serde(default = "default_float")]
    pub dtype: ScalarType,
    /// Axis order of the result.
    #[serde(default)]
    pub layout: TensorLayout,
}

/// Axis order of an image tensor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TensorLayout {
    /// Height, width, channel.
    #[default]
    Hwc,
    /// Channel, height, width, as PyTorch models expect.
    Chw,
}

impl OperatorDefinition for Normalize {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_count("numbers in mean", self.mean.len(), MAX_CHANNELS, "write one per channel")?;
        check_count("numbers in std", self.std.len(), MAX_CHANNELS, "write one per channel")?;
        check_moments(&self.mean, &self.std)?;
        match self.dtype {
            ScalarType::Float16 | ScalarType::Float32 => Ok(()),
            other => Err(format!("unsupported dtype {}: expected float32 or float16", other.name())),
        }
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_normalized(input, self)
    }

    fn summary(&self) -> String {
        let layout = match self.layout {
            TensorLayout::Hwc => "hwc",
            TensorLayout::Chw => "chw",
        };
        format!("{} to {} {layout}, mean {:?}, std {:?}", self.column, self.dtype.name(), self.mean, self.std)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// `(x / 255 - mean) / std` as `float32`, channels last.
    pub fn normalize(
        self,
        column: impl Into<String>,
        mean: impl Into<Vec<f64>>,
        std: impl Into<Vec<f64>>,
    ) -> Self {
        self.operator(OperatorKind::Normalize(Normalize {
            column: column.into(),
            mean: mean.into(),
            std: std.into(),
            dtype: default_float(),
            layout: TensorLayout::default(),
        }))
    }
}

fn infer_normalized(input: &Schema, p: &Normalize) -> Result<Schema, String> {
    let is_pixels = |t: &ColumnType| matches!(t, ColumnType::Tensor { scalar: ScalarType::UInt8, shape } if shape.len() == 3);
    let hint = |found: &ColumnType| match found {
        ColumnType::Binary | ColumnType::Image => {
            "add resize, center_crop or random_resized_crop before normalize"
        }
        ColumnType::Tensor { scalar, .. } if *scalar != ScalarType::UInt8 => {
            "use normalize only once, and before cast"
        }
        _ => "",
    };
    let needs = "uint8 tensors [height, width, channels]";
    let found = require_column_type(input, &p.column, needs, is_pixels, hint)?;
    let ColumnType::Tensor { shape, .. } = found else { return Ok(input.clone()) };
    let [height, width, channels] = [shape[0], shape[1], shape[2]];
    if p.mean.len() != 1 && p.mean.len() != channels as usize {
        return Err(format!(
            "mean and std have {} numbers, but column `{}` has {channels} channels; write 1 or {channels} numbers for each",
            p.mean.len(),
            p.column
        ));
    }
    let shape = match p.layout {
        TensorLayout::Hwc => vec![height, width, channels],
        TensorLayout::Chw => vec![channels, height, width],
    };
    Ok(with_column_type(input, &p.column, ColumnType::Tensor { scalar: p.dtype, shape }))
}

fn check_moments(mean: &[f64], std: &[f64]) -> Result<(), String> {
    if mean.len() != std.len() || mean.is_empty() {
        return Err(format!(
            "mean has {} numbers and std has {}; write one number per channel for each, or a single number for all channels",
            mean.len(),
            std.len()
        ));
    }
    if let Some(bad) = mean.iter().find(|number| !number.is_finite()) {
        return Err(format!("mean contains {bad}; expected finite numbers"));
    }
    match std.iter().find(|number| !(**number > 0.0 && number.is_finite())) {
        Some(bad) => Err(format!("std contains {bad}; expected numbers above 0")),
        None => Ok(()),
    }
}

fn default_float() -> ScalarType {
    ScalarType::Float32
}
