//! What can be checked of a Python function without running it.

use std::collections::BTreeSet;

use super::column_rules::column;
use super::parameter_checks::{column_name, few, named, within, written};
use super::{ElementType, Function, FunctionEnvironment, FunctionOutput};
use crate::schema::MAX_COLUMNS;
use crate::schema::{ColumnType, Schema};

/// Longest time of one call in seconds: an hour.
const TIMEOUT_MAX_S: u32 = 3_600;
/// Least memory of a process: less does not hold Python with NumPy.
const MEMORY_MIN: u64 = 16 << 20;
/// Most memory of a process.
const MEMORY_MAX: u64 = 1 << 42;
/// Most rows of a call.
const ROWS_MAX: u32 = 1 << 20;
/// Longest name of a function, path or version in bytes.
const NAME_MAX_BYTES: usize = 1_024;
/// Largest pickled function, as base64.
const CODE_MAX_BYTES: usize = 768 << 10;
/// Most folders and packages.
const LISTED_MAX: usize = 256;
/// Largest row of a tensor that a function makes, in bytes.
const ROW_MAX_BYTES: u64 = 1 << 30;

pub(super) fn check_map(function: &Function) -> Result<(), String> {
    if function.outputs.is_empty() {
        return Err("outputs is empty; write each column that the function returns, such as \
                    `outputs: {score: {dtype: float32}}`"
            .to_owned());
    }
    for (name, output) in &function.outputs {
        named("an output's name", name)?;
        check_output(name, output)?;
    }
    check_function(function)
}

pub(super) fn check_filter_function(function: &Function) -> Result<(), String> {
    if !function.outputs.is_empty() {
        return Err("filter_function makes no columns; remove `outputs`, or use map".to_owned());
    }
    check_function(function)
}

fn check_function(function: &Function) -> Result<(), String> {
    few("columns", function.columns.len(), MAX_COLUMNS, "leave some out")?;
    few("outputs", function.outputs.len(), MAX_COLUMNS, "leave some out")?;
    let mut names = function.columns.iter().chain(function.outputs.keys());
    names.try_for_each(|name| column_name("a column", name))?;
    check_name(function)?;
    let mut seen = BTreeSet::new();
    for column in &function.columns {
        named("a column", column)?;
        if !seen.insert(column) {
            return Err(format!("column `{column}` is listed twice; keep one"));
        }
    }
    if function.path.len() > LISTED_MAX {
        return Err(format!("path has more than {LISTED_MAX} folders; leave some out"));
    }
    for folder in &function.path {
        written("an entry of path", folder, "a folder on the workers")?;
        short("an entry of path", folder)?;
    }
    if let Some(version) = &function.version {
        written("version", version, "what changes when the module does, or leave it out")?;
        short("version", version)?;
    }
    check_code(function)?;
    within("timeout_s", function.timeout_s, 1, TIMEOUT_MAX_S)?;
    within("memory", function.memory, MEMORY_MIN, MEMORY_MAX)?;
    function.rows.map_or(Ok(()), |rows| within("rows", rows, 1, ROWS_MAX))
}

