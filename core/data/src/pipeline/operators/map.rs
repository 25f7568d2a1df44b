//! `map`: computes columns with a Python function.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::functions::{check_map, infer_function, require_function_inputs, summarize_function};
use crate::pipeline::{Function, PipelineBuilder};
use crate::schema::Schema;

/// Parameters of `map`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MapFunction(pub Function);

/// As the function's own: cache keys are made from this form.
impl fmt::Debug for MapFunction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl OperatorDefinition for MapFunction {
    fn check(&self) -> Result<(), String> {
        check_map(&self.0)
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_function(&self.0, input)
    }

    fn summary(&self) -> String {
        summarize_function(&self.0)
    }

    fn require_inputs(&self, input: &Schema, required: &mut BTreeSet<String>) {
        require_function_inputs(&self.0, input, required);
    }

    fn is_random(&self) -> bool {
        self.0.may_differ()
    }

    fn function(&self) -> Option<&Function> {
        Some(&self.0)
    }

    fn function_mut(&mut self) -> Option<&mut Function> {
        Some(&mut self.0)
    }
}

impl PipelineBuilder {
    /// Has a Python function make columns.
    pub fn map(self, function: Function) -> Self {
        self.operator(OperatorKind::Map(MapFunction(function)))
    }
}
