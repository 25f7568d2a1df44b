//! Parses and formats YAML files: pipelines, settings and scenarios. An error names the line, the field and the fix.
//!
//! Types follow YAML 1.2: `yes` is text, `017` is not a number, and merge keys (`<<`) are refused. Every scalar can be read
//! as text, with its original spelling.

mod document;
mod error;
#[cfg(test)]
mod tests;

use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_saphyr::Options;
use serde_saphyr::options::{DuplicateKeyPolicy, MergeKeyPolicy, NonFiniteFloatPolicy};

pub(crate) use document::Document;
pub use error::{YamlError, YamlProblem};

/// Maximum number of values in a file. Values of aliases are counted once per alias as well.
const MAX_VALUES: usize = 200_000;
/// Maximum nesting depth of lists and mappings.
const MAX_DEPTH: usize = 64;

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

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_VALUES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: MAX_VALUES,
        },
        duplicate_keys: DuplicateKeyPolicy::Error,
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        null_as_string: true,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}
