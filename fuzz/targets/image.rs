//! Fuzzes the JPEG decoder: header, whole image, region, half size, and index.

#![no_main]

use feedline_jpeg::{Decoder, Region};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut decoder) = Decoder::new() else { return };
    let Ok(header) = decoder.header(bytes) else { return };
    // Skip large images, whose limits other tests cover.
    if u64::from(header.width) * u64::from(header.height) > 1 << 22 {
        return;
    }
    let mut out = Vec::new();
    // Errors are expected. Panics, hangs, and different pixels with and without an index are failures.
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
