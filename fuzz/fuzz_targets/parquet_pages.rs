//! Runs the fuzz target `parquet_pages` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::parquet_pages(bytes));
