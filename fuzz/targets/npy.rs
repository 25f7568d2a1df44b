//! Fuzzes the npy reader.

#![no_main]

use feedline_data::pipeline::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| feedline_fuzz::read_shard(bytes, Format::Npy, &[]));
