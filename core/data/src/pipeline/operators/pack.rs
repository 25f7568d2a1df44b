//! `pack`: packs several rows into one of a fixed length, and groups those.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind, OperatorRole};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::numbers;
use crate::pipeline::parameter_checks::{
    BATCH_ROWS_MAX, at_least_one, check_columns, check_tensor_length, check_window, within,
};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `pack`. Output: each column becomes a tensor of shape `[length]`, and beside it there are `int32` tensors
/// `NAME_segment_ids` (1 for the first row in it, 2 for the second, 0 for what is filled) and `NAME_positions` (the
/// element's place in its row).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pack {
    /// Columns of lists: all that there are.
    pub columns: Vec<String>,
    /// Elements of a packed row, in each column.
    pub length: u32,
    /// Packed rows of a batch.
    pub size: u32,
    /// What happens to a row that is longer than `length`.
    #[serde(default)]
    pub longer: Longer,
    /// What fills the end.
    #[serde(default)]
    pub value: i64,
    /// Rows that are packed together; chosen by the size of batches where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
}

/// What happens to a row that is longer than a packed one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Longer {
    /// It fails, as `on_error` says.
    #[default]
    Fail,
    /// Its end is cut off.
    Truncate,
}

impl OperatorDefinition for Pack {
    fn check(&self) -> Result<(), String> {
        check_columns(&self.columns)?;
        check_tensor_length("length", self.length)?;
        at_least_one("length", self.length)?;
        within("size", self.size, 1, BATCH_ROWS_MAX)?;
        self.window.map_or(Ok(()), check_window)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        packed(input, self)
    }

    fn summary(&self) -> String {
        let longer = match self.longer {
            Longer::Fail => "fail",
            Longer::Truncate => "truncate",
        };
        let window = self.window.map(|window| format!(", window {window}")).unwrap_or_default();
        format!(
            "{} into {} elements with {}, {} rows, longer {longer}{window}",
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
    /// Packs rows into rows of so many elements, and groups those; the last operator.
    pub fn pack(self, columns: &[&str], length: u32, size: u32) -> Self {
        self.operator(OperatorKind::Pack(Pack {
            columns: columns.iter().map(|&column| column.to_owned()).collect(),
            length,
            size,
            longer: Longer::default(),
            value: 0,
            window: None,
        }))
    }
}

/// Packed columns, each with what tells its rows apart. A column that is not packed would have no value for a packed row.
fn packed(input: &Schema, p: &Pack) -> Result<Schema, String> {
    if let Some(other) = input.names().find(|name| !p.columns.iter().any(|column| column == name)) {
        return Err(format!(
            "column `{other}` is not packed, and several rows share a packed one; name it in columns if it holds lists, or drop it with select before"
        ));
    }
    let mut output = Schema::default();
    for name in &p.columns {
        let scalar = numbers(input, name, p.value)?;
        let shape = vec![p.length];
        output.set(name, ColumnType::Tensor { scalar, shape: shape.clone() });
        for kind in ["segment_ids", "positions"] {
            let beside = format!("{name}_{kind}");
            if p.columns.contains(&beside) {
                return Err(format!(
                    "column `{beside}` has the name of what is made for `{name}`; rename it before"
                ));
            }
            output.set(&beside, ColumnType::Tensor { scalar: ScalarType::Int32, shape: shape.clone() });
        }
    }
    Ok(output)
}
