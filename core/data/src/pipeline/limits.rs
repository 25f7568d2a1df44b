//! How large a pipeline may be: each limit is beyond what people write, and within what every role stores, logs and sends.

use super::check::{CheckError, ErrorPath};
use super::parameter_checks::{column_name, few, short};
use super::{Pipeline, Source};
use crate::schema::MAX_COLUMNS;
use crate::urls::refuse_secrets;

/// Largest pipeline file in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Longest name of a column, or of what it is called in the data, in bytes.
pub const MAX_COLUMN_NAME_BYTES: usize = 1_024;
/// Deepest that a column's lists nest.
pub const MAX_NESTING: usize = 8;
/// Longest row of a `pad`, in elements.
pub(super) const PAD_LENGTH_MAX: u32 = 1 << 24;
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

/// Checks sizes, and that no URL has a secret in it. What a pipeline means is checked elsewhere.
pub(super) fn check_limits(pipeline: &Pipeline) -> Result<(), CheckError> {
    short("the name", &pipeline.name, MAX_NAME_BYTES)
        .map_err(|sentence| CheckError::new(ErrorPath::Name, sentence))?;
    for source in pipeline.source.datasets() {
        check_source(source)?;
    }
    few("operators", pipeline.operators.len(), MAX_OPERATORS, "put several jobs behind each other")
        .map_err(|sentence| CheckError::new(ErrorPath::Operators, sentence))
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

/// A path or URL without secrets.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    refuse_secrets(url)?;
    short("an entry", url, MAX_URL_BYTES)
}

#[cfg(test)]
mod tests;
