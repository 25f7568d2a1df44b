//! Tests of accessors, required columns, fingerprints and suggestions.

use expect_test::expect;
use proptest::prelude::*;

use crate::pipeline::strategies::pipelines;
use crate::pipeline::suggest::nearest_name;
use crate::pipeline::{
    BatchParams, CacheTier, Mix, MixPart, MixStop, OPERATOR_NAMES, OnError, OperatorKind, Pipeline,
    PipelineBuilder, Remainder, SampleNeighbors, Source,
};
use crate::schema::{ColumnType, ScalarType, Schema};

fn any() -> PipelineBuilder {
    Pipeline::builder("any").source(Source::parquet("data/"))
}

fn source() -> Schema {
    let int = || ColumnType::Scalar(ScalarType::Int64);
    Schema::new([
        ("image", ColumnType::Binary),
        ("label", int()),
        ("Width", int()),
        ("a b", int()),
        ("text", ColumnType::Utf8),
    ])
}

fn required(builder: PipelineBuilder) -> String {
    builder.batch(2).build().unwrap().required_columns(&source()).join(", ")
}

#[test]
fn accessors_return_sizes_and_counts() {
    let plain = any().batch(32).build().unwrap();
    assert_eq!((plain.batch_size(), plain.remainder(), plain.repeat_count()), (32, Remainder::Emit, 1));
    assert!(!plain.changes_rows());
    let carried = OperatorKind::Batch(BatchParams { size: 8, remainder: Remainder::Carry });
    let repeated = any().repeat(3).operator(carried).build().unwrap();
    assert_eq!(
        (repeated.batch_size(), repeated.remainder(), repeated.repeat_count()),
        (8, Remainder::Carry, 3)
    );
    assert!(any().filter("label > 1").batch(1).build().unwrap().changes_rows());
    assert!(any().on_error(OnError::Skip).batch(1).build().unwrap().changes_rows());
    assert!(!any().on_error(OnError::Replace).batch(1).build().unwrap().changes_rows());
}

#[test]
fn operator_names_are_unique() {
    let pipeline = any().wait(1).burn(1).wait(2).wait(3).batch(1).build().unwrap();
    assert_eq!(pipeline.operator_names(), ["wait", "burn", "wait#2", "wait#3", "batch"]);
}

#[test]
fn required_columns_follow_selects_renames_and_filters() {
    assert_eq!(required(any()), "image, label, Width, a b, text");
    assert_eq!(required(any().select(["text", "image"])), "image, text");
    assert_eq!(required(any().rename([("y", "label")]).select(["y"])), "label");
    assert_eq!(required(any().select(["label"]).rename([("text", "label")])), "label");
    assert_eq!(required(any().tokenize("text", "t").select(["text"])), "text");
    assert_eq!(
        required(any().resize("image", [2, 2]).select(["label"])),
        "image, label",
        "it may fail a row"
    );
    assert_eq!(required(any().filter("width > 3 AND labels = 1").select(["text"])), "Width, text");
    assert_eq!(required(any().filter("\"a b\" > 3").select(["text"])), "a b, text");
    assert_eq!(required(any().rename([("w", "Width")]).filter("w > 3").select(["text"])), "Width, text");
    assert_eq!(required(any().select(["nothing"])), "image, label, Width, a b, text", "it does not fit");
}

#[test]
fn a_fingerprint_is_fixed_across_versions() {
    let pipeline = any().seed(7).resize("image", [2, 2]).batch(2).build().unwrap();
    expect!["a75e70408f09f3d7"].assert_eq(&pipeline.fingerprint());
}

