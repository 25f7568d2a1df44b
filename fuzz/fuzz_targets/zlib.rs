//! Runs the fuzz target `zlib` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::zlib(bytes));
