//! `resize`: resizes images to a fixed size.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::column_rules::infer_fixed_size;
use crate::pipeline::parameter_checks::{check_column, check_size};
use crate::pipeline::{PipelineBuilder, Size};
use crate::schema::Schema;

/// Parameters of `resize`. The interpolation is bilinear with antialiasing, like Pillow and torchvision with
/// `antialias=True`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resize {
    /// Column of encoded bytes or decoded images.
    pub column: String,
    /// Height and width of the result.
    pub size: Size,
}

impl OperatorDefinition for Resize {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        check_size(self.size)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_fixed_size(input, &self.column, self.size)
    }

    fn summary(&self) -> String {
        let [height, width] = self.size;
        format!("{} to {height}x{width}", self.column)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.insert(self.column.clone());
    }
}

impl PipelineBuilder {
    /// Resizes images to a height and width. The aspect ratio is not preserved.
    pub fn resize(self, column: impl Into<String>, size: Size) -> Self {
        self.operator(OperatorKind::Resize(Resize { column: column.into(), size }))
    }
}
