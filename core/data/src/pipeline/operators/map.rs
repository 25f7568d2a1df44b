//! `map`: computes columns with a Python function.

use serde::{Deserialize, Serialize};

use super::OperatorKind;
use crate::pipeline::functions::{check_map, function_operator};
use crate::pipeline::{Function, PipelineBuilder};

/// Parameters of `map`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapFunction(pub Function);

function_operator!(MapFunction, check: check_map, drops_rows: false);

impl PipelineBuilder {
    /// Computes columns with a Python function.
    pub fn map(self, function: Function) -> Self {
        self.operator(OperatorKind::Map(MapFunction(function)))
    }
}
