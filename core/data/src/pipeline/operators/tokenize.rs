//! `tokenize`: splits text into token ids.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{OperatorDefinition, OperatorKind};
use crate::pipeline::PipelineBuilder;
use crate::pipeline::column_rules::{require_column_type, with_column_type};
use crate::pipeline::limits::check_url;
use crate::pipeline::parameter_checks::{check_column, check_given};
use crate::schema::{ColumnType, ScalarType, Schema};

/// Parameters of `tokenize`. The output column is a list of `int32` token ids.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tokenize {
    /// Column of text.
    pub column: String,
    /// Path or URL of a Hugging Face `tokenizer.json`.
    pub tokenizer: String,
    /// The output column. By default the token ids replace the text column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// Whether the tokenizer adds special tokens.
    #[serde(default = "default_true")]
    pub add_special_tokens: bool,
}

impl OperatorDefinition for Tokenize {
    fn check(&self) -> Result<(), String> {
        check_column("column", &self.column)?;
        self.output.as_deref().map_or(Ok(()), |output| check_column("output", output))?;
        check_url(&self.tokenizer).map_err(|sentence| format!("tokenizer: {sentence}"))?;
        check_given("tokenizer", &self.tokenizer, "the path or URL of a tokenizer.json")
    }

    fn infer(&self, input: &Schema) -> Result<Schema, String> {
        infer_tokenized(input, self)
    }

    fn summary(&self) -> String {
        let output = self.output.as_ref().map(|output| format!(" into {output}")).unwrap_or_default();
        let special = if self.add_special_tokens { "" } else { ", without special tokens" };
        format!("{}{output} with {}{special}", self.column, self.tokenizer)
    }

    fn require_inputs(&self, _input: &Schema, required: &mut BTreeSet<String>) {
        if let Some(output) = &self.output {
            required.remove(output);
        }
        required.insert(self.column.clone());
    }

    fn file(&self) -> Option<(&'static str, &str)> {
        Some(("tokenizer", &self.tokenizer))
    }

    fn file_mut(&mut self) -> Option<&mut String> {
        Some(&mut self.tokenizer)
    }
}

impl PipelineBuilder {
    /// Replaces text with token ids, including special tokens.
    pub fn tokenize(self, column: impl Into<String>, tokenizer: impl Into<String>) -> Self {
        self.operator(OperatorKind::Tokenize(Tokenize {
            column: column.into(),
            tokenizer: tokenizer.into(),
            output: None,
            add_special_tokens: default_true(),
        }))
    }
}

fn infer_tokenized(input: &Schema, p: &Tokenize) -> Result<Schema, String> {
    require_column_type(input, &p.column, "text", |t| matches!(t, ColumnType::Utf8), |_| "")?;
    let output = p.output.as_deref().unwrap_or(&p.column);
    if output != p.column && input.get(output).is_some() {
        return Err(format!(
            "output `{output}` would overwrite an existing column; choose another output, or drop the column with select before tokenize"
        ));
    }
    Ok(with_column_type(input, output, ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)))))
}

fn default_true() -> bool {
    true
}
