//! What is said of functions that are wrong, and how a file says what they are.

use super::*;
use crate::pipeline::{CacheTier, Pipeline, Source};
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
        (
            Function { function: "f".to_owned(), ..sound() },
            "`f` names no function; write `package.module:function`",
        ),
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
    let sent = |code: &str, version: Option<&str>| {
        let environment = FunctionEnvironment { python: Some("3.11".to_owned()), ..Default::default() };
        let version = version.map(str::to_owned);
        fingerprint(Function {
            code: Some(code.to_owned()),
            version,
            environment: Some(environment),
            ..sound()
        })
    };
    assert_eq!(sent("AAAA", Some("1")), sent("BBBB", Some("1")), "a version stands for the code");
    assert_ne!(sent("AAAA", Some("1")), sent("AAAA", Some("2")));
    assert_ne!(sent("AAAA", None), sent("BBBB", None));
}

#[test]
fn a_cache_behind_a_module_asks_for_its_version() {
    let built = |function: Function| {
        let builder = Pipeline::builder("p").source(Source::text("a")).map(function);
        builder.cache(CacheTier::Memory).batch(1).build()
    };
    let said = built(sound()).unwrap_err().to_string();
    assert!(said.contains("may change while its rows are kept") && said.contains("version:"), "{said}");
    assert!(built(Function { version: Some("1".to_owned()), ..sound() }).is_ok());
    let said = built(Function { version: Some("1".to_owned()), seeded: true, ..sound() }).unwrap_err();
    assert!(said.to_string().contains("is random"), "{said}");
}
