//! What can be checked of a Python function without running it.

use std::collections::BTreeSet;

use super::check::{named, within, written};
use super::{ElementType, Function, FunctionEnvironment, FunctionOutput};
use crate::schema::ColumnType;

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
        let fix = if is_number { "keep one of list and shape" } else { "remove its shape, or write `list: true`" };
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

#[cfg(test)]
mod tests {
    use super::super::{Pipeline, Source};
    use super::*;
    use crate::schema::ScalarType;

    fn refused(function: Function) -> String {
        check_map(&function).expect_err("it is wrong")
    }

    fn sound() -> Function {
        Function::new("m:f").output("y", FunctionOutput::numbers(ScalarType::Float32, []))
    }

    #[test]
    fn what_is_wrong_is_said_with_its_fix() {
        assert_eq!(check_map(&sound()), Ok(()));
        let cases = [
            (Function::new("m:f"), "outputs is empty"),
            (Function { function: "f".to_owned(), ..sound() }, "`f` names no function; write `package.module:function`"),
            (Function { function: "m:1".to_owned(), ..sound() }, "names no function"),
            (Function { timeout_s: 0, ..sound() }, "timeout_s is 0"),
            (Function { memory: 1, ..sound() }, "memory is 1"),
            (Function { rows: Some(0), ..sound() }, "rows is 0"),
            (Function { code: Some("é".to_owned()), ..sound() }, "not base64"),
            (Function { code: Some("gA==".to_owned()), ..sound() }, "environment: {python"),
            (Function { columns: vec!["a".to_owned(), "a".to_owned()], ..sound() }, "listed twice"),
            (sound().output("z", FunctionOutput::numbers(ScalarType::Int8, [3, 0])), "extents of at least 1"),
            (
                sound().output("z", FunctionOutput { dtype: ElementType::Text, shape: vec![2], list: false }),
                "output `z` of text cannot have a shape",
            ),
        ];
        for (function, said) in cases {
            let sentence = refused(function);
            assert!(sentence.contains(said), "{sentence}");
        }
        assert!(check_filter_function(&sound()).unwrap_err().contains("remove `outputs`"));
    }

    #[test]
    fn a_file_says_it_as_the_documents_do() {
        let file = "
name: p
source: {url: a, format: jsonl}
operators:
  - map:
      function: my.module:score
      path: [/srv/code]
      columns: [text]
      outputs: {score: {dtype: float32}, tokens: {dtype: int32, list: true}, image: {dtype: uint8, shape: [2, 2, 3]}}
      environment: {python: \"3.11\", packages: {numpy: \"2.4\"}}
      parallelism: 2
      timeout_s: 5
      memory: 512MiB
      rows: 64
      seeded: true
  - filter_function: {function: \"m:keep\", version: \"7\"}
  - batch: {size: 4}
";
        let pipeline = Pipeline::from_yaml(file, "p.yaml").unwrap();
        let function = pipeline.operators[0].kind.function().unwrap();
        assert_eq!((function.memory, function.rows, function.seeded), (512 << 20, Some(64), true));
        assert_eq!(pipeline.operators[0].parallelism, Some(2));
        assert!(pipeline.changes_rows());
        let random = pipeline.operators.iter().map(|operator| operator.kind.is_random()).collect::<Vec<_>>();
        assert_eq!(random, [true, false, false]);
        let wrong = file.replace("float32", "float31");
        let said = Pipeline::from_yaml(&wrong, "p.yaml").unwrap_err().to_string();
        assert!(said.contains("`float31` is no dtype"), "{said}");
    }

    #[test]
    fn how_a_function_is_run_does_not_change_the_rows_fingerprint() {
        let fingerprint = |function: Function| {
            let pipeline = Pipeline::builder("p").source(Source::text("a")).map(function).batch(1).build();
            pipeline.unwrap().fingerprint()
        };
        let bounded = Function { timeout_s: 9, memory: 1 << 31, rows: Some(3), ..sound() };
        assert_eq!(fingerprint(sound()), fingerprint(bounded));
        let other = Function { version: Some("2".to_owned()), ..sound() };
        assert_ne!(fingerprint(sound()), fingerprint(other));
    }

    #[test]
    fn a_cache_behind_a_module_asks_for_its_version() {
        let built = |function: Function| {
            let builder = Pipeline::builder("p").source(Source::text("a")).map(function);
            builder.cache(super::super::CacheTier::Memory).batch(1).build()
        };
        let said = built(sound()).unwrap_err().to_string();
        assert!(said.contains("may change while its rows are kept") && said.contains("version:"), "{said}");
        assert!(built(Function { version: Some("1".to_owned()), ..sound() }).is_ok());
        let said = built(Function { version: Some("1".to_owned()), seeded: true, ..sound() }).unwrap_err();
        assert!(said.to_string().contains("is random"), "{said}");
    }
}
