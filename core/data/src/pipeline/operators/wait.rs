//! `wait`: waits without using CPU time, for benchmarks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::parameter_checks::{MAX_ROW_SECONDS, check_range};
use crate::schema::Schema;

/// Parameters of `wait`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Time per row in milliseconds.
    pub ms: u64,
}

impl OperatorDefinition for Wait {
    fn check(&self) -> Result<(), String> {
        check_range("ms", self.ms, 0, MAX_ROW_SECONDS * 1_000)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("{} ms per row", self.ms)
    }

    fn require_inputs(&self, _input: &Schema, _required: &mut BTreeSet<String>) {}
}

impl PipelineBuilder {
    /// Waits `ms` milliseconds per row.
    pub fn wait(self, ms: u64) -> Self {
        self.operator(OperatorKind::Wait(Wait { ms }))
    }
}
