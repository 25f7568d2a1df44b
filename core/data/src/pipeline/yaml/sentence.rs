//! Turns serde's errors into sentences for users.
//!
//! The text of an error is all that serde gives: `path: message at line 1 column 2`. What is not recognised is passed
//! on as it is; the tests of `from_yaml` hold each form.

use crate::pipeline::suggest::{did_you_mean, listed};
use crate::pipeline::{MEASUREMENT_OPERATORS, OPERATOR_NAMES};

/// What a parser's error says.
pub(super) struct ParserMessage {
    pub(super) sentence: String,
    /// The key, where the error is that it is given twice.
    pub(super) repeated_key: Option<String>,
}

/// The sentence for an error's text; the line is said elsewhere.
pub(super) fn tell(error: &str) -> ParserMessage {
    let (path, message) = split(error);
    let repeated_key =
        after(message, "duplicate field ").or(after(message, "duplicate entry with key ")).map(unquoted);
    let sentence = match &repeated_key {
        Some(key) => format!("key `{key}` is given twice{}; keep one", within(path)),
        None => sentence(path, message),
    };
    ParserMessage { sentence, repeated_key }
}

fn sentence(path: &str, message: &str) -> String {
    if let Some(rest) = after(message, "unknown field ") {
        return unknown_key(path, rest);
    }
    if let Some(rest) = after(message, "unknown variant ") {
        return unknown_value(path, rest);
    }
    if let Some(rest) = after(message, "missing field ") {
        return format!("{} lacks the key `{}`; add it", value(path), unquoted(rest));
    }
    if let Some(rest) = after(message, "invalid type: ").or(after(message, "invalid value: ")) {
        return wrong_type(path, rest);
    }
    if let Some(rest) = after(message, "invalid length ") {
        let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, "another length"));
        return format!("{} must be {}, got a list of length {found}", value(path), wanted(path, expected));
    }
    if message.contains("more than one document") {
        return "the file holds several documents; keep one, without a second `---`".to_owned();
    }
    match path {
        "" => format!("this is not valid YAML: {message}"),
        _ => message.to_owned(),
    }
}

fn unknown_key(path: &str, rest: &str) -> String {
    let (key, mut known) = name_and_known(rest);
    if operator_of(path).is_some() && !known.contains(&"parallelism") {
        known.push("parallelism");
    }
    let hint = did_you_mean(key, known.iter().copied());
    format!("unknown key `{key}`{}{hint}{}", within(path), known_names(&hint, &known))
}

fn unknown_value(path: &str, rest: &str) -> String {
    let (name, mut known) = name_and_known(rest);
    let is_operator = known == OPERATOR_NAMES;
    if is_operator {
        known.retain(|name| !MEASUREMENT_OPERATORS.contains(name));
    }
    let hint = did_you_mean(name, known.iter().copied());
    let what = if is_operator { "operator".to_owned() } else { value(path) };
    format!("unknown {what} `{name}`{hint}{}", known_names(&hint, &known))
}

fn known_names(hint: &str, known: &[&str]) -> String {
    let names = listed(known.iter().copied());
    if hint.is_empty() { format!("; known: {names}") } else { format!(" (known: {names})") }
}

fn wrong_type(path: &str, rest: &str) -> String {
    let (found, expected) = rest.split_once(", expected ").unwrap_or((rest, "another type"));
    if expected.starts_with("an operator with") {
        return format!("an entry of operators must be {expected}, got {}", got(found));
    }
    let mut sentence = format!("{} must be {}, got {}", value(path), wanted(path, expected), got(found));
    if expected == "a string" && !["map", "sequence", "unit value"].contains(&found) {
        sentence.push_str("; put it in quotes");
    }
    sentence
}

/// What was expected, in the words of a pipeline file.
fn wanted(path: &str, expected: &str) -> String {
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

/// What was found, in the words of a pipeline file.
fn got(found: &str) -> String {
    match found.split_once(' ') {
        Some(("string", text)) => format!("text `{}`", unquoted(text)),
        Some(("integer" | "boolean", shown)) => unquoted(shown),
        Some(("floating", shown)) => unquoted(shown.trim_start_matches("point ")),
        Some(("unit", _)) => "nothing".to_owned(),
        _ if found == "map" => "a mapping".to_owned(),
        _ if found == "sequence" => "a list".to_owned(),
        _ => found.to_owned(),
    }
}

/// Path and message, without the location at the end.
fn split(error: &str) -> (&str, &str) {
    let without_location = error.rfind(" at line ").map_or(error, |end| &error[..end]);
    match without_location.split_once(": ") {
        Some((path, message)) if is_path(path) => (path, message),
        _ => ("", without_location),
    }
}

/// Messages begin with words, paths with one: `operators[2].batch.size`.
fn is_path(text: &str) -> bool {
    !text.is_empty() && !text.contains([' ', '`', '"'])
}

/// `batch.size` of `operators[2].batch.size`: how a value is called in a sentence.
fn value(path: &str) -> String {
    let shown = match path.split_once("].") {
        Some((list, inside)) if list.starts_with("operators[") => inside,
        _ => path,
    };
    if shown.is_empty() { "the pipeline".to_owned() } else { shown.to_owned() }
}

/// ` in batch`, or nothing at the top level.
fn within(path: &str) -> String {
    if path.is_empty() { String::new() } else { format!(" in {}", value(path)) }
}

/// The operator whose parameters are at this path.
fn operator_of(path: &str) -> Option<&str> {
    let (list, name) = path.split_once("].")?;
    (list.starts_with("operators[") && OPERATOR_NAMES.contains(&name)).then_some(name)
}

/// The name and the known names of "`name`, expected one of `a`, `b`".
fn name_and_known(rest: &str) -> (&str, Vec<&str>) {
    let (name, expected) = rest.split_once(", expected ").unwrap_or((rest, ""));
    (name.trim_matches('`'), expected.split('`').skip(1).step_by(2).collect())
}

fn after<'a>(message: &'a str, prefix: &str) -> Option<&'a str> {
    message.strip_prefix(prefix)
}

fn unquoted(text: &str) -> String {
    text.trim_matches(['`', '"']).to_owned()
}
