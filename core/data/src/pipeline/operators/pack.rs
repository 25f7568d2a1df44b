//! `pack`: packs several rows into one row of fixed length, and batches the packed rows.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::number_list_element;
use crate::pipeline::parameter_checks::{
    MAX_BATCH_ROWS, check_columns, check_positive, check_range, check_tensor_length, check_window,
};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `pack`. Each column becomes a tensor of shape `[length]`. For each column `NAME` there are two more `int32`
/// tensors: `NAME_segment_ids` (1 for elements of the first row, 2 for the second, 0 for padding) and `NAME_positions` (the
/// index of the element in its row).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Columns of lists. Every column of the input must be listed.
    pub columns: Vec<String>,
    /// The number of elements of a packed row in each column.
    pub length: u32,
    /// The number of packed rows in a batch.
    pub size: u32,
    /// What happens to a row that is longer than `length`.
    #[serde(default)]
    pub longer: LongRowPolicy,
    /// The padding value.
    #[serde(default)]
    pub value: i64,
    /// The number of rows that are packed together. The default depends on the batch size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// What happens to a row that is longer than a packed row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongRowPolicy {
    /// The row fails, and `on_error` applies.
    #[default]
    Fail,
    /// The end of the row is cut off.
    Truncate,
}

impl OperatorDefinition for Pack {
    fn check(&self) -> Result<(), String> {
        check_columns(&self.columns)?;
        check_tensor_length("length", self.length)?;
        check_positive("length", self.length)?;
        check_range("size", self.size, 1, MAX_BATCH_ROWS)?;
        self.window.map_or(Ok(()), check_window)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_packed(input, self)
    }

    fn summary(&self) -> String {
        let longer = match self.longer {
            LongRowPolicy::Fail => "fail",
            LongRowPolicy::Truncate => "truncate",
        };
        let window = self.window.map(|window| format!(", window {window}")).unwrap_or_default();
        format!(
            "{} into {} elements with {}, {} rows, longer rows: {longer}{window}",
            self.columns.join(", "),
            self.length,
            self.value,
            self.size
        )
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        *required = self.columns.iter().cloned().collect();
    }

    fn role(&self) -> OperatorRole {
        OperatorRole::CoordinatedBatch
    }
}

impl PipelineBuilder {
    /// Packs rows into rows of `length` elements, in batches of `size` packed rows; the last operator.
    pub fn pack(self, columns: &[&str], length: u32, size: u32) -> Self {
        self.operator(OperatorKind::Pack(Pack {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            length,
            size,
            longer: LongRowPolicy::default(),
            value: 0,
            window: None,
        }))
    }
}

/// Infers the packed columns with their segment ids and positions. Every input column must be packed, because a packed row
/// combines several rows.
fn infer_packed(input: &Schema, p: &Pack) -> Result<Schema, String> {
    if let Some(other) = input.names().find(|name| !p.columns.iter().any(|column| column == name)) {
        return Err(format!(
            "column `{other}` is not in `columns`, but a packed row combines several rows; add the column to `columns` if it contains lists, or drop it with select before pack"
        ));
    }
    let mut output = Schema::default();
    for name in &p.columns {
        let scalar = number_list_element(input, name, p.value)?;
        let shape = vec![p.length];
        output.set(name, ColumnType::Tensor { scalar, shape: shape.clone() });
        for kind in ["segment_ids", "positions"] {
            let derived = format!("{name}_{kind}");
            if p.columns.contains(&derived) {
                return Err(format!(
                    "column `{derived}` conflicts with a column that pack adds for `{name}`; rename `{derived}` before pack"
                ));
            }
            output.set(&derived, ColumnType::Tensor { scalar: ScalarType::Int32, shape: shape.clone() });
        }
    }
    Ok(output)
}
