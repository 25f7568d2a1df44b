//! Reads any bytes as a JPEG: its header, the whole of it, a part of it, and an index of it.

#![no_main]

use feedline_jpeg::{Decoder, Region};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut decoder) = Decoder::new() else { return };
    let Ok(header) = decoder.header(bytes) else { return };
    // A picture may be as large as its header says; that is refused elsewhere.
    if u64::from(header.width) * u64::from(header.height) > 1 << 22 {
        return;
    }
    let mut out = Vec::new();
    // Whether it can be decoded does not matter; that the calls end does, and that two ways give the same.
    if let Ok(opened) = decoder.open(bytes) {
        drop(opened.decode(&mut out));
    }
    let (width, height) = (header.width.div_ceil(2), header.height.div_ceil(2));
    let part = Region { x: header.width / 4, y: header.height / 3, width, height };
    if let Ok(mut opened) = decoder.open(bytes) {
        let _ = opened.decode_half(part, &mut out);
    }
    let plain = decoder.decode_region(bytes, part, &mut out);
    let Some(indexed) = decoder.with_index(bytes) else { return };
    let mut other = Vec::new();
    let again = decoder.decode_region(&indexed, part, &mut other);
    if let (Ok(plain), Ok(again)) = (plain, again) {
        assert_eq!(plain, again);
        assert!(out[..plain.bytes()] == other[..again.bytes()]);
    }
});
