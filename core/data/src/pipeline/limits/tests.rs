//! Tests of the size limits of pipelines, and of secrets in pipelines.

use crate::pipeline::{OperatorKind, Pipeline, PipelineBuilder, Repeat, Source};

fn error_of(builder: PipelineBuilder) -> String {
    builder.batch(1).build().unwrap_err().to_string()
}

fn any() -> PipelineBuilder {
    Pipeline::builder("p").source(Source::files("/data/*"))
}

fn from(source: Source) -> PipelineBuilder {
    Pipeline::builder("p").source(source)
}

#[test]
fn errors_name_the_field_that_exceeds_a_limit() {
    let long = "x".repeat(5_000);
    let many: Vec<String> = (0..5_000).map(|at| format!("c{at}")).collect();
    let mut urls = Source::files("/data/0");
    urls.url = (0..10_001).map(|at| format!("/data/{at}")).collect();
    let mut heavy = Source::files("/data/0");
    heavy.url = (0..9_000).map(|at| format!("/data/{}{at}", "x".repeat(120))).collect();
    let mut features = Source::files("/data/0");
    features.features = many.iter().map(|name| (name.clone(), name.clone())).collect();
    let mut operators = any();
    for _ in 0..300 {
        operators = operators.wait(1);
    }
    for (pipeline, expected) in [
        (Pipeline::builder("n".repeat(200)).source(Source::files("/x")), "name: the name `nnn"),
        (from(urls), "source.url: 10001 entries exceed the limit of 10000; use globs"),
        (from(heavy), "source.url: the URLs are "),
        (from(Source::files(long.clone())), "source.url: entry `xxx"),
        (from(features), "source.features: 5000 columns exceed the limit of 4096"),
        (from(Source::files("/x").feature("a", long.clone())), "source.features: the name in the data `xxx"),
        (from(Source::files("/x").feature(long.clone(), "a")), "source.features: column `xxx"),
        (operators, "operators: 301 operators exceed the limit of 256"),
        (any().decode_image(long.clone()), "operator 1 (decode_image): column `xxx"),
        (any().select(many.clone()), "operator 1 (select): 5000 columns"),
        (any().normalize("a", vec![0.5; 65], vec![0.5; 65]), "operator 1 (normalize): 65 numbers"),
        (any().filter("a OR ".repeat(4_000)), "operator 1 (filter): where `a OR"),
        (any().tokenize("a", long.clone()), "operator 1 (tokenize): tokenizer: entry `xxx"),
        (any().pad("a", u32::MAX), "operator 1 (pad): length is 4294967295; the limit is 16777216"),
        (
            any().operator(OperatorKind::Repeat(Repeat { count: 2_000_000 })),
            "operator 1 (repeat): count is 2000000",
        ),
    ] {
        let error = error_of(pipeline);
        assert!(error.starts_with(expected) && error.len() < 400, "{error}");
    }
}

#[test]
fn secrets_are_rejected_and_not_repeated() {
    for pipeline in [
        from(Source::files("https://me:HUSH@host/x")),
        from(Source::files("https://host/x?X-Amz-Signature=HUSH")),
        any().tokenize("a", "https://host/t.json?sig=HUSH"),
        from(Source::files("s3://b/x").credentials("HUSH/secret+key")),
    ] {
        let error = error_of(pipeline);
        assert!(error.contains("credentials") && !error.contains("HUSH"), "{error}");
    }
    let named = from(Source::files("s3://b/x").credentials("imagenet")).batch(1).build().unwrap();
    assert_eq!(named.source.credentials.as_deref(), Some("imagenet"));
    assert!(named.render().contains("credentials imagenet"));
    let plain = from(Source::files("s3://b/x")).batch(1).build().unwrap();
    assert_eq!(named.fingerprint(), plain.fingerprint(), "the rows are the same");
}

#[test]
fn errors_about_credentials_name_the_line_and_hide_the_value() {
    let text = "name: p\nsource:\n  url: s3://b/x\n  format: files\n  credentials: \"HUSH=\"\noperators:\n  - batch: {size: 1}\n";
    let error = Pipeline::from_yaml(text, "p.yaml").unwrap_err().to_string();
    assert!(error.starts_with("p.yaml:5: source.credentials: ") && !error.contains("HUSH"), "{error}");
}
