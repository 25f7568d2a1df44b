//! Reads any bytes as the saved index of a dataset, as they are and behind a checksum that is right.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_coordinator::read_index(bytes));
