//! `filter_function`: keeps the rows for which a Python function returns true.

use serde::{Deserialize, Serialize};

use super::OperatorKind;
use crate::pipeline::functions::{check_filter_function, function_operator};
use crate::pipeline::{Function, PipelineBuilder};

/// Parameters of `filter_function`.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FilterFunction(pub Function);

function_operator!(FilterFunction, check: check_filter_function, drops_rows: true);

impl PipelineBuilder {
    /// Keeps the rows for which a Python function returns true.
    pub fn filter_function(self, function: Function) -> Self {
        self.operator(OperatorKind::FilterFunction(FilterFunction(function)))
    }
}
