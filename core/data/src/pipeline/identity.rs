//! The id of a pipeline in positions: it tells whether two pipelines have the same rows in the same order, and what differs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

use super::{OrderMode, Pipeline};

/// Separates the fingerprint and the parts in a [`PipelineId`].
const SEPARATOR: char = ' ';
/// Precedes the name of an operator.
const OPERATOR: char = '/';
/// Maximum length of a value that the id contains. Longer values are hashed.
const MAX_VALUE_BYTES: usize = 12;
/// Operators that determine how positions count rows.
const FIXED_OPERATORS: [&str; 4] = ["batch", "bucket_by_length", "pack", "repeat"];
/// Maximum number of differences that a message names.
const MAX_NAMED: usize = 5;

/// Identifies everything in a pipeline that affects the content and order of rows: its fingerprint ([`Pipeline::fingerprint`]), and
/// the names of its parts with their values, or with hashes of them. A position of an earlier release contains only the
/// fingerprint.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PipelineId(String);

impl PipelineId {
    /// Whether two pipelines have the same fingerprint.
    pub fn is_same_pipeline(&self, other: &Self) -> bool {
        self.fingerprint() == other.fingerprint()
    }

    /// The fingerprint of the pipeline.
    pub fn fingerprint(&self) -> &str {
        self.0.split(SEPARATOR).next().unwrap_or_default()
    }

    /// Describes the differences between the pipeline of a position and the pipeline of a job, such as "`seed` was 3 and is 7". Returns
    /// their fingerprints if the parts of one of them are unknown.
    pub fn describe_differences(&self, job: &Self) -> String {
        let (saved, current) = (self.parts(), job.parts());
        let unknown =
            || format!("fingerprint {}, but this pipeline has {}", self.fingerprint(), job.fingerprint());
        if saved.is_empty() || current.is_empty() {
            return unknown();
        }
        let names = saved.keys().chain(current.keys().filter(|name| !saved.contains_key(*name)));
        let mut differences: Vec<String> =
            names.filter_map(|name| difference(name, saved.get(name), current.get(name))).collect();
        if differences.is_empty() && !self.operators().eq(job.operators()) {
            return "the operators have another order".to_owned();
        }
        if differences.is_empty() {
            return unknown();
        }
        let others = differences.len().saturating_sub(MAX_NAMED);
        differences.truncate(MAX_NAMED);
        if others > 0 {
            differences.push(format!("{others} other parts differ"));
        }
        differences.join(", ")
    }

    /// Checks that a job can continue with another pipeline at a position, which counts rows of streams and splits.
    ///
    /// # Errors
    /// Returns a message that names the part that must not change.
    pub fn check_accepted(&self, job: &Self, order: OrderMode) -> Result<(), String> {
        let (saved, current) = (self.parts(), job.parts());
        if saved.is_empty() {
            return Err("the position of an earlier release does not contain the parts of its pipeline; use the original pipeline file".to_owned());
        }
        let is_fixed = |name: &str| match name.strip_prefix(OPERATOR) {
            Some(operator) => FIXED_OPERATORS.contains(&operator.split('#').next().unwrap_or_default()),
            // The ranges of a relaxed job refer to splits.
            None => order == OrderMode::Relaxed && name == "shuffle.window",
        };
        let names = saved.keys().chain(current.keys());
        let changed = names.filter(|name| is_fixed(name)).find(|name| saved.get(*name) != current.get(*name));
        let name = match changed {
            None => return Ok(()),
            Some(name) => name.trim_start_matches(OPERATOR),
        };
        Err(format!(
            "the position refers to the batches or splits of the pipeline that it was saved with, so `{name}` must not change; use the \
             original `{name}`, or start without the position"
        ))
    }

    /// The names of the operators, in order.
    fn operators(&self) -> impl Iterator<Item = &str> {
        let names = self.0.split(SEPARATOR).skip(1).filter_map(|part| part.split_once('='));
        names.filter_map(|(name, _)| name.strip_prefix(OPERATOR))
    }

    /// The values of the parts by name.
    fn parts(&self) -> BTreeMap<&str, &str> {
        self.0.split(SEPARATOR).skip(1).filter_map(|part| part.split_once('=')).collect()
    }
}

impl From<String> for PipelineId {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<PipelineId> for String {
    fn from(id: PipelineId) -> Self {
        id.0
    }
}

fn difference(name: &str, saved: Option<&&str>, current: Option<&&str>) -> Option<String> {
    if saved == current {
        return None;
    }
    let is_hash = |value: &str| value.starts_with('#');
    Some(match (name.strip_prefix(OPERATOR), saved, current) {
        (Some(operator), Some(_), Some(_)) => format!("the operator `{operator}` changed"),
        (Some(operator), Some(_), None) => format!("the operator `{operator}` was removed"),
        (Some(operator), None, _) => format!("the operator `{operator}` was added"),
        (None, Some(saved), Some(current)) if !is_hash(saved) && !is_hash(current) => {
            format!("`{name}` was {saved} and is {current}")
        }
        (None, Some(_), Some(_)) => format!("`{name}` changed"),
        (None, Some(_), None) => format!("`{name}` was removed"),
        (None, None, _) => format!("`{name}` was added"),
    })
}

impl Pipeline {
    /// Returns the id of everything that affects the content and order of rows.
    pub fn id(&self) -> PipelineId {
        let canonical = self.canonical();
        let mut parts = vec![canonical.hash()];
        let json = serde_json::to_value(&canonical).unwrap_or_default();
        for (name, value) in json.as_object().into_iter().flatten() {
            match (name.as_str(), value) {
                ("name" | "operators", _) => {}
                ("source" | "shuffle", Value::Object(fields)) => {
                    parts.extend(
                        fields.iter().filter_map(|(field, value)| part(&format!("{name}.{field}"), value)),
                    );
                }
                _ => parts.extend(part(name, value)),
            }
        }
        let operators = json["operators"].as_array().into_iter().flatten();
        for (name, operator) in canonical.operator_names().iter().zip(operators) {
            parts.push(format!("{OPERATOR}{name}={}", hash(operator)));
        }
        PipelineId(parts.join(&SEPARATOR.to_string()))
    }
}

/// A part of an id. `None` if its value is empty.
fn part(name: &str, value: &Value) -> Option<String> {
    let is_empty = match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    };
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let is_short = text.len() <= MAX_VALUE_BYTES
        && !matches!(value, Value::Array(_) | Value::Object(_))
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
    let value = if is_short { text } else { hash(value) };
    (!is_empty).then(|| format!("{name}={value}"))
}

