//! Runs the fuzz target `bzip2` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::bzip2(bytes));
