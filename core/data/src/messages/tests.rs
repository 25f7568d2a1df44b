//! Tests of messages.

use super::*;
use crate::checkpoint::Position;
use crate::pipeline::{KafkaOptions, OrderMode, Pipeline, PipelineId};

#[test]
fn the_index_key_depends_on_tenant_and_source() {
    let key = |tenant: &str, url: &str| source_key(tenant, &Source::text(url));
    assert_eq!(key("a", "/x"), key("a", "/x"));
    assert_ne!(key("a", "/x"), key("b", "/x"));
    assert_ne!(key("a", "/x"), key("a", "/y"));
    let found = key("", "/x");
    assert!(found.len() == 64 && found.bytes().all(|digit| digit.is_ascii_hexdigit()), "{found}");
}

#[test]
fn the_index_of_a_growing_source_belongs_to_the_jobs_with_its_fingerprint() {
    let kafka = Source::kafka("kafka://a:9092").with_kafka(KafkaOptions::topic("events"));
    let pipeline = |source: &Source| Pipeline::builder("p").source(source.clone()).batch(1).build().unwrap();
    let mut spec = JobSpec::new(pipeline(&kafka));
    assert_eq!(saved_index_key(&spec), None, "a new job reads what the topic contains now");
    assert_ne!(index_key("", &kafka, "a"), index_key("", &kafka, "b"));
    let prefix = |tenant: &str, fingerprint: &str| {
        recorded_prefix(&index_key(tenant, &kafka, fingerprint)).map(str::to_owned)
    };
    assert!(prefix("", "a").is_some() && prefix("", "a") == prefix("", "b"));
    assert_ne!(prefix("", "a"), prefix("other", "a"));
    assert_eq!(recorded_prefix(&source_key("", &kafka)), None, "the key of another source");
    spec.start = Some(Position {
        version: 1,
        pipeline: PipelineId::default(),
        dataset: "a".to_owned(),
        content: Default::default(),
        order: OrderMode::Deterministic,
        virtual_consumers: 1,
        streams: Vec::new(),
        open_ranges: Vec::new(),
        mix: Vec::new(),
        growth: None,
        ranges: None,
        split_rows: None,
    });
    assert_eq!(saved_index_key(&spec), Some(index_key("", &kafka, "a")));
    let files = Source::text("/x");
    let spec = JobSpec { pipeline: pipeline(&files), start: None, ..spec };
    assert_eq!(saved_index_key(&spec), Some(source_key("", &files)));
    assert_eq!(index_key("", &files, "a"), source_key("", &files));
}
