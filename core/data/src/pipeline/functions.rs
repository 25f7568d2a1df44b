//! Checks and schema inference of Python functions, without running them.

use std::collections::BTreeSet;

use super::column_rules::find_column;
use super::parameter_checks::{
    check_column_given, check_column_name_length, check_count, check_given, check_range, check_text_length,
};
use super::{ElementType, Function, FunctionEnvironment, FunctionOutput};
use crate::schema::{ColumnType, MAX_COLUMNS, Schema};

/// Maximum timeout of a function call in seconds.
const MAX_TIMEOUT_S: u32 = 3_600;
/// Minimum memory limit of a function process. Python with NumPy does not start with less.
const MIN_MEMORY_BYTES: u64 = 16 << 20;
/// Maximum memory limit of a function process.
const MAX_MEMORY_BYTES: u64 = 1 << 42;
/// Maximum number of rows per function call.
const MAX_CALL_ROWS: u32 = 1 << 20;
/// Maximum length in bytes of the name of a function, directory, package or version.
const MAX_NAME_BYTES: usize = 1_024;
/// Maximum size in bytes of a pickled function in base64.
const MAX_CODE_BYTES: usize = 768 << 10;
/// Maximum number of entries in `path` and in `environment.packages`.
const MAX_LIST_ENTRIES: usize = 256;
/// Maximum size in bytes of one row of an output tensor.
const MAX_ROW_BYTES: u64 = 1 << 30;

pub(super) fn check_map(function: &Function) -> Result<(), String> {
    if function.outputs.is_empty() {
        return Err("outputs is empty; declare each column that the function returns, such as \
                    `outputs: {score: {dtype: float32}}`"
            .to_owned());
    }
    for (name, output) in &function.outputs {
        check_column_given("an output name", name)?;
        check_output(name, output)?;
    }
    check_function(function)
}

pub(super) fn check_filter_function(function: &Function) -> Result<(), String> {
    if !function.outputs.is_empty() {
        return Err(
            "outputs is set, but filter_function returns no columns; remove `outputs`, or use map".to_owned()
        );
    }
    check_function(function)
}

fn check_function(function: &Function) -> Result<(), String> {
    check_count("columns", function.columns.len(), MAX_COLUMNS, "remove some")?;
    check_count("outputs", function.outputs.len(), MAX_COLUMNS, "remove some")?;
    let mut names = function.columns.iter().chain(function.outputs.keys());
    names.try_for_each(|name| check_column_name_length("column", name))?;
    check_name(function)?;
    let mut seen = BTreeSet::new();
    for column in &function.columns {
        check_column_given("a column", column)?;
        if !seen.insert(column) {
            return Err(format!("column `{column}` is listed twice; remove one entry"));
        }
    }
    check_count("directories in path", function.path.len(), MAX_LIST_ENTRIES, "remove some")?;
    for folder in &function.path {
        check_given("an entry of path", folder, "a directory on the workers")?;
        check_text_length("path entry", folder, MAX_NAME_BYTES)?;
    }
    if let Some(version) = &function.version {
        check_given(
            "version",
            version,
            "a string that changes whenever the module changes, or omit `version`",
        )?;
        check_text_length("version", version, MAX_NAME_BYTES)?;
    }
    check_code(function)?;
    check_range("timeout_s", function.timeout_s, 1, MAX_TIMEOUT_S)?;
    check_range("memory", function.memory, MIN_MEMORY_BYTES, MAX_MEMORY_BYTES)?;
    function.rows.map_or(Ok(()), |rows| check_range("rows", rows, 1, MAX_CALL_ROWS))
}

