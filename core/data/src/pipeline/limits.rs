//! Size limits of a pipeline. Each limit is well above what users need, and low enough that every role can store, log and
//! send a pipeline.

use super::check_error::{CheckError, ErrorPath};
use super::parameter_checks::{check_column_name_length, check_count, check_text_length};
use super::{Pipeline, Source};
use crate::schema::MAX_COLUMNS;
use crate::urls::check_no_secrets;

/// Maximum size of a pipeline file in bytes.
pub const MAX_FILE_BYTES: usize = 1 << 20;
/// Maximum nesting depth of list columns.
pub const MAX_NESTING: usize = 8;
/// Maximum number of operators.
const MAX_OPERATORS: usize = 256;
/// Maximum number of paths, globs and URLs of a source.
const MAX_URLS: usize = 10_000;
/// Maximum length of a path, glob or URL in bytes: the usual limit of web servers and file systems.
const MAX_URL_BYTES: usize = 4_096;
/// Maximum length in bytes of the name of a pipeline or of credentials.
const MAX_NAME_BYTES: usize = 128;

/// Checks the sizes of a pipeline, and that no URL contains a secret.
pub(super) fn check_limits(pipeline: &Pipeline) -> Result<(), CheckError> {
    check_text_length("the name", &pipeline.name, MAX_NAME_BYTES)
        .map_err(|sentence| CheckError::new(ErrorPath::Name, sentence))?;
    for source in pipeline.source.datasets() {
        check_source(source)?;
    }
    check_count("operators", pipeline.operators.len(), MAX_OPERATORS, "split the pipeline into several jobs")
        .map_err(|sentence| CheckError::new(ErrorPath::Operators, sentence))
}

fn check_source(source: &Source) -> Result<(), CheckError> {
    let error = |field| move |sentence: String| CheckError::new(ErrorPath::Source(field), sentence);
    check_count("entries", source.url.len(), MAX_URLS, "use globs, prefixes or braces")
        .map_err(error("url"))?;
    for url in &source.url {
        check_url(url).map_err(error("url"))?;
    }
    let bytes: usize = source.url.iter().map(String::len).sum();
    if bytes > MAX_FILE_BYTES {
        let sentence = format!(
            "the URLs are {bytes} bytes long in total; the limit is {MAX_FILE_BYTES} bytes; use globs, prefixes or braces"
        );
        return Err(CheckError::new(ErrorPath::Source("url"), sentence));
    }
    check_count("columns", source.features.len(), MAX_COLUMNS, "remove unused columns")
        .map_err(error("features"))?;
    for (column, data_name) in &source.features {
        check_column_name_length("column", column).map_err(error("features"))?;
        check_column_name_length("the name in the data", data_name).map_err(error("features"))?;
    }
    for (key, value) in [("config", &source.config), ("split", &source.split), ("seeds", &source.seeds)] {
        if let Some(value) = value {
            check_text_length("the name", value, MAX_NAME_BYTES).map_err(error(key))?;
        }
    }
    match &source.credentials {
        Some(name) => check_credentials(name).map_err(error("credentials")),
        None => Ok(()),
    }
}

/// Checks the form of a credentials name. The error does not repeat the name, because the user may have written a key.
fn check_credentials(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(allowed) {
        return Err(format!(
            "invalid credentials name: write a name from the `--credentials` file, with at most {MAX_NAME_BYTES} letters, digits, \
            `_`, `.` and `-`; do not write the secret itself"
        ));
    }
    Ok(())
}

/// Checks that a path or URL contains no secret and is not too long.
pub(super) fn check_url(url: &str) -> Result<(), String> {
    check_no_secrets(url)?;
    check_text_length("entry", url, MAX_URL_BYTES)
}

#[cfg(test)]
mod tests;
