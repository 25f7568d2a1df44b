//! `center_crop`: crops the centre of images.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::column_rules::to_fixed_size;
use crate::pipeline::parameter_checks::{SIDE_MAX, check_column, check_size, within};
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
    /// Shorter side that the image is resized to first, in pixels; without it the crop is cut from the image as it is
    /// (padded with zeros where the image is smaller, as torchvision does).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<u32>,
}

impl OperatorDefinition for CenterCrop {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_size(self.size)?;
        self.resize.map_or(Ok(()), |side| within("resize", side, 1, SIDE_MAX))
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        to_fixed_size(input, &self.column, self.size)
    }

    fn summary(&self) -> String {
        let [height, width] = self.size;
        match self.resize {
            Some(side) => format!("{} to {height}x{width}, shorter side first to {side}", self.column),
            None => format!("{} to {height}x{width}", self.column),
        }
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Cuts the centre of the image as it is.
    pub fn center_crop(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::CenterCrop(CenterCrop { column: column.into(), size, resize: None }))
    }
}
