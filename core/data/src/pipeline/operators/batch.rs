//! `batch`: groups rows into batches.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::infer_batch;
use crate::pipeline::parameter_checks::{MAX_BATCH_ROWS, check_range};
use crate::schema::Schema;

/// Parameters of `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchParams {
    /// The number of rows in a batch.
    pub size: u32,
    /// What happens to the rows of an epoch that do not fill a batch.
    #[serde(default)]
    pub remainder: Remainder,
}

/// What happens to the rows of an epoch that do not fill a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remainder {
    /// The rows form a smaller last batch of the epoch.
    #[default]
    Emit,
    /// The rows are dropped and counted as dropped.
    Drop,
    /// The rows start the first batch of the next epoch. After the last epoch they form a smaller batch.
    Carry,
}

impl OperatorDefinition for BatchParams {
    fn check(&self) -> Result<(), String> {
        check_range("size", self.size, 1, MAX_BATCH_ROWS)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_batch(input)
    }

    fn summary(&self) -> String {
        let remainder = match self.remainder {
            Remainder::Emit => "emit",
            Remainder::Drop => "drop",
            Remainder::Carry => "carry",
        };
        format!("{} rows, remainder {remainder}", self.size)
    }

    fn require_inputs(&self, _input: &Schema, _required: &mut BTreeSet<String>) {}

    fn role(&self) -> OperatorRole {
        OperatorRole::Batch
    }
}

impl PipelineBuilder {
    /// Groups rows into batches; the last operator. The last batch of an epoch may be smaller.
    pub fn batch(self, size: u32) -> Self {
        self.operator(OperatorKind::Batch(BatchParams { size, remainder: Remainder::default() }))
    }
}
