//! `filter`: keeps the rows for which an SQL expression is true.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::parameter_checks::{check_given, check_text_length};
use crate::schema::Schema;

/// Maximum length of an SQL expression in bytes.
const MAX_EXPRESSION_BYTES: usize = 16 << 10;

/// Parameters of `filter`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filter {
    /// An SQL expression over the columns, such as `length(tokens) <= 64 AND label <> 3`. Null counts as false.
    #[serde(rename = "where")]
    pub predicate: String,
}

impl OperatorDefinition for Filter {
    fn check(&self) -> Result<(), String> {
        check_text_length("where", &self.predicate, MAX_EXPRESSION_BYTES)?;
        check_given("where", &self.predicate, "an expression, such as `label < 10`")
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        Ok(input.clone())
    }

    fn summary(&self) -> String {
        format!("where {}", self.predicate.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    fn require_inputs(&self, input: &Schema, required: &mut BTreeSet<String>) {
        let mentioned = input.names().filter(|name| mentions(&self.predicate, name));
        required.extend(mentioned.map(str::to_owned));
    }

    fn drops_rows(&self) -> bool {
        true
    }
}

impl PipelineBuilder {
    /// Keeps the rows for which an SQL expression is true.
    pub fn filter(self, predicate: impl Into<String>) -> Self {
        self.operator(OperatorKind::Filter(Filter { predicate: predicate.into() }))
    }
}

/// Whether the expression may mention the column: as a word in any letter case, or as a substring if the name is not a word.
/// Words in text literals also match. A false match only reads an unused column.
fn mentions(predicate: &str, column: &str) -> bool {
    let is_word_char = |c: char| c.is_alphanumeric() || c == '_';
    let (predicate, column) = (predicate.to_lowercase(), column.to_lowercase());
    if !column.chars().all(is_word_char) {
        // SQL doubles the quotes inside a quoted name.
        return predicate.contains(&column) || predicate.contains(&column.replace('"', "\"\""));
    }
    predicate.split(|c: char| !is_word_char(c)).any(|word| word == column)
}
