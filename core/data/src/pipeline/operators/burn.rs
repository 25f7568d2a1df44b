//! `burn`: uses CPU time, for benchmarks.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::parameter_checks::{MAX_ROW_SECONDS, check_range};
use crate::schema::Schema;

/// Parameters of `burn`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burn {
    /// CPU time per row in microseconds.
    pub cpu_us: u64,
}

impl OperatorDefinition for Burn {
    fn check(&self) -> Result<(), String> {
        check_range("cpu_us", self.cpu_us, 0, MAX_ROW_SECONDS * 1_000_000)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("{} us of CPU per row", self.cpu_us)
    }

    fn require_inputs(&self, _input: &Schema, _required: &mut BTreeSet<String>) {}
}

impl PipelineBuilder {
    /// Uses `cpu_us` microseconds of CPU time per row.
    pub fn burn(self, cpu_us: u64) -> Self {
        self.operator(OperatorKind::Burn(Burn { cpu_us }))
    }
}
