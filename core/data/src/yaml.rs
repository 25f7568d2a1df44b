//! Parses and formats YAML files: pipelines, settings and scenarios. An error names the line, the field and the fix.
//!
//! Types follow YAML 1.2: `yes` is text, `017` is not a number, and merge keys (`<<`) are refused. Every scalar can be read
//! as text, with its original spelling.

mod document;
mod error;
mod options;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};

pub(crate) use document::Document;
pub use error::{YamlError, YamlProblem};

use options::options;

/// Parses the text of a file with one document.
///
/// # Errors
/// Returns the first error in the file.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, YamlError> {
    let mut path = None;
    let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options(), |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            path = Some(error.path().clone());
            error.into_inner()
        })
    });
    match parsed {
        // An empty file is an empty mapping, which is valid if no key is required.
        Ok(value) => Ok(value),
        Err(_) if is_empty(text) => Err(YamlError::empty()),
        Err(error) => Err(YamlError::new(&error, path.as_ref(), Document::parse(text).as_ref())),
    }
}

/// Whether the file contains no value, or only a null.
fn is_empty(text: &str) -> bool {
    serde_saphyr::from_str_with_options::<Option<IgnoredAny>>(text, options())
        .is_ok_and(|value| value.is_none())
}

/// Formats a value as YAML in block style. [`parse`] returns an equal value.
///
/// # Errors
/// Returns an error if the value's type cannot be represented in YAML.
pub(crate) fn format<T: Serialize>(value: &T) -> Result<String, serde_saphyr::SerializeError> {
    // Long texts stay on one line, so that they can be searched for.
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    serde_saphyr::to_string_with_options(value, options)
}
