//! Fuzzes the parsers of all network messages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_proto::fuzzing::read_messages(bytes));
