//! `bucket_by_length`: groups rows of similar length, the same bucket for all consumers in a step.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{batched, numbers};
use crate::pipeline::parameter_checks::{
    BATCH_ROWS_MAX, check_columns, check_tensor_length, check_window, few, within,
};
use crate::schema::Schema;

/// Most boundaries.
const MAX_BUCKETS: usize = 1024;

/// Parameters of `bucket_by_length`. All consumers get rows of the same bucket in the same step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BucketByLength {
    /// Columns of lists. A row is as long as the longest of its lists.
    pub columns: Vec<String>,
    /// The longest length in each bucket, in elements, ascending.
    pub boundaries: Vec<u32>,
    /// Rows of a batch, for each bucket: one number for each boundary, and one more for rows that are longer than the last.
    /// Without that one, longer rows fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub batch_sizes: Vec<u32>,
    /// In place of `batch_sizes`: elements of a batch with its padding, so that a bucket of short rows has large batches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u32>,
    /// To which length the lists of a batch are filled.
    #[serde(default)]
    pub pad: PadTo,
    /// What fills them.
    #[serde(default)]
    pub value: i64,
    /// Rows that are put into buckets together; chosen by the sizes of batches where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// To which length the lists of a batch are filled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PadTo {
    /// To the longest row of the step, whichever consumer gets it: the same length for all consumers.
    #[default]
    Longest,
    /// To the bucket's boundary; to the longest row of the step where rows are longer than the last boundary.
    Boundary,
    /// They are not filled.
    None,
}

impl OperatorDefinition for BucketByLength {
    fn check(&self) -> Result<(), String> {
        few("boundaries", self.boundaries.len(), MAX_BUCKETS, "write fewer")?;
        few("batch_sizes", self.batch_sizes.len(), MAX_BUCKETS + 1, "write fewer")?;
        check_columns(&self.columns)?;
        check_tensor_length("a boundary", self.boundaries.last().copied().unwrap_or_default())?;
        if self.boundaries.is_empty() {
            return Err("boundaries is empty; write the longest length of each bucket, such as [16, 32, 64]"
                .to_owned());
        }
        if self.boundaries[0] == 0 || !self.boundaries.is_sorted_by(|left, right| left < right) {
            return Err(format!(
                "boundaries is {:?}; write positive lengths, the smaller first",
                self.boundaries
            ));
        }
        let count = self.boundaries.len();
        match self.tokens {
            Some(_) if !self.batch_sizes.is_empty() => {
                return Err("tokens and batch_sizes are both there; keep one of them".to_owned());
            }
            Some(tokens) => {
                let longest = self.boundaries[count - 1];
                if tokens < longest {
                    return Err(format!(
                        "tokens is {tokens}, too few for one row of {longest}; write at least {longest}, or a smaller last boundary"
                    ));
                }
            }
            None if self.batch_sizes.is_empty() => {
                return Err(format!(
                    "there are no sizes; write batch_sizes, a number for each of the {count} buckets, or tokens"
                ));
            }
            None if self.batch_sizes.len() != count && self.batch_sizes.len() != count + 1 => {
                return Err(format!(
                    "batch_sizes has {} numbers for {count} boundaries; write {count}, or {} to take longer rows as well",
                    self.batch_sizes.len(),
                    count + 1
                ));
            }
            None => {}
        }
        self.sizes().into_iter().try_for_each(|size| within("a batch size", size, 1, BATCH_ROWS_MAX))?;
        self.window.map_or(Ok(()), check_window)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        for name in &self.columns {
            numbers(input, name, self.value)?;
        }
        batched(input)
    }

    fn summary(&self) -> String {
        let sizes = match self.tokens {
            Some(tokens) => format!("{tokens} tokens"),
            None => format!("rows {:?}", self.batch_sizes),
        };
        let pad = match self.pad {
            PadTo::Longest => format!(", padded to the longest with {}", self.value),
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
    /// Groups rows of about the same length, in batches of about so many tokens; the last operator.
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
    /// Rows of a full batch of each bucket.
    pub fn sizes(&self) -> Vec<u32> {
        match self.tokens {
            Some(tokens) => {
                self.boundaries.iter().map(|&boundary| (tokens / boundary.max(1)).max(1)).collect()
            }
            None => self.batch_sizes.clone(),
        }
    }

    /// The longest row that is taken; `None` where any is.
    pub fn longest(&self) -> Option<u32> {
        if self.batch_sizes.len() > self.boundaries.len() { None } else { self.boundaries.last().copied() }
    }
}
