//! Runs the fuzz target `raft_log` with cargo-fuzz.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| feedline_fuzz_targets::raft_log(bytes));
