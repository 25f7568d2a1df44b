//! `tokenize`: converts text to token ids with a Hugging Face tokenizer.

use std::sync::Arc;

use arrow::array::{Array, Int32Builder, ListBuilder};
use feedline_contained::contained;
use feedline_data::pipeline::Tokenize;
use tokenizers::{Encoding, Tokenizer};

use super::{KernelContext, KernelDefinition};
use crate::arrow_types::text_at;
use crate::{Chunk, Column, OperatorError, OperatorKernel, OutputBuffers};

impl KernelDefinition for Tokenize {
    fn build(&self, context: &KernelContext<'_>) -> Result<Arc<dyn OperatorKernel>, String> {
        Ok(Arc::new(TokenizeOperator {
            column: self.column.clone(),
            output: self.output.clone().unwrap_or_else(|| self.column.clone()),
            add_special_tokens: self.add_special_tokens,
            tokenizer: TokenizeOperator::parse_tokenizer(&(context.load)(&self.tokenizer)?, &self.tokenizer)?,
        }))
    }
}

/// Converts the text of each row to a list of token ids.
pub(crate) struct TokenizeOperator {
    pub(crate) column: String,
    pub(crate) output: String,
    pub(crate) add_special_tokens: bool,
    pub(crate) tokenizer: Tokenizer,
}

impl TokenizeOperator {
    /// Parses a `tokenizer.json`.
    pub(crate) fn parse_tokenizer(bytes: &[u8], path: &str) -> Result<Tokenizer, String> {
        // The tokenizers crate panics on some invalid files.
        let parse = || Tokenizer::from_bytes(bytes).map_err(|error| error.to_string());
        contained(parse, "the file is corrupted")
            .map_err(|reason| format!("`{path}` is not a valid Hugging Face tokenizer.json: {reason}"))
    }

    fn encode(&self, text: &str) -> Result<Encoding, String> {
        let encode =
            || self.tokenizer.encode_fast(text, self.add_special_tokens).map_err(|error| error.to_string());
        contained(encode, "the tokenizer panicked, because its tokenizer.json is inconsistent")
    }
}

impl OperatorKernel for TokenizeOperator {
    /// Tokenizes the rows on the current thread. The engine runs chunks in parallel, so the library's own threads would only compete
    /// with other chunks.
    fn apply(&self, chunk: &mut Chunk, _buffers: &mut OutputBuffers) -> Result<(), OperatorError> {
        let texts = chunk.arrow(&self.column)?.clone();
        let failed = chunk.failed_rows();
        let mut failures = Vec::new();
        let mut lists = ListBuilder::new(Int32Builder::new());
        for row in 0..texts.len() {
            let text = text_at(texts.as_ref(), row).ok_or_else(|| {
                OperatorError::new(format!(
                    "column `{}` has type {}, but must contain text",
                    self.column,
                    texts.data_type()
                ))
            })?;
            if failed.contains(row) {
                lists.append(false);
                continue;
            }
            let encoded = match text {
                Some(text) => self
                    .encode(text)
                    .map_err(|reason| format!("cannot tokenize column `{}`: {reason}", self.column)),
                None => Err(format!("column `{}` is null", self.column)),
            };
            match encoded {
                Ok(encoding) => {
                    for &id in encoding.get_ids() {
                        lists.values().append_value(id as i32);
                    }
                    lists.append(true);
                }
                Err(reason) => {
                    lists.append(false);
                    failures.push((row, reason));
                }
            }
        }
        chunk.set(&self.output, Column::Arrow(Arc::new(lists.finish())));
        chunk.fail_all(failures);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
