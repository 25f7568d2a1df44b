//! Tests of the builder: its pipelines equal the pipelines in pipeline files.

use crate::pipeline::{Format, OnError, OrderMode, Pipeline, Source};
use crate::schema::ScalarType;

#[test]
fn a_built_pipeline_equals_its_file() {
    let built = Pipeline::builder("all")
        .source(Source::webdataset("a/").with_url("b/").feature("image", "jpg"))
        .seed(7)
        .shuffle(16)
        .order(OrderMode::Relaxed)
        .on_error(OnError::Skip)
        .decode_image("image")
        .resize("image", [8, 8])
        .center_crop("image", [6, 6])
        .random_resized_crop("image", [4, 4])
        .parallelism(2)
        .random_horizontal_flip("image")
        .normalize("image", [0.5], [0.25])
        .cast("label", ScalarType::Int64)
        .rename([("y", "label")])
        .select(["image", "y", "text"])
        .filter("y > 0")
        .tokenize("text", "t.json")
        .truncate("text", 9)
        .pad("text", 9)
        .repeat(2)
        .burn(1)
        .wait(1)
        .batch(4)
        .build()
        .unwrap();
    let file = "\
name: all
source: {url: [a/, b/], format: webdataset, features: {image: jpg}}
seed: 7
shuffle: {window: 16}
order: relaxed
on_error: skip
operators:
  - decode_image: {column: image}
  - resize: {column: image, size: [8, 8]}
  - center_crop: {column: image, size: [6, 6]}
  - random_resized_crop: {column: image, size: [4, 4], parallelism: 2}
  - random_horizontal_flip: {column: image}
  - normalize: {column: image, mean: [0.5], std: [0.25]}
  - cast: {column: label, dtype: int64}
  - rename: {columns: {y: label}}
  - select: {columns: [image, y, text]}
  - filter: {where: y > 0}
  - tokenize: {column: text, tokenizer: t.json}
  - truncate: {column: text, length: 9}
  - pad: {column: text, length: 9}
  - repeat: {count: 2}
  - burn: {cpu_us: 1}
  - wait: {ms: 1}
  - batch: {size: 4}
";
    assert_eq!(Pipeline::from_yaml(file, "all.yaml"), Ok(built));
}

#[test]
fn each_format_has_one_name_and_one_constructor() {
    for format in Format::ALL {
        assert_eq!(serde_json::to_value(format).unwrap(), format.name());
    }
    assert_eq!(Source::tfrecord("x").format, Format::TfRecord);
    assert_eq!(Source::text("x"), Source::new(Format::Text, "x"));
}

#[test]
fn a_source_without_an_end_is_bounded_by_the_retained_records() {
    let source = |options: &str| {
        let entries = format!("{{ url: 'kafka://a:1', format: kafka, topics: t{options} }}");
        let file = format!("name: p\nsource: {entries}\noperators: [batch: {{ size: 1 }}]\n");
        Pipeline::from_yaml(&file, "p.yaml").expect("the pipeline is valid").source
    };
    let bounded = |options: &str| source(options).bounded();
    assert_eq!(bounded(", until: none, start: latest, epoch: { rows: 9 }, commit_group: g"), source(""));
    let end = ", until: { time: 2026-01-01T00:00:00Z }, commit_group: g";
    assert_eq!(bounded(end), source(end), "the source has an end");
}
