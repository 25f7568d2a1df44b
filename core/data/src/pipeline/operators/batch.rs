//! `batch`: groups rows.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::batched;
use crate::pipeline::parameter_checks::{BATCH_ROWS_MAX, within};
use crate::schema::Schema;

/// Parameters of `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatchParams {
    /// Rows of a batch.
    pub size: u32,
    /// What happens to the rows left at an epoch's end.
    #[serde(default)]
    pub remainder: Remainder,
}

/// What happens to the rows of an epoch that do not fill a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Remainder {
    /// They come as a smaller last batch of the epoch.
    #[default]
    Emit,
    /// They are left out, and counted as dropped.
    Drop,
    /// They open the next epoch's first batch; after the last epoch they come as a smaller batch.
    Carry,
}

impl OperatorDefinition for BatchParams {
    fn check(&self) -> Result<(), String> {
        within("size", self.size, 1, BATCH_ROWS_MAX)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        batched(input)
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
    /// Groups rows; the last operator. A smaller batch comes at an epoch's end.
    pub fn batch(self, size: u32) -> Self {
        self.operator(OperatorKind::Batch(BatchParams { size, remainder: Remainder::default() }))
    }
}
