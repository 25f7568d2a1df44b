//! Converts serde errors to sentences for users.
//!
//! Serde exposes an error only as text: `path: message at line 1 column 2`. Unrecognized messages are returned unchanged.
//! The tests of `from_yaml` cover each form of message.

use crate::pipeline::suggest::{did_you_mean, join_names};
use crate::pipeline::{BENCHMARK_OPERATORS, OPERATOR_NAMES};

/// A parser error in terms of the pipeline file.
pub(super) struct ParserMessage {
    pub(super) sentence: String,
    /// The key that appears twice, if the error is a duplicate key.
    pub(super) repeated_key: Option<String>,
}

/// Converts a parser error to a message. The message does not contain the line number.
pub(super) fn describe_parser_error(error: &str) -> ParserMessage {
    let (path, message) = split_path(error);
    let repeated_key =
        message.strip_prefix("duplicate field ").or(message.strip_prefix("duplicate entry with key "));
    let repeated_key = repeated_key.map(unquoted);
    let sentence = match &repeated_key {
        Some(key) => format!("key `{key}` appears twice{}; remove one of them", in_mapping(path)),
        None => describe_message(path, message),
    };
    ParserMessage { sentence, repeated_key }
}

fn describe_message(path: &str, message: &str) -> String {
    if let Some(rest) = message.strip_prefix("unknown field ") {
        return unknown_key(path, rest);
    }
    if let Some(rest) = message.strip_prefix("unknown variant ") {
        return unknown_value(path, rest);
    }
    if let Some(rest) = message.strip_prefix("missing field ") {
        return format!("{} has no key `{}`; add the key", field_name(path), unquoted(rest));
    }
    if let Some(rest) = message.strip_prefix("invalid type: ").or(message.strip_prefix("invalid value: ")) {
        return wrong_type(path, rest);
    }
    if let Some(rest) = message.strip_prefix("invalid length ") {
        let (length, expected) = rest.split_once(", expected ").unwrap_or((rest, "another length"));
        let (field, expected) = (field_name(path), describe_expected(path, expected));
        return format!("{field} must be {expected}, got a list of length {length}");
    }
    if message.contains("more than one document") {
        return "the file contains several YAML documents; keep one document and remove the second `---`"
            .to_owned();
    }
    match path {
        "" => format!("invalid YAML: {message}"),
        _ => message.to_owned(),
    }
}

fn unknown_key(path: &str, rest: &str) -> String {
    let (key, mut known) = name_and_known(rest);
    if operator_of(path).is_some() && !known.contains(&"parallelism") {
        known.push("parallelism");
    }
    let hint = did_you_mean(key, known.iter().copied());
    format!("unknown key `{key}`{}{hint}{}", in_mapping(path), known_names(&hint, &known))
}

fn unknown_value(path: &str, rest: &str) -> String {
    let (name, mut known) = name_and_known(rest);
    let is_operator = known == OPERATOR_NAMES;
    if is_operator {
        known.retain(|name| !BENCHMARK_OPERATORS.contains(name));
    }
    let hint = did_you_mean(name, known.iter().copied());
    let field = if is_operator { "operator".to_owned() } else { field_name(path) };
    format!("unknown {field} `{name}`{hint}{}", known_names(&hint, &known))
}

fn known_names(hint: &str, known: &[&str]) -> String {
    let names = join_names(known.iter().copied());
    if hint.is_empty() { format!("; known: {names}") } else { format!(" (known: {names})") }
}

fn wrong_type(path: &str, rest: &str) -> String {
    let (value, expected) = rest.split_once(", expected ").unwrap_or((rest, "another type"));
    if expected.starts_with("an operator with") {
        return format!("an entry of operators must be {expected}, got {}", describe_value(value));
    }
    let (field, actual) = (field_name(path), describe_value(value));
    let mut sentence = format!("{field} must be {}, got {actual}", describe_expected(path, expected));
    if expected == "a string" && !["map", "sequence", "unit value"].contains(&value) {
        sentence.push_str("; put the value in quotes");
    }
    sentence
}

/// Describes an expected type in terms of the pipeline file.
fn describe_expected(path: &str, expected: &str) -> String {
    let key = path.rsplit('.').next().unwrap_or_default();
    match (key, expected) {
        ("size", "an array of length 2" | "sequence of 2 elements") => {
            "[height, width], such as [224, 224]".to_owned()
        }
        (_, "an array of length 2" | "sequence of 2 elements") => {
            "[smallest, largest], such as [0.5, 1.0]".to_owned()
        }
        (_, "u32") => format!("a whole number from 0 to {}", u32::MAX),
        (_, "u64") => format!("a whole number from 0 to {}", u64::MAX),
        (_, "i64") => "a whole number".to_owned(),
        (_, "f64") => "a number".to_owned(),
        (_, "a string") => "text".to_owned(),
        (_, "a sequence") => "a list".to_owned(),
        (_, "a boolean") => "true or false".to_owned(),
        (_, "a YAML tag starting with '!'") => "one word".to_owned(),
        (_, "a map") => "a mapping".to_owned(),
        (_, other) if other.starts_with("struct ") => "a mapping".to_owned(),
        (_, other) => other.to_owned(),
    }
}

/// Describes an actual value in terms of the pipeline file.
fn describe_value(value: &str) -> String {
    match value.split_once(' ') {
        Some(("string", text)) => format!("text `{}`", unquoted(text)),
        Some(("integer" | "boolean", shown)) => unquoted(shown),
        Some(("floating", shown)) => unquoted(shown.trim_start_matches("point ")),
        Some(("unit", _)) => "nothing".to_owned(),
        _ if value == "map" => "a mapping".to_owned(),
        _ if value == "sequence" => "a list".to_owned(),
        _ => value.to_owned(),
    }
}

/// Splits an error into path and message, and removes the location at the end.
fn split_path(error: &str) -> (&str, &str) {
    let without_location = error.rfind(" at line ").map_or(error, |end| &error[..end]);
    match without_location.split_once(": ") {
        Some((path, message)) if is_path(path) => (path, message),
        _ => ("", without_location),
    }
}

/// Whether the text is a path such as `operators[2].batch.size`: one word without quotes.
fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '`', '"'])
}

/// Returns the name of a field for messages: `batch.size` for the path `operators[2].batch.size`.
fn field_name(path: &str) -> String {
    let shown = match path.split_once("].") {
        Some((list, inside)) if list.starts_with("operators[") => inside,
        _ => path,
    };
    if shown.is_empty() { "the pipeline".to_owned() } else { shown.to_owned() }
}

/// Returns ` in batch` for keys of `batch`, and an empty string for top-level keys.
fn in_mapping(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" in {}", field_name(path)) }
}

/// Returns the operator with parameters at this path.
fn operator_of(path: &str) -> Option<&str> {
    let (list, name) = path.split_once("].")?;
    (list.starts_with("operators[") && OPERATOR_NAMES.contains(&name)).then_some(name)
}

/// Splits "`name`, expected one of `a`, `b`" into the name and the known names.
fn name_and_known(rest: &str) -> (&str, Vec<&str>) {
    let (name, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
    (name.trim_matches('`'), expected.split('`').skip(1).step_by(2).collect())
}

fn unquoted(text: &str) -> String {
    text.trim_matches(['`', '"']).to_owned()
}
