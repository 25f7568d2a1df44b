//! Runs the fuzz target `dataset_card` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::dataset_card(bytes));
