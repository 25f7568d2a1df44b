//! Reads any bytes as the tf.train.Example in a TFRecord whose checksums are right.

#![no_main]

use feedline_data::pipeline::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let features = [("image", "image/encoded"), ("label", "image/class/label"), ("text", "text")];
    feedline_fuzz::read_shard(&framed(bytes), Format::TfRecord, &features);
});

/// The record's length, its checksum, the record and its checksum.
fn framed(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), record, &masked(record)].concat()
}

fn masked(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
