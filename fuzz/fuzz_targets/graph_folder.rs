//! Runs the fuzz target `graph_folder` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::graph_folder(bytes));
