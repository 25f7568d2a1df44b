//! Fuzzes the parser of stored dataset indexes, with the input as it is and with a valid checksum.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_coordinator::read_index(bytes));
