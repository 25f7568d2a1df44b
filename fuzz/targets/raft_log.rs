//! Fuzzes the parsers of a coordinator's log, of log entries, and of messages between coordinators.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_raft::read_anything(bytes));
