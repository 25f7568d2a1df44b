//! Generates the operators' methods of the Python package from their definitions: names, types, defaults and documentation.
//! `UPDATE_EXPECT=1` writes `client/python/feedline/_operators.py`.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;

use expect_test::expect_file;

/// Operators whose methods are handwritten because they take a Python function.
const HANDWRITTEN: [&str; 3] = ["filter", "map", "filter_function"];
/// Longest line of the generated file.
const LINE_LENGTH: usize = 140;

const HEAD: &str = r#""""One method for each operator. Generated from `core/data/src/pipeline/operators/`; do not edit."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from feedline._arguments import to_names


class Operators:
    """The operators of a pipeline."""

    def _operator(self, name: str, parallelism: int | None, **parameters: Any) -> Self:
        raise NotImplementedError
"#;

/// A row of the registry.
struct Registered {
    key: String,
    parameters: String,
    doc: String,
}

/// A field of an operator's parameters.
struct Parameter {
    name: String,
    rust_type: String,
    doc: String,
    has_default: bool,
}

#[test]
fn the_methods_of_the_python_package_are_those_of_the_registry() {
    let mut python = HEAD.to_owned();
    for operator in registry() {
        if !HANDWRITTEN.contains(&operator.key.as_str()) {
            python.push('\n');
            python.push_str(&method(&operator, &parameters(&operator)));
        }
    }
    expect_file!["../../../client/python/feedline/_operators.py"].assert_eq(&python);
}

fn pipeline_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/pipeline")
}

fn read(path: PathBuf) -> String {
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()))
}

/// The lines between `head` and the closing brace in the first column.
fn body<'a>(text: &'a str, head: &str) -> Option<impl Iterator<Item = &'a str> + use<'a>> {
    let (_, rest) = text.split_once(head)?;
    let (body, _) = rest.split_once("\n}")?;
    Some(body.lines().map(str::trim).filter(|line| !line.is_empty()))
}

fn registry() -> Vec<Registered> {
    let text = read(pipeline_folder().join("operators.rs"));
    let mut doc = Vec::new();
    let mut rows = Vec::new();
    for line in body(&text, "\noperators! {").expect("the registry is in operators.rs") {
        if let Some(comment) = line.strip_prefix("///") {
            doc.push(comment.trim());
        } else if let Some((key, kind)) = line.split_once(" => ") {
            let (_, parameters) = kind.split_once('(').expect("a row names its parameters");
            let parameters = parameters.trim_end_matches("),").to_owned();
            rows.push(Registered {
                key: key.to_owned(),
                parameters,
                doc: std::mem::take(&mut doc).join(" "),
            });
        }
    }
    rows
}

fn parameters(operator: &Registered) -> Vec<Parameter> {
    let text = read(pipeline_folder().join("operators").join(format!("{}.rs", operator.key)));
    let lines = body(&text, &format!("pub struct {} {{", operator.parameters));
    let (mut doc, mut has_default) = (Vec::new(), false);
    let mut parameters = Vec::new();
    for line in lines.unwrap_or_else(|| panic!("{}.rs has its parameters", operator.key)) {
        if let Some(comment) = line.strip_prefix("///") {
            doc.push(comment.trim());
        } else if line.starts_with("#[serde(") {
            has_default |= line.contains("default");
        } else if let Some((name, rust_type)) =
            line.strip_prefix("pub ").and_then(|line| line.split_once(": "))
        {
            parameters.push(Parameter {
                name: name.to_owned(),
                rust_type: rust_type.trim_end_matches(',').to_owned(),
                doc: std::mem::take(&mut doc).join(" "),
                has_default: std::mem::take(&mut has_default),
            });
        }
    }
    parameters
}

