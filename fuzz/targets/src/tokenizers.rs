//! The target of tokenizer files.

use std::sync::Arc;

use arrow::array::StringViewArray;
use feedline_data::schema::ColumnType;

use crate::values::{apply, operators};

const PIPELINE: &str = "name: fuzz
source: {url: texts/, format: text}
operators:
  - tokenize: {column: text, tokenizer: tokenizer.json, add_special_tokens: true}
  - batch: {size: 1}
";

/// Empty text, words, multi-byte characters, white space, and a repetition.
const TEXTS: [&str; 5] =
    ["", "Hello world, hello!", "na\u{ef}ve \u{6f22}\u{5b57} \u{1f600}", " \t\n  ", "aaaaaaaaaaaaaaaa"];

/// Parses a tokenizer file, and tokenizes a few texts with the result.
pub fn tokenizer(bytes: &[u8]) {
    let Ok(operators) = operators(PIPELINE, ("text", ColumnType::Utf8), bytes) else { return };
    apply(&operators, "text", Arc::new(StringViewArray::from_iter_values(TEXTS)));
}
