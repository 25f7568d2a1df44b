//! Tests of PNG and WebP images against Pillow's pixels.

use super::*;
use crate::testing::{difference, golden, testdata};

#[test]
fn pixels_equal_pillows() {
    for name in [
        "rgb.png",
        "rgba.png",
        "grey.png",
        "la.png",
        "palette.png",
        "bilevel.png",
        "rgb16.png",
        "exif6.png",
        "lossless.webp",
        "alpha.webp",
        "lossy.webp",
    ] {
        let bytes = testdata(name);
        let (image, _) = decode(&bytes, detect_encoding(&bytes).unwrap()).unwrap();
        let expected = testdata(&format!("{name}.rgb"));
        let (width, height, pixels) = golden(&expected);
        assert_eq!((image.width, image.height), (width, height), "{name}");
        let (mean, worst) = difference(&image.data, pixels);
        // Decoders of lossy WebP may upsample chroma in different ways.
        let (mean_max, worst_max) = if name == "lossy.webp" { (1.0, 12) } else { (0.0, 0) };
        assert!(mean <= mean_max && worst <= worst_max, "{name}: mean {mean}, worst {worst}");
    }
}

#[test]
fn data_that_is_not_an_image_is_rejected() {
    assert_eq!(detect_encoding(b"").unwrap_err(), "the image is empty");
    assert_eq!(
        detect_encoding(b"GIF89a\x01").unwrap_err(),
        "not a JPEG, PNG or WebP image: the value starts with \"GIF89a\\u{1}\""
    );
}

#[test]
fn damaged_files_are_errors_not_panics() {
    for name in ["rgb16.png", "palette.png", "lossy.webp", "lossless.webp"] {
        let whole = testdata(name);
        for length in 12..whole.len() {
            let _ = decode(&whole[..length], detect_encoding(&whole).unwrap());
        }
        let half = decode(&whole[..whole.len() / 2], detect_encoding(&whole).unwrap());
        assert!(half.unwrap_err().starts_with("corrupted "), "{name}");
    }
}

/// A PNG whose header has this size.
fn png_of(name: &str, width: u32, height: u32) -> Vec<u8> {
    let mut png = testdata(name);
    png[16..20].copy_from_slice(&width.to_be_bytes());
    png[20..24].copy_from_slice(&height.to_be_bytes());
    let checksum = checksum(&png[12..29]);
    png[29..33].copy_from_slice(&checksum);
    png
}

/// The CRC of a chunk's type and data (PNG, section 5.5).
fn checksum(chunk: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for &byte in chunk {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    (!crc).to_be_bytes()
}

#[test]
fn a_palette_that_ends_within_a_color_fails_only_its_image() {
    let mut png = testdata("palette.png");
    let at = png.windows(4).position(|bytes| bytes == b"PLTE").unwrap();
    let length = u32::from_be_bytes(png[at - 4..at].try_into().unwrap()) as usize;
    let end = at + 4 + length;
    // The last two bytes of the last color are missing.
    png.drain(end - 2..end);
    png[at - 4..at].copy_from_slice(&(length as u32 - 2).to_be_bytes());
    let checksum = checksum(&png[at..end - 2]);
    png[end - 2..end + 2].copy_from_slice(&checksum);
    let refused = decode(&png, Encoding::Png).unwrap_err();
    assert!(refused.starts_with("corrupted "), "{refused}");
}

#[test]
fn a_decompression_bomb_is_rejected_by_its_header() {
    let refused = decode(&png_of("rgb.png", 65_536, 65_536), Encoding::Png).unwrap_err();
    assert!(refused.starts_with("the image has 65536 x 65536 pixels"), "{refused}");
}

#[test]
fn the_size_limit_depends_on_the_bytes_per_pixel() {
    // 170 million pixels fit in the limit with three bytes per pixel, but not with nine.
    let refused = decode(&png_of("rgb16.png", 13_000, 13_000), Encoding::Png).unwrap_err();
    assert!(
        refused.starts_with("decoding the image of 13000 x 13000 pixels needs 1521000000 bytes"),
        "{refused}"
    );
    let refused = decode(&png_of("rgba.png", 13_000, 13_000), Encoding::Png).unwrap_err();
    assert!(refused.contains("needs 1183000000 bytes"), "{refused}");
}
