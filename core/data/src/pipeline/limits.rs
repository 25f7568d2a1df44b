//! How large a pipeline may be: each of these is beyond what people write, and within what every role keeps, logs and sends.

use super::check::{CheckError, ErrorPath};
use super::{Operator, OperatorKind, Pipeline, Source};
use crate::schema::MAX_COLUMNS;
use crate::urls::refuse_secrets;

/// Largest pipeline file in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Longest name of a column, or of what it is called in the data, in bytes.
pub const MAX_COLUMN_NAME_BYTES: usize = 1_024;
/// Deepest that a column's lists nest.
pub const MAX_NESTING: usize = 8;
/// Most boundaries of `bucket_by_length`.
const MAX_BUCKETS: usize = 1024;
/// Longest row of a `pad`, in elements.
pub(super) const PAD_LENGTH_MAX: u32 = 1 << 24;
/// Most passes of a `repeat`.
const REPEAT_MAX: u32 = 1_000_000;
/// Values in a pipeline file, once its aliases are written out.
pub(super) const MAX_VALUES: usize = 200_000;
/// Most operators.
const MAX_OPERATORS: usize = 256;
/// Most paths, globs and URLs of a source.
const MAX_URLS: usize = 10_000;
/// Longest path, glob or URL in bytes, as web servers and systems have it.
const MAX_URL_BYTES: usize = 4_096;
/// Longest name of a pipeline, or of credentials, in bytes.
const MAX_NAME_BYTES: usize = 128;
/// Numbers in `mean` and `std`.
const MAX_CHANNELS: usize = 64;
/// Longest expression of a `filter` in bytes.
const MAX_EXPRESSION_BYTES: usize = 16 << 10;

/// Checks sizes, and that no URL has a secret in it. What a pipeline means is checked elsewhere.
pub(super) fn check_limits(pipeline: &Pipeline) -> Result<(), CheckError> {
    short("the name", &pipeline.name, MAX_NAME_BYTES)
        .map_err(|sentence| CheckError::new(ErrorPath::Name, sentence))?;
    for source in pipeline.source.datasets() {
        check_source(source)?;
    }
    few("operators", pipeline.operators.len(), MAX_OPERATORS, "put several jobs behind each other")
        .map_err(|sentence| CheckError::new(ErrorPath::Operators, sentence))?;
    for (index, operator) in pipeline.operators.iter().enumerate() {
        check_operator(operator).map_err(|sentence| CheckError::new(ErrorPath::Operator(index), sentence))?;
    }
    Ok(())
}

fn check_source(source: &Source) -> Result<(), CheckError> {
    let refused = |field| move |sentence: String| CheckError::new(ErrorPath::Source(field), sentence);
    few("entries", source.url.len(), MAX_URLS, "use globs, prefixes or braces").map_err(refused("url"))?;
    for url in &source.url {
        check_url(url).map_err(refused("url"))?;
    }
    let bytes: usize = source.url.iter().map(String::len).sum();
    if bytes > MAX_FILE_BYTES {
        let sentence = format!(
            "the entries have {bytes} bytes together, more than {MAX_FILE_BYTES}; use globs, prefixes or braces"
        );
        return Err(CheckError::new(ErrorPath::Source("url"), sentence));
    }
    few("columns", source.features.len(), MAX_COLUMNS, "leave out what is not used")
        .map_err(refused("features"))?;
    for (column, data_name) in &source.features {
        column_name("a column", column).map_err(refused("features"))?;
        column_name("a name in the data", data_name).map_err(refused("features"))?;
    }
    match &source.credentials {
        Some(name) => check_credentials(name).map_err(refused("credentials")),
        None => Ok(()),
    }
}

/// A name, and no key that was written in its place.
fn check_credentials(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        return Err(format!(
            "this is no name of credentials; write the name that the file of `--credentials` has for them, of at most \
             {MAX_NAME_BYTES} letters, digits, `_`, `.` and `-`, and never a key itself"
        ));
    }
    Ok(())
}

fn check_url(url: &str) -> Result<(), String> {
    refuse_secrets(url)?;
    short("an entry", url, MAX_URL_BYTES)
}

