//! Fuzzes the parser of tf.train.Example, in a TFRecord with valid checksums.

#![no_main]

use feedline_data::pipeline::Format;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let features = [("image", "image/encoded"), ("label", "image/class/label"), ("text", "text")];
    feedline_fuzz::read_shard(&tfrecord_frame(bytes), Format::TfRecord, &features);
});

/// Returns a TFRecord frame: length, checksum of the length, record, and checksum of the record.
fn tfrecord_frame(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), record, &masked_crc(record)].concat()
}

fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}
