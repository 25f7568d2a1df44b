//! `repeat`: passes over the rows several times within an epoch.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::parameter_checks::at_least_one;
use crate::schema::Schema;

/// Most passes.
const REPEAT_MAX: u32 = 1_000_000;

/// Parameters of `repeat`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Passes per epoch.
    pub count: u32,
}

impl OperatorDefinition for Repeat {
    fn check(&self) -> Result<(), String> {
        if self.count > REPEAT_MAX {
            let count = self.count;
            return Err(format!(
                "count is {count}; write at most {REPEAT_MAX}, and open the job for more epochs"
            ));
        }
        at_least_one("count", self.count)
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
    /// Passes over the rows several times within an epoch.
    pub fn repeat(self, count: u32) -> Self {
        self.operator(OperatorKind::Repeat(Repeat { count }))
    }
}