fn check_operator(operator: &Operator) -> Result<(), String> {
    match &operator.kind {
        OperatorKind::DecodeImage(p) => column_name("column", &p.column),
        OperatorKind::Resize(p) => column_name("column", &p.column),
        OperatorKind::CenterCrop(p) => column_name("column", &p.column),
        OperatorKind::RandomResizedCrop(p) => column_name("column", &p.column),
        OperatorKind::RandomHorizontalFlip(p) => column_name("column", &p.column),
        OperatorKind::Normalize(p) => {
            column_name("column", &p.column)?;
            few("numbers in mean", p.mean.len(), MAX_CHANNELS, "write one per channel")?;
            few("numbers in std", p.std.len(), MAX_CHANNELS, "write one per channel")
        }
        OperatorKind::Cast(p) => column_name("column", &p.column),
        OperatorKind::Select(p) => {
            few("columns", p.columns.len(), MAX_COLUMNS, "leave some out")?;
            p.columns.iter().try_for_each(|column| column_name("a column", column))
        }
        OperatorKind::Rename(p) => {
            few("columns", p.columns.len(), MAX_COLUMNS, "leave some out")?;
            let mut names = p.columns.iter().flat_map(|(new, present)| [new, present]);
            names.try_for_each(|name| column_name("a column", name))
        }
        OperatorKind::Filter(p) => short("where", &p.predicate, MAX_EXPRESSION_BYTES),
        OperatorKind::Tokenize(p) => {
            column_name("column", &p.column)?;
            p.output.as_deref().map_or(Ok(()), |output| column_name("output", output))?;
            check_url(&p.tokenizer).map_err(|sentence| format!("tokenizer: {sentence}"))
        }
        OperatorKind::Truncate(p) => column_name("column", &p.column),
        OperatorKind::Pad(p) => {
            column_name("column", &p.column)?;
            if p.length > PAD_LENGTH_MAX {
                return Err(format!("length is {}; write at most {PAD_LENGTH_MAX}", p.length));
            }
            Ok(())
        }
        OperatorKind::BucketByLength(p) => {
            few("columns", p.columns.len(), MAX_COLUMNS, "leave some out")?;
            few("boundaries", p.boundaries.len(), MAX_BUCKETS, "write fewer")?;
            few("batch_sizes", p.batch_sizes.len(), MAX_BUCKETS + 1, "write fewer")?;
            p.columns.iter().try_for_each(|column| column_name("a column", column))?;
            let longest = p.boundaries.last().copied().unwrap_or_default();
            if longest > PAD_LENGTH_MAX {
                return Err(format!("a boundary is {longest}; write at most {PAD_LENGTH_MAX}"));
            }
            Ok(())
        }
        OperatorKind::Pack(p) => {
            few("columns", p.columns.len(), MAX_COLUMNS, "leave some out")?;
            p.columns.iter().try_for_each(|column| column_name("a column", column))?;
            if p.length > PAD_LENGTH_MAX {
                return Err(format!("length is {}; write at most {PAD_LENGTH_MAX}", p.length));
            }
            Ok(())
        }
        OperatorKind::RecodeJpeg(p) => column_name("column", &p.column),
        OperatorKind::Repeat(p) if p.count > REPEAT_MAX => {
            Err(format!("count is {}; write at most {REPEAT_MAX}, and open the job for more epochs", p.count))
        }
        OperatorKind::Map(p) | OperatorKind::FilterFunction(p) => {
            few("columns", p.columns.len(), MAX_COLUMNS, "leave some out")?;
            few("outputs", p.outputs.len(), MAX_COLUMNS, "leave some out")?;
            let mut names = p.columns.iter().chain(p.outputs.keys());
            names.try_for_each(|name| column_name("a column", name))
        }
        OperatorKind::Repeat(_)
        | OperatorKind::Cache(_)
        | OperatorKind::Batch(_)
        | OperatorKind::Burn(_)
        | OperatorKind::Wait(_) => Ok(()),
    }
}

fn column_name(what: &str, name: &str) -> Result<(), String> {
    short(what, name, MAX_COLUMN_NAME_BYTES)
}

fn short(what: &str, text: &str, most: usize) -> Result<(), String> {
    if text.len() <= most {
        return Ok(());
    }
    let start: String = text.chars().take(24).collect();
    Err(format!("{what}, `{start}...`, has {} bytes; write at most {most}", text.len()))
}

fn few(what: &str, count: usize, most: usize, fix: &str) -> Result<(), String> {
    if count <= most { Ok(()) } else { Err(format!("there are {count} {what}, more than {most}; {fix}")) }
}

#[cfg(test)]
mod tests;
