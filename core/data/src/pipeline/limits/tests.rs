//! Pipelines that are too large, and secrets in them.

use crate::pipeline::{OperatorKind, Pipeline, PipelineBuilder, Repeat, Source};

fn refused(builder: PipelineBuilder) -> String {
    builder.batch(1).build().unwrap_err().to_string()
}

fn any() -> PipelineBuilder {
    Pipeline::builder("p").source(Source::files("/data/*"))
}

fn from(source: Source) -> PipelineBuilder {
    Pipeline::builder("p").source(source)
}

#[test]
fn each_limit_is_one_sentence_with_its_place() {
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
    for (pipeline, says) in [
        (Pipeline::builder("n".repeat(200)).source(Source::files("/x")), "name: the name, `nnn"),
        (from(urls), "source.url: there are 10001 entries, more than 10000; use globs"),
        (from(heavy), "source.url: the entries have"),
        (from(Source::files(long.clone())), "source.url: an entry, `xxx"),
        (from(features), "source.features: there are 5000 columns, more than 4096"),
        (from(Source::files("/x").feature("a", long.clone())), "source.features: a name in the data, `xxx"),
        (from(Source::files("/x").feature(long.clone(), "a")), "source.features: a column, `xxx"),
        (operators, "operators: there are 301 operators, more than 256"),
        (any().decode_image(long.clone()), "operator 1 (decode_image): column, `xxx"),
        (any().select(many.clone()), "operator 1 (select): there are 5000 columns"),
        (any().normalize("a", vec![0.5; 65], vec![0.5; 65]), "operator 1 (normalize): there are 65 numbers"),
        (any().filter("a OR ".repeat(4_000)), "operator 1 (filter): where, `a OR"),
        (any().tokenize("a", long.clone()), "operator 1 (tokenize): tokenizer: an entry, `xxx"),
        (any().pad("a", u32::MAX), "operator 1 (pad): length is 4294967295; write at most 16777216"),
        (
            any().operator(OperatorKind::Repeat(Repeat { count: 2_000_000 })),
            "operator 1 (repeat): count is 2000000",
        ),
    ] {
        let said = refused(pipeline);
        assert!(said.starts_with(says) && said.len() < 400, "{said}");
    }
}

#[test]
fn secrets_have_no_place_in_a_pipeline() {
    for pipeline in [
        from(Source::files("https://me:HUSH@host/x")),
        from(Source::files("https://host/x?X-Amz-Signature=HUSH")),
        any().tokenize("a", "https://host/t.json?sig=HUSH"),
        from(Source::files("s3://b/x").credentials("HUSH/secret+key")),
    ] {
        let said = refused(pipeline);
        assert!(said.contains("credentials") && !said.contains("HUSH"), "{said}");
    }
    let named = from(Source::files("s3://b/x").credentials("imagenet")).batch(1).build().unwrap();
    assert_eq!(named.source.credentials.as_deref(), Some("imagenet"));
    assert!(named.render().contains("credentials imagenet"));
    let plain = from(Source::files("s3://b/x")).batch(1).build().unwrap();
    assert_eq!(named.fingerprint(), plain.fingerprint(), "the rows are the same");
}

#[test]
fn a_file_says_the_line_of_credentials_that_are_none() {
    let text = "name: p\nsource:\n  url: s3://b/x\n  format: files\n  credentials: \"HUSH=\"\noperators:\n  - batch: {size: 1}\n";
    let said = Pipeline::from_yaml(text, "p.yaml").unwrap_err().to_string();
    assert!(said.starts_with("p.yaml:5: source.credentials: ") && !said.contains("HUSH"), "{said}");
}