fn method(operator: &Registered, parameters: &[Parameter]) -> String {
    let Registered { key, doc, .. } = operator;
    let mut arguments = vec!["self".to_owned()];
    for Parameter { name, has_default, .. } in parameters {
        let python = python_type(parameters, name);
        arguments.push(match has_default {
            true => format!("{name}: {python} | None = None"),
            false => format!("{name}: {python}"),
        });
    }
    arguments.extend(["*".to_owned(), "parallelism: int | None = None".to_owned()]);
    let one_line = format!("    def {key}({}) -> Self:", arguments.join(", "));
    let mut text = match one_line.len() <= LINE_LENGTH {
        true => one_line,
        false => format!("    def {key}(\n        {},\n    ) -> Self:", arguments.join(",\n        ")),
    };
    write!(text, "\n        \"\"\"{doc}\n\n        Args:\n").expect("text can be written to");
    for Parameter { name, doc, .. } in parameters {
        text.push_str(&wrapped(&format!("            {name}: {doc}"), "                "));
    }
    text.push_str(&wrapped(
        "            parallelism: Maximum number of concurrent executions on one worker. By default, the engine chooses.",
        "                ",
    ));
    text.push_str("        \"\"\"\n");
    let given = parameters.iter().map(|Parameter { name, rust_type, .. }| match rust_type == "Vec<String>" {
        true => format!("{name}=to_names({name})"),
        false => format!("{name}={name}"),
    });
    let given: Vec<String> = given.collect();
    let call = format!("        return self._operator(\"{key}\", parallelism, {})\n", given.join(", "));
    text + &call
}

/// The lines of a wrapped paragraph.
fn wrapped(line: &str, indent: &str) -> String {
    let start = line.len() - line.trim_start().len();
    let mut lines = vec![line[..start].to_owned()];
    for word in line.split_whitespace() {
        let last = lines.last_mut().expect("there is a first line");
        if last.len() + 1 + word.len() > LINE_LENGTH {
            lines.push(format!("{indent}{word}"));
        } else {
            let gap = if last.trim().is_empty() { "" } else { " " };
            *last = format!("{last}{gap}{word}");
        }
    }
    lines.join("\n") + "\n"
}

fn python_type(parameters: &[Parameter], name: &str) -> String {
    let parameter = parameters.iter().find(|parameter| parameter.name == name).expect("it is one of them");
    let is_path = parameter.doc.starts_with("Path ");
    if is_path { "str | os.PathLike[str]".to_owned() } else { python_of(&parameter.rust_type) }
}

fn python_of(rust_type: &str) -> String {
    let inner = |prefix: &str| rust_type.strip_prefix(prefix).and_then(|rest| rest.strip_suffix('>'));
    if let Some(inner) = inner("Option<") {
        return python_of(inner);
    }
    if let Some(inner) = inner("Vec<") {
        return format!("Sequence[{}]", python_of(inner));
    }
    let python = match rust_type {
        "String" | "ScalarType" => "str",
        "FanoutList" => "Sequence[int] | Mapping[str, Sequence[int]]",
        "FeatureList" => "Sequence[str] | Mapping[str, str]",
        "SeedTime" | "NegativeSampling" => "Mapping[str, Any]",
        "u32" | "u64" | "i64" => "int",
        "f64" => "float",
        "bool" => "bool",
        "Size" => "Sequence[int]",
        "[f64; 2]" => "Sequence[float]",
        "BTreeMap<String, String>" => "Mapping[str, str]",
        other => return format!("Literal[{}]", variants(other).join(", ")),
    };
    python.to_owned()
}

/// The names of an enum's variants in pipeline files.
fn variants(name: &str) -> Vec<String> {
    let folders = [pipeline_folder().join("operators"), pipeline_folder().with_file_name("graph")];
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("the directory is readable"));
    let files = entries.map(|entry| entry.expect("the directory is readable").path());
    let head = format!("pub enum {name} {{");
    for file in files.filter(|file| file.extension().is_some_and(|extension| extension == "rs")) {
        let text = read(file);
        if let Some(lines) = body(&text, &head) {
            let variants = lines.filter(|line| line.chars().next().is_some_and(char::is_uppercase));
            return variants
                .map(|line| format!("\"{}\"", line.trim_end_matches(',').to_lowercase()))
                .collect();
        }
    }
    panic!("there is an enum {name} in {folders:?}")
}
