//! Runs the fuzz target `access_point` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::access_point(bytes));
