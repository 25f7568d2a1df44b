//! Reads any bytes as the index of a dataset, as they are and behind a checksum that is right.

#![no_main]

use feedline_proto::decode_manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(manifest) = decode_manifest(bytes) {
        assert!(!manifest.fingerprint().is_empty());
    }
});