/// Checks that the name is `module:function`. With pickled code any name is valid.
fn check_name(function: &Function) -> Result<(), String> {
    let name = &function.function;
    check_given("function", name, "`package.module:function`")?;
    check_text_length("function", name, MAX_NAME_BYTES)?;
    let is_dotted = |text: &str| {
        let is_word = |word: &str| {
            word.starts_with(|c: char| c.is_alphabetic() || c == '_')
                && word.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        text.split('.').all(is_word)
    };
    let is_import = name.split_once(':').is_some_and(|(module, name)| is_dotted(module) && is_dotted(name));
    if function.code.is_none() && !is_import {
        return Err(format!("invalid function `{name}`: expected `package.module:function`"));
    }
    Ok(())
}

/// Checks pickled code. Pickled code requires the version of Python that pickled it.
fn check_code(function: &Function) -> Result<(), String> {
    let environment = function.environment.as_ref();
    if let Some(environment) = environment {
        check_environment(environment)?;
    }
    let Some(code) = &function.code else { return Ok(()) };
    let is_base64 = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'+' | b'/' | b'=');
    if code.is_empty() || !code.bytes().all(is_base64) {
        return Err("code is not valid base64; encode the output of cloudpickle.dumps as base64".to_owned());
    }
    if code.len() > MAX_CODE_BYTES {
        return Err(format!(
            "code is {} bytes long; the limit is {MAX_CODE_BYTES} bytes; load large data on the worker instead of pickling it, \
            or import the function as `module:function`",
            code.len()
        ));
    }
    match environment.and_then(|environment| environment.python.as_deref()) {
        Some(python) if python.split('.').count() >= 2 => Ok(()),
        _ => Err("pickled code requires the Python version that pickled it; set the version, such as \
                  `environment: {python: \"3.11\"}`"
            .to_owned()),
    }
}

fn check_environment(environment: &FunctionEnvironment) -> Result<(), String> {
    let is_version = |text: &str| !text.is_empty() && text.len() <= 64 && !text.contains(char::is_whitespace);
    check_count("packages in environment", environment.packages.len(), MAX_LIST_ENTRIES, "remove some")?;
    let python = environment.python.iter().map(|version| ("python", version));
    let packages = environment.packages.iter().map(|(name, version)| (name.as_str(), version));
    for (name, version) in python.chain(packages) {
        check_text_length("package", name, MAX_NAME_BYTES)?;
        if name.is_empty() || !is_version(version) {
            return Err(format!(
                "environment: invalid entry `{name}: {version}`; write a package and its version, such as `numpy: \"2.4\"`"
            ));
        }
    }
    Ok(())
}

fn check_output(name: &str, output: &FunctionOutput) -> Result<(), String> {
    let is_number = matches!(output.dtype, ElementType::Number(_));
    if !output.shape.is_empty() && (output.list || !is_number) {
        let fix =
            if is_number { "set either `list` or `shape`" } else { "remove `shape`, or write `list: true`" };
        return Err(format!("output `{name}` of type {} cannot have a shape; {fix}", output.dtype.name()));
    }
    let extents = || output.shape.iter().map(|&extent| u64::from(extent));
    if let ColumnType::Tensor { scalar, .. } = output.column_type() {
        let elements = extents().try_fold(1_u64, u64::checked_mul).unwrap_or(u64::MAX);
        let bytes = elements.saturating_mul(scalar.width_bytes() as u64);
        if elements == 0 || output.shape.len() > 16 || bytes > MAX_ROW_BYTES {
            return Err(format!(
                "invalid shape {:?} of output `{name}`; use at most 16 dimensions, each at least 1, and at most 1 GiB per row",
                output.shape
            ));
        }
    }
    Ok(())
}

/// Implements [`OperatorDefinition`](super::OperatorDefinition) for a newtype of [`Function`].
macro_rules! function_operator {
    ($operator:ident, check: $check:path, drops_rows: $drops_rows:literal) => {
        /// Formats only the inner function. Cache keys contain this text.
        impl std::fmt::Debug for $operator {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(formatter)
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
                self.0.is_nondeterministic()
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

/// Infers the columns after a function.
pub(super) fn infer_function(function: &Function, input: &Schema) -> Result<Schema, String> {
    for name in &function.columns {
        find_column(input, name)?;
    }
    let mut output = input.clone();
    for (name, declared) in &function.outputs {
        output.set(name, declared.column_type());
    }
    Ok(output)
}

/// Replaces a function's outputs with its inputs in the set of required columns.
pub(super) fn require_function_inputs(function: &Function, input: &Schema, required: &mut BTreeSet<String>) {
    for output in function.outputs.keys() {
        required.remove(output);
    }
    match function.columns.as_slice() {
        [] => required.extend(input.names().map(str::to_owned)),
        columns => required.extend(columns.iter().cloned()),
    }
}

/// Describes the function, its columns and its outputs in one line.
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