/// The first 24 bits of the xxh3-64 of a JSON value.
fn hash(value: &Value) -> String {
    format!("#{:06x}", xxh3_64(value.to_string().as_bytes()) >> 40)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn id(yaml: &str) -> PipelineId {
        let yaml = format!("name: test\n{yaml}");
        Pipeline::from_yaml(&yaml, "test.yaml").expect("a valid pipeline").id()
    }

    const OPERATORS: &str = "operators:\n- truncate: { column: x, length: 5 }\n- pad: { column: x, length: 5 }\n- batch: { size: 8 }\n";

    fn source(url: &str, rest: &str) -> String {
        format!("source: {{ url: {url}, format: jsonl }}\n{rest}{OPERATORS}")
    }

    #[test]
    fn an_id_has_a_part_for_each_setting_and_operator() {
        let PipelineId(text) = id(&source("data/*", "seed: 3\nshuffle: { window: 100 }\n"));
        let names: Vec<&str> =
            text.split(' ').skip(1).filter_map(|part| Some(part.split_once('=')?.0)).collect();
        for name in ["seed", "source.format", "source.url", "shuffle.window", "/truncate", "/pad", "/batch"] {
            assert!(names.contains(&name), "{name} is not in {text}");
        }
        assert!(text.contains(" seed=3 "), "{text}");
        let id = id(&source("data/*", "seed: 3\nshuffle: { window: 100 }\n"));
        assert_eq!(id.fingerprint().len(), 16);
    }

    #[test]
    fn differences_are_named() {
        let base = id(&source("data/*", "seed: 3\n"));
        let differences = |other: &str| base.describe_differences(&id(other));
        expect!["`seed` was 3 and is 7"].assert_eq(&differences(&source("data/*", "seed: 7\n")));
        expect!["`source.url` changed"].assert_eq(&differences(&source("other/*", "seed: 3\n")));
        let longer = source("data/*", "seed: 3\n")
            .replace("truncate: { column: x, length: 5 }", "truncate: { column: x, length: 4 }");
        expect!["the operator `truncate` changed"].assert_eq(&differences(&longer));
        let added =
            source("data/*", "seed: 3\n").replace("- batch", "- truncate: { column: x, length: 3 }\n- batch");
        expect!["the operator `truncate#2` was added"].assert_eq(&differences(&added));
        let (first, second) = ("- truncate: { column: x, length: 5 }\n", "- pad: { column: x, length: 5 }\n");
        let swapped =
            source("data/*", "seed: 3\n").replace(&[first, second].concat(), &[second, first].concat());
        expect!["the operators have another order"].assert_eq(&differences(&swapped));
        let removed = source("data/*", "seed: 3\n").replace("- pad: { column: x, length: 5 }\n", "");
        expect!["the operator `pad` was removed"].assert_eq(&differences(&removed));
    }

    #[test]
    fn batches_and_splits_must_not_change() {
        let base = id(&source("data/*", "seed: 3\n"));
        let check = |other: &str, order| base.check_accepted(&id(other), order);
        for other in ["seed: 7\n", "seed: 3\nshuffle: { window: 100 }\n"] {
            assert_eq!(check(&source("data/*", other), OrderMode::Deterministic), Ok(()), "{other}");
        }
        let window = source("data/*", "seed: 3\nshuffle: { window: 100 }\n");
        let error = check(&window, OrderMode::Relaxed).unwrap_err();
        assert!(error.contains("`shuffle.window` must not change"), "{error}");
        let batch = source("data/*", "seed: 3\n").replace("size: 8", "size: 16");
        expect!["the position refers to the batches or splits of the pipeline that it was saved with, so `batch` must not change; use the original `batch`, or start without the position"]
            .assert_eq(&check(&batch, OrderMode::Deterministic).unwrap_err());
        let repeat = source("data/*", "seed: 3\n").replace("- batch", "- repeat: { count: 2 }\n- batch");
        assert!(check(&repeat, OrderMode::Deterministic).unwrap_err().contains("`repeat` must not change"));
        let old = PipelineId::from(base.fingerprint().to_owned());
        assert!(
            old.check_accepted(&base, OrderMode::Deterministic).unwrap_err().contains("an earlier release")
        );
    }

    #[test]
    fn only_the_fingerprint_of_an_earlier_release_is_compared() {
        let new = id(&source("data/*", "seed: 3\n"));
        let old = PipelineId::from(new.fingerprint().to_owned());
        assert!(old.is_same_pipeline(&new) && old != new);
        let other = PipelineId::from("0123456789abcdef".to_owned());
        assert!(!other.is_same_pipeline(&new));
        let expected = format!("fingerprint 0123456789abcdef, but this pipeline has {}", new.fingerprint());
        assert_eq!(other.describe_differences(&new), expected);
    }
}
