//! `bucket_by_length`: batches rows of similar length. In each step all consumers receive rows of the same bucket.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{infer_batch, number_list_element};
use crate::pipeline::parameter_checks::{
    MAX_BATCH_ROWS, check_columns, check_count, check_range, check_tensor_length, check_window,
};
use crate::schema::Schema;

/// Maximum number of boundaries.
const MAX_BUCKETS: usize = 1024;

/// Parameters of `bucket_by_length`. In each step all consumers receive rows of the same bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketByLength {
    /// Columns of lists. The length of a row is the length of its longest list in these columns.
    pub columns: Vec<String>,
    /// The maximum row length of each bucket, in elements, in ascending order.
    pub boundaries: Vec<u32>,
    /// The number of rows in a batch of each bucket: one number per boundary, and optionally one for rows longer than the
    /// last boundary. Without the optional number, longer rows fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_sizes: Vec<u32>,
    /// The number of elements in a batch, including padding; replaces `batch_sizes`. Buckets of short rows get larger
    /// batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// The length that the lists of a batch are padded to.
    #[serde(default)]
    pub pad: PadTo,
    /// The padding value.
    #[serde(default)]
    pub value: i64,
    /// The number of rows that are bucketed together. The default depends on the batch sizes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// The length that the lists of a batch are padded to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadTo {
    /// The length of the longest row of the step, over all consumers.
    #[default]
    Longest,
    /// The boundary of the bucket. Rows longer than the last boundary are padded to the longest row of the step.
    Boundary,
    /// No padding.
    None,
}

impl OperatorDefinition for BucketByLength {
    fn check(&self) -> Result<(), String> {
        check_count("boundaries", self.boundaries.len(), MAX_BUCKETS, "write fewer")?;
        check_count("batch_sizes", self.batch_sizes.len(), MAX_BUCKETS + 1, "write fewer")?;
        check_columns(&self.columns)?;
        check_tensor_length("a boundary", self.boundaries.last().copied().unwrap_or_default())?;
        if self.boundaries.is_empty() {
            return Err("boundaries is empty; write the maximum length of each bucket, such as [16, 32, 64]"
                .to_owned());
        }
        if self.boundaries[0] == 0 || !self.boundaries.is_sorted_by(|left, right| left < right) {
            return Err(format!(
                "boundaries is {:?}; expected positive lengths in ascending order",
                self.boundaries
            ));
        }
        let count = self.boundaries.len();
        match self.tokens {
            Some(_) if !self.batch_sizes.is_empty() => {
                return Err("tokens and batch_sizes are both set; remove one of them".to_owned());
            }
            Some(tokens) => {
                let longest = self.boundaries[count - 1];
                if tokens < longest {
                    return Err(format!(
                        "tokens is {tokens}, but rows may have up to {longest} elements; set tokens to at least {longest}, or reduce the last boundary"
                    ));
                }
            }
            None if self.batch_sizes.is_empty() => {
                return Err(format!(
                    "tokens and batch_sizes are both missing; set batch_sizes, with one number for each of the {count} buckets, or set tokens"
                ));
            }
            None if self.batch_sizes.len() != count && self.batch_sizes.len() != count + 1 => {
                return Err(format!(
                    "batch_sizes has {} numbers for {count} boundaries; expected {count} numbers, or {} to also accept longer rows",
                    self.batch_sizes.len(),
                    count + 1
                ));
            }
            None => {}
        }
        self.batch_rows_per_bucket()
            .into_iter()
            .try_for_each(|size| check_range("batch size", size, 1, MAX_BATCH_ROWS))?;
        self.window.map_or(Ok(()), check_window)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        for name in &self.columns {
            number_list_element(input, name, self.value)?;
        }
        infer_batch(input)
    }

    fn summary(&self) -> String {
        let sizes = match self.tokens {
            Some(tokens) => format!("{tokens} tokens"),
            None => format!("rows {:?}", self.batch_sizes),
        };
        let pad = match self.pad {
            PadTo::Longest => format!(", padded to the longest row with {}", self.value),
            PadTo::Boundary => format!(", padded to the boundary with {}", self.value),
            PadTo::None => String::new(),
        };
        let window = self.window.map(|window| format!(", window {window}")).unwrap_or_default();
        format!("{} up to {:?}, {sizes}{pad}{window}", self.columns.join(", "), self.boundaries)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        required.extend(self.columns.iter().cloned());
    }

    fn role(&self) -> OperatorRole {
        OperatorRole::CoordinatedBatch
    }
}

impl PipelineBuilder {
    /// Batches rows of similar length, with about `tokens` elements per batch; the last operator.
    pub fn bucket_by_length(self, column: impl Into<String>, boundaries: &[u32], tokens: u32) -> Self {
        self.operator(OperatorKind::BucketByLength(BucketByLength {
            columns: vec![column.into()],
            boundaries: boundaries.to_vec(),
            batch_sizes: Vec::new(),
            tokens: Some(tokens),
            pad: PadTo::default(),
            value: 0,
            window: None,
        }))
    }
}

impl BucketByLength {
    /// The number of rows in a full batch of each bucket.
    pub fn batch_rows_per_bucket(&self) -> Vec<u32> {
        match self.tokens {
            Some(tokens) => {
                self.boundaries.iter().map(|&boundary| (tokens / boundary.max(1)).max(1)).collect()
            }
            None => self.batch_sizes.clone(),
        }
    }

    /// The maximum length of a row; `None` if there is no maximum.
    pub fn max_row_length(&self) -> Option<u32> {
        if self.batch_sizes.len() > self.boundaries.len() { None } else { self.boundaries.last().copied() }
    }
}
