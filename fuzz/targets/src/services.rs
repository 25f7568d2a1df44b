//! The targets of other services: their answers, their payloads, and the settings that lead to them.

use feedline_data::pipeline::{KafkaOptions, Pipeline, Source};
use feedline_kafka::{OPTION_NAMES, check_options};
use feedline_sources::fuzzing::{decode_payloads, read_config, read_hub_answer, read_registry_answer};

/// Parses `config` and `credentials` files of AWS.
pub fn aws_config(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        read_config(text);
    }
}

/// Reads answers of the API of the Hugging Face Hub: commits, pages of listings, links to the next page, and wait times.
pub fn hub(bytes: &[u8]) {
    read_hub_answer(bytes);
}

/// Parses the settings of Kafka sources in pipelines, and the options of connections.
pub fn kafka_options(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(options) = serde_json::from_str::<KafkaOptions>(text) {
        let source = Source::kafka("kafka://broker:9092").with_kafka(options);
        if let Ok(pipeline) = Pipeline::builder("fuzz").source(source).batch(1).build() {
            let again = Pipeline::from_yaml(&pipeline.to_yaml(), "fuzz.yaml");
            assert!(again.is_ok_and(|again| again == pipeline));
        }
    }
    let lines = text.lines().zip(OPTION_NAMES.iter().cycle());
    // Errors are expected; only panics and hangs are failures.
    let _ = check_options(lines.map(|(value, name)| (*name, value)));
}

/// Decodes payloads of Kafka records with Avro, Protobuf and JSON schemas, and answers of schema registries.
pub fn kafka_payload(bytes: &[u8]) {
    decode_payloads(bytes);
    read_registry_answer(bytes);
}
