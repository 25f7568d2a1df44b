//! Runs the fuzz target `kafka_payload` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::kafka_payload(bytes));
