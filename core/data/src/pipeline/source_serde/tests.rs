//! Tests of mixes in pipeline files: they are read and written, and errors name the line.

use expect_test::expect;

use crate::pipeline::{MixStop, Pipeline};

const MIXED: &str = "name: lm
source:
  mix:
    - { weight: 3, url: wiki/*.jsonl, format: jsonl, features: { text: body } }
    - { url: [books/a.txt, books/b.txt], format: text, credentials: books }
  stop: restart
operators: [ batch: { size: 8 } ]
";

#[test]
fn a_mix_is_read_and_written() {
    let pipeline = Pipeline::from_yaml(MIXED, "p.yaml").unwrap();
    let mix = pipeline.source.mix.as_ref().unwrap();
    let weights: Vec<f64> = mix.parts.iter().map(|part| part.weight).collect();
    assert_eq!((weights, mix.stop), (vec![3.0, 1.0], MixStop::Restart));
    assert_eq!(Pipeline::from_yaml(&pipeline.to_yaml(), "p.yaml").unwrap(), pipeline);
    let reads: Vec<String> =
        pipeline.read_locations().into_iter().map(|(place, url)| format!("{place} {url}")).collect();
    expect![[r#"
        source.mix[0].url wiki/*.jsonl
        source.mix[1].url books/a.txt
        source.mix[1].url books/b.txt"#]]
    .assert_eq(&reads.join("\n"));
    expect!["source  mix of 3 x jsonl wiki/*.jsonl (text <- body) + 1 x text books/a.txt, books/b.txt, credentials books; until all datasets are exhausted, restarting shorter datasets"]
        .assert_eq(pipeline.render().lines().nth(1).unwrap_or_default().trim_start_matches(char::is_alphabetic).trim());
}

#[test]
fn errors_in_a_mix_name_the_line() {
    let refusal = |from: &str, to: &str| {
        assert!(MIXED.contains(from), "{from}");
        Pipeline::from_yaml(&MIXED.replace(from, to), "p.yaml").unwrap_err().to_string()
    };
    let refusals = [
        refusal("  stop: restart", "  stop: never"),
        refusal("  stop: restart", "  url: x"),
        refusal("weight: 3", "weight: 0"),
        refusal("weight: 3", "wieght: 3"),
        refusal("format: text, ", ""),
        refusal("url: wiki/*.jsonl", "url: []"),
        refusal(
            &MIXED[MIXED.find("  mix:").unwrap()..MIXED.find("  stop").unwrap()],
            "  url: x\n  format: text\n",
        ),
        refusal(&MIXED[MIXED.find("    - { w").unwrap()..MIXED.find("  stop").unwrap()], "    []\n"),
    ];
    expect![[r#"
        p.yaml:6: unknown source.stop `never`; known: all, first, restart
        p.yaml:3: `url` cannot be combined with `mix`; write `url` for each dataset of the mix
        p.yaml:3: source.mix: the weight of dataset 1 is 0; expected a number from 0.000001 to 1000000
        p.yaml:4: unknown key `wieght` in source.mix[0]; did you mean `weight`? (known: weight, url, format, features, credentials, compression, partitions, config, split, seeds, topics, start, until, isolation, payload, on_tombstone, on_gap, commit_group, epoch)
        p.yaml:5: source.mix[1] has no key `format`; add the key
        p.yaml:3: source.mix: dataset 1: the list is empty; add at least one path, glob or URL
        p.yaml:3: `stop` needs a `mix`; remove `stop`, or list datasets under `mix`
        p.yaml:3: source.mix: the list is empty; add at least one dataset with url and format"#]].assert_eq(&refusals.join("\n"));
}

#[test]
fn optional_columns_are_read_and_written() {
    let text = |features: &str| {
        format!(
            "name: p\nsource: {{ url: a, format: parquet, features: {features} }}\noperators: [ batch: {{ size: 8 }} ]\n"
        )
    };
    let read = |features: &str| Pipeline::from_yaml(&text(features), "p.yaml");
    let pipeline =
        read("{ id: key, v: { name: score, optional: true }, w: { optional: true }, x: { name: y } }")
            .unwrap();
    let features: Vec<(&str, &str)> =
        pipeline.source.features.iter().map(|(column, name)| (column.as_str(), name.as_str())).collect();
    assert_eq!(features, [("id", "key"), ("v", "score"), ("w", "w"), ("x", "y")]);
    assert_eq!(pipeline.source.optional, ["v".to_owned(), "w".to_owned()].into());
    assert_eq!(Pipeline::from_yaml(&pipeline.to_yaml(), "p.yaml").unwrap(), pipeline);
    assert!(
        pipeline.render().contains("(id <- key, v <- score if present, w <- w if present, x <- y)"),
        "{}",
        pipeline.render()
    );
    // The form of a source without optional columns does not change, so that its index is found again.
    let plain = read("{ id: key }").unwrap();
    assert_eq!(
        serde_json::to_string(&plain.source).unwrap(),
        r#"{"url":"a","format":"parquet","features":{"id":"key"}}"#
    );
    let refusal = |features: &str| read(features).expect_err("the features are invalid").to_string();
    let unknown = refusal("{ v: { name: a, optinal: true } }");
    assert!(unknown.contains("`optinal`") && unknown.contains("`optional`"), "{unknown}");
    let empty = refusal("{ v: { name: '' } }");
    assert!(empty.contains("has an empty name"), "{empty}");
    for invalid in ["{ v: { name: a, optional: 1 } }", "{ v: [a] }", "{ v: { name: a, name: b } }"] {
        assert!(refusal(invalid).starts_with("p.yaml:"), "{invalid}");
    }
}
