//! Reads any bytes as the index of a dataset, as they are and behind a checksum that is right.

#![no_main]

use libfuzzer_sys::fuzz_target;
use feedline_proto::decode_manifest;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = decode_manifest(bytes) {
        assert!(!manifest.fingerprint().is_empty());
    }
});