#[test]
fn misspelled_names_suggest_the_nearest_operator() {
    let named = |name| nearest_name(name, OPERATOR_NAMES.iter().copied()).unwrap_or("-");
    let shown: Vec<String> =
        ["random_crop", "crop", "flip", "Batch", "btach", "decode", "normalise", "shuffle", "map", "zip"]
            .map(|name| format!("{name} -> {}", named(name)))
            .to_vec();
    expect![[r#"
        random_crop -> random_resized_crop
        crop -> center_crop
        flip -> random_horizontal_flip
        Batch -> batch
        btach -> batch
        decode -> decode_image
        normalise -> normalize
        shuffle -> -
        map -> map
        zip -> -"#]]
    .assert_eq(&shown.join("\n"));
}

proptest! {
    #[test]
    fn a_fingerprint_ignores_only_name_and_parallelism(pipeline in pipelines(), other in pipelines()) {
        let mut renamed = pipeline.clone();
        renamed.name = "other".to_owned();
        for operator in &mut renamed.operators {
            operator.parallelism = Some(3);
        }
        prop_assert_eq!(renamed.fingerprint(), pipeline.fingerprint());
        prop_assert_eq!(pipeline.fingerprint().len(), 16);
        let mut reseeded = pipeline.clone();
        reseeded.seed ^= 1;
        prop_assert_ne!(reseeded.fingerprint(), pipeline.fingerprint());
        prop_assert_ne!(other.fingerprint(), pipeline.fingerprint());
    }
}

#[test]
fn a_cache_does_not_change_the_fingerprint() {
    let cached = any().wait(1).cache(CacheTier::Memory).burn(1).batch(1).build().unwrap();
    let plain = any().wait(1).burn(1).batch(1).build().unwrap();
    assert_eq!(cached.fingerprint(), plain.fingerprint());
    let (before, tier) = cached.cached_prefix().unwrap();
    assert_eq!((before, tier), (&plain.operators[..1], CacheTier::Memory));
    assert_eq!(plain.cached_prefix(), None);
}

#[test]
fn a_cache_fill_pipeline_processes_each_row_once_and_drops_rows_after_the_cache() {
    let cached = any().repeat(3).wait(1).cache(CacheTier::Disk).burn(1).batch(7).build().unwrap();
    let filling = cached.cache_fill_pipeline().unwrap();
    assert_eq!(filling.cached_prefix(), Some((&cached.operators[1..2], CacheTier::Disk)));
    assert_eq!(filling.operator_names(), ["wait", "cache", "filter", "burn", "batch"]);
    assert_eq!((filling.repeat_count(), filling.shuffle.window), (1, 0));
    let source = Schema::new([("a", ColumnType::Binary), ("b", ColumnType::Utf8)]);
    assert_eq!(filling.required_columns(&source), cached.required_columns(&source));
    assert_eq!(any().batch(1).build().unwrap().cache_fill_pipeline(), None);
}

#[test]
fn the_operators_before_a_planned_cache_exclude_engine_operators() {
    let plain = any().repeat(3).wait(1).burn(1).batch(7).build().unwrap();
    let names = |after| plain.with_cache_after(after, CacheTier::Store).operator_names();
    assert_eq!(names(0), ["cache", "repeat", "wait", "burn", "batch"]);
    assert_eq!(names(1), ["repeat", "wait", "cache", "burn", "batch"]);
    assert_eq!(names(2), ["repeat", "wait", "burn", "cache", "batch"]);
    assert_eq!(plain.with_cache_after(1, CacheTier::Store).cached_prefix().unwrap().1, CacheTier::Store);
    let cached = any().wait(1).cache(CacheTier::Disk).burn(1).batch(7).build().unwrap();
    assert_eq!(cached.with_cache_after(0, CacheTier::Memory), cached, "a cache in the file takes precedence");
}

#[test]
fn a_graph_is_read_with_the_credentials_of_the_dataset_that_lists_it() {
    let credentials = |source: &Source, graph: Option<&str>| {
        let sample = SampleNeighbors { graph: graph.map(str::to_owned), ..SampleNeighbors::new(2, &[5]) };
        let builder = Pipeline::builder("p").source(source.clone());
        let pipeline = builder.operator(OperatorKind::SampleNeighbors(sample)).build().unwrap();
        pipeline.graph_credentials().map(str::to_owned)
    };
    let graph = Source::graph("s3://b/g").credentials("one");
    let seeds = Source::parquet("s3://b/seeds/").credentials("two");
    assert_eq!(credentials(&graph, None).as_deref(), Some("one"));
    assert_eq!(credentials(&Source::graph("g"), None), None);
    assert_eq!(credentials(&seeds, Some("s3://b/g")).as_deref(), Some("two"));
    let part = |source: &Source| MixPart { weight: 1.0, source: source.clone() };
    let mixed = Source::mixed(Mix { parts: vec![part(&seeds), part(&graph)], stop: MixStop::All });
    assert_eq!(credentials(&mixed, None).as_deref(), Some("one"));
    let reversed = Source::mixed(Mix { parts: vec![part(&graph), part(&seeds)], stop: MixStop::All });
    assert_eq!(credentials(&reversed, Some("s3://b/h")).as_deref(), Some("two"));
}

#[test]
fn the_placement_of_features_does_not_change_the_fingerprint() {
    let of = |placement: &str| {
        let yaml = format!(
            "name: p\nsource: {{ url: g/, format: graph, seeds: train }}\noperators:\n  - sample_neighbors: {{ size: 4, fanouts: [2], \
             features: [x]{placement} }}\n"
        );
        Pipeline::from_yaml(&yaml, "p.yaml").unwrap().fingerprint()
    };
    assert_eq!(of(", placement: partition"), of(""));
    assert_eq!(of(", placement: replicate"), of(""));
    assert_ne!(of(", edge_ids: true"), of(""));
}
