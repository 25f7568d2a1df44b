//! Runs the fuzz target `aws_config` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::aws_config(bytes));
