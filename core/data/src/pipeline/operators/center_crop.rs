//! `center_crop`: crops the center of images.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::column_rules::infer_fixed_size;
use crate::pipeline::parameter_checks::{MAX_IMAGE_SIDE, check_column, check_range, check_size};
use crate::pipeline::{PipelineBuilder, Size};
use crate::schema::Schema;

/// Parameters of `center_crop`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CenterCrop {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
    /// The length in pixels that the shorter side is resized to before the crop. `None` crops the original image, and pads
    /// smaller images with zeros as torchvision does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
}

impl OperatorDefinition for CenterCrop {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_size(self.size)?;
        self.resize.map_or(Ok(()), |side| check_range("resize", side, 1, MAX_IMAGE_SIDE))
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_fixed_size(input, &self.column, self.size)
    }

    fn summary(&self) -> String {
        let [height, width] = self.size;
        match self.resize {
            Some(side) => {
                format!("{} to {height}x{width}, after resizing the shorter side to {side}", self.column)
            }
            None => format!("{} to {height}x{width}", self.column),
        }
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Crops the center of the original image.
    pub fn center_crop(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::CenterCrop(CenterCrop { column: column.into(), size, resize: None }))
    }
}
