//! Reads any bytes as a coordinator's log, an entry of it and a message of another coordinator.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_raft::read_anything(bytes));
