//! Tests of the checks of functions, and of functions in pipeline files.

use super::*;
use crate::pipeline::{CacheTier, Pipeline, Source};
use crate::schema::ScalarType;

fn valid_function() -> Function {
    Function::new("m:f").output("y", FunctionOutput::numbers(ScalarType::Float32, []))
}

#[test]
fn errors_name_the_parameter_and_the_fix() {
    assert_eq!(check_map(&valid_function()), Ok(()));
    let cases = [
        (Function::new("m:f"), "outputs is empty"),
        (
            Function { function: "f".to_owned(), ..valid_function() },
            "invalid function `f`: expected `package.module:function`",
        ),
        (Function { function: "m:1".to_owned(), ..valid_function() }, "invalid function `m:1`"),
        (Function { timeout_s: 0, ..valid_function() }, "timeout_s is 0"),
        (Function { memory: 1, ..valid_function() }, "memory is 1"),
        (Function { rows: Some(0), ..valid_function() }, "rows is 0"),
        (Function { code: Some("é".to_owned()), ..valid_function() }, "not valid base64"),
        (Function { code: Some("gA==".to_owned()), ..valid_function() }, "environment: {python"),
        (Function { columns: vec!["a".to_owned(), "a".to_owned()], ..valid_function() }, "listed twice"),
        (valid_function().output("z", FunctionOutput::numbers(ScalarType::Int8, [3, 0])), "each at least 1"),
        (
            valid_function()
                .output("z", FunctionOutput { dtype: ElementType::Text, shape: vec![2], list: false }),
            "output `z` of type text cannot have a shape",
        ),
    ];
    for (function, expected) in cases {
        let error = check_map(&function).expect_err("the function is invalid");
        assert!(error.contains(expected), "{error}");
    }
    assert!(check_filter_function(&valid_function()).unwrap_err().contains("remove `outputs`"));
}

#[test]
fn functions_are_read_from_pipeline_files() {
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
    let error = Pipeline::from_yaml(&wrong, "p.yaml").unwrap_err().to_string();
    assert!(error.contains("invalid dtype `float31`"), "{error}");
}

#[test]
fn execution_settings_do_not_affect_the_fingerprint() {
    let fingerprint = |function: Function| {
        let pipeline = Pipeline::builder("p").source(Source::text("a")).map(function).batch(1).build();
        pipeline.unwrap().fingerprint()
    };
    let bounded = Function { timeout_s: 9, memory: 1 << 31, rows: Some(3), ..valid_function() };
    assert_eq!(fingerprint(valid_function()), fingerprint(bounded));
    let other = Function { version: Some("2".to_owned()), ..valid_function() };
    assert_ne!(fingerprint(valid_function()), fingerprint(other));
    let sent = |code: &str, version: Option<&str>| {
        let environment = FunctionEnvironment { python: Some("3.11".to_owned()), ..Default::default() };
        let version = version.map(str::to_owned);
        fingerprint(Function {
            code: Some(code.to_owned()),
            version,
            environment: Some(environment),
            ..valid_function()
        })
    };
    assert_eq!(sent("AAAA", Some("1")), sent("BBBB", Some("1")), "a version identifies the code");
    assert_ne!(sent("AAAA", Some("1")), sent("AAAA", Some("2")));
    assert_ne!(sent("AAAA", None), sent("BBBB", None));
}

#[test]
fn a_cache_after_a_module_requires_a_version() {
    let built = |function: Function| {
        let builder = Pipeline::builder("p").source(Source::text("a")).map(function);
        builder.cache(CacheTier::Memory).batch(1).build()
    };
    let error = built(valid_function()).unwrap_err().to_string();
    assert!(error.contains("may change while its rows are cached") && error.contains("version:"), "{error}");
    assert!(built(Function { version: Some("1".to_owned()), ..valid_function() }).is_ok());
    let error =
        built(Function { version: Some("1".to_owned()), seeded: true, ..valid_function() }).unwrap_err();
    assert!(error.to_string().contains("is random"), "{error}");
}
