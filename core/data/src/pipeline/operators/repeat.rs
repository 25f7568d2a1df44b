//! `repeat`: makes several passes over the rows in each epoch.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::parameter_checks::check_positive;
use crate::schema::Schema;

/// Maximum number of passes per epoch.
const MAX_PASSES: u32 = 1_000_000;

/// Parameters of `repeat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// The number of passes per epoch.
    pub count: u32,
}

impl OperatorDefinition for Repeat {
    fn check(&self) -> Result<(), String> {
        if self.count > MAX_PASSES {
            let count = self.count;
            return Err(format!(
                "count is {count}; the limit is {MAX_PASSES}: run the job for more epochs instead"
            ));
        }
        check_positive("count", self.count)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("{} passes", self.count)
    }

    fn require_inputs(&self, _input: &Schema, _required: &mut BTreeSet<String>) {}

    fn role(&self) -> OperatorRole {
        OperatorRole::Engine
    }
}

impl PipelineBuilder {
    /// Makes `count` passes over the rows in each epoch.
    pub fn repeat(self, count: u32) -> Self {
        self.operator(OperatorKind::Repeat(Repeat { count }))
    }
}
