//! Reads any bytes as a TFRecord shard.

#![no_main]

use libfuzzer_sys::fuzz_target;
use feedline_core::pipeline::Format;

fuzz_target!(|bytes: &[u8]| feedline_fuzz::read_shard(bytes, Format::TfRecord, &[]));