/// `module:function`, or any name where the code comes along.
fn check_name(function: &Function) -> Result<(), String> {
    let name = &function.function;
    written("function", name, "`package.module:function`")?;
    short("function", name)?;
    let is_dotted = |text: &str| {
        let is_word = |word: &str| {
            word.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && word.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        text.split('.').all(is_word)
    };
    let is_import = name.split_once(':').is_some_and(|(module, name)| is_dotted(module) && is_dotted(name));
    if function.code.is_none() && !is_import {
        return Err(format!("`{name}` names no function; write `package.module:function`"));
    }
    Ok(())
}

/// Pickled code runs on the Python that it was made for, and on no other.
fn check_code(function: &Function) -> Result<(), String> {
    let environment = function.environment.as_ref();
    if let Some(environment) = environment {
        check_environment(environment)?;
    }
    let Some(code) = &function.code else { return Ok(()) };
    let is_base64 = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/' | b'=');
    if code.is_empty() || !code.bytes().all(is_base64) {
        return Err("code is not base64; give what cloudpickle makes of the function, as base64".to_owned());
    }
    if code.len() > CODE_MAX_BYTES {
        return Err(format!(
            "code has {} bytes, more than {CODE_MAX_BYTES}; have the function load its data on the worker, or import \
             it from a module by `module:function`",
            code.len()
        ));
    }
    match environment.and_then(|environment| environment.python.as_deref()) {
        Some(python) if python.split('.').count() >= 2 => Ok(()),
        _ => Err("pickled code runs only on the Python that it was made with; write it as \
                  `environment: {python: \"3.11\"}`"
            .to_owned()),
    }
}

fn check_environment(environment: &FunctionEnvironment) -> Result<(), String> {
    let is_version = |text: &str| !text.is_empty() && text.len() <= 64 && !text.contains(char::is_whitespace);
    if environment.packages.len() > LISTED_MAX {
        return Err(format!("environment lists more than {LISTED_MAX} packages; leave some out"));
    }
    let python = environment.python.iter().map(|version| ("python", version));
    let packages = environment.packages.iter().map(|(name, version)| (name.as_str(), version));
    for (name, version) in python.chain(packages) {
        short("a package's name", name)?;
        if name.is_empty() || !is_version(version) {
            return Err(format!(
                "environment: `{name}: {version}` is no package with a version; write such as `numpy: \"2.4\"`"
            ));
        }
    }
    Ok(())
}

fn check_output(name: &str, output: &FunctionOutput) -> Result<(), String> {
    let is_number = matches!(output.dtype, ElementType::Number(_));
    if !output.shape.is_empty() && (output.list || !is_number) {
        let fix =
            if is_number { "keep one of list and shape" } else { "remove its shape, or write `list: true`" };
        return Err(format!("output `{name}` of {} cannot have a shape; {fix}", output.dtype.name()));
    }
    let extents = || output.shape.iter().map(|&extent| u64::from(extent));
    if let ColumnType::Tensor { scalar, .. } = output.column_type() {
        let elements = extents().try_fold(1_u64, u64::checked_mul).unwrap_or(u64::MAX);
        let bytes = elements.saturating_mul(scalar.width_bytes() as u64);
        if elements == 0 || output.shape.len() > 16 || bytes > ROW_MAX_BYTES {
            return Err(format!(
                "output `{name}` has shape {:?}; write extents of at least 1, at most 16 of them and 1 GiB per row",
                output.shape
            ));
        }
    }
    Ok(())
}

fn short(what: &str, text: &str) -> Result<(), String> {
    if text.len() <= NAME_MAX_BYTES {
        return Ok(());
    }
    Err(format!("{what} has {} bytes; write at most {NAME_MAX_BYTES}", text.len()))
}

/// Implements [`OperatorDefinition`](super::OperatorDefinition) for a newtype of [`Function`].
macro_rules! function_operator {
    ($operator:ident, check: $check:path, drops_rows: $drops_rows:literal) => {
        /// As the function's own: cache keys are made from this form.
        impl std::fmt::Debug for $operator {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl $crate::pipeline::OperatorDefinition for $operator {
            fn check(&self) -> Result<(), String> {
                $check(&self.0)
            }

            fn infer(&self, input: &$crate::schema::Schema) -> Result<$crate::schema::Schema, String> {
                $crate::pipeline::functions::infer_function(&self.0, input)
            }

            fn summary(&self) -> String {
                $crate::pipeline::functions::summarize_function(&self.0)
            }

            fn require_inputs(
                &self,
                input: &$crate::schema::Schema,
                required: &mut std::collections::BTreeSet<String>,
            ) {
                $crate::pipeline::functions::require_function_inputs(&self.0, input, required);
            }

            fn drops_rows(&self) -> bool {
                $drops_rows
            }

            fn is_random(&self) -> bool {
                self.0.may_differ()
            }

            fn function(&self) -> Option<&Function> {
                Some(&self.0)
            }

            fn function_mut(&mut self) -> Option<&mut Function> {
                Some(&mut self.0)
            }
        }
    };
}

pub(super) use function_operator;

/// The columns after a function.
pub(super) fn infer_function(function: &Function, input: &Schema) -> Result<Schema, String> {
    for name in &function.columns {
        column(input, name)?;
    }
    let mut output = input.clone();
    for (name, declared) in &function.outputs {
        output.set(name, declared.column_type());
    }
    Ok(output)
}

/// The columns that a function receives, and those after it that it does not make.
pub(super) fn require_function_inputs(function: &Function, input: &Schema, required: &mut BTreeSet<String>) {
    for output in function.outputs.keys() {
        required.remove(output);
    }
    match function.columns.as_slice() {
        [] => required.extend(input.names().map(str::to_owned)),
        columns => required.extend(columns.iter().cloned()),
    }
}

/// The function, its columns and its outputs on one line.
pub(super) fn summarize_function(function: &Function) -> String {
    let columns = match function.columns.as_slice() {
        [] => "all columns".to_owned(),
        columns => columns.join(", "),
    };
    let outputs: Vec<String> =
        function.outputs.iter().map(|(name, output)| format!("{name}: {}", output.column_type())).collect();
    let makes = if outputs.is_empty() { String::new() } else { format!(" to {}", outputs.join(", ")) };
    let seeded = if function.seeded { ", seeded" } else { "" };
    format!("{} of {columns}{makes}{seeded}", function.function)
}

#[cfg(test)]
mod tests;
