//! Fuzzes the parser of pipeline files.

#![no_main]

use feedline_data::pipeline::Pipeline;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let Ok(pipeline) = Pipeline::from_yaml(text, "fuzz.yaml") else { return };
    let again =
        Pipeline::from_yaml(&pipeline.to_yaml(), "again.yaml").expect("a written pipeline can be parsed");
    assert_eq!(pipeline.fingerprint(), again.fingerprint(), "{text}");
});
