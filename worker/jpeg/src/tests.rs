//! Compares the decoder with Pillow, and decodes corrupted data.

mod damage;
mod entropy;

use crate::{Colorspace, Decoder, JpegError, Region};

/// Test JPEGs, each with the result of Pillow's `exif_transpose(open(...)).convert("RGB")` after its width and height.
macro_rules! golden {
    ($($name:literal),*) => {
        [$(($name, include_bytes!(concat!("../testdata/", $name, ".jpg")).as_slice(),
            include_bytes!(concat!("../testdata/", $name, ".rgb")).as_slice())),*]
    };
}

const GOLDEN: [(&str, &[u8], &[u8]); 16] = golden![
    "420",
    "422",
    "444",
    "progressive",
    "restart",
    "grey",
    "cmyk",
    "ycck",
    "exif1",
    "exif2",
    "exif3",
    "exif4",
    "exif5",
    "exif6",
    "exif7",
    "exif8"
];

fn jpeg(name: &str) -> &'static [u8] {
    GOLDEN.iter().find(|(known, ..)| *known == name).unwrap().1
}

fn decode(decoder: &mut Decoder, jpeg: &[u8]) -> Result<(u32, u32, Vec<u8>), JpegError> {
    let mut out = Vec::new();
    let decoded = decoder.open(jpeg)?.decode(&mut out)?;
    Ok((decoded.width, decoded.height, out))
}

#[test]
fn whole_images_equal_those_of_pillow() {
    let mut decoder = Decoder::new().unwrap();
    for (name, jpeg, golden) in GOLDEN {
        let (width, height, pixels) = decode(&mut decoder, jpeg).unwrap();
        assert_eq!([width.to_le_bytes(), height.to_le_bytes()].concat(), golden[..8], "{name}");
        let worst = pixels.iter().zip(&golden[8..]).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert_eq!(pixels.len(), golden.len() - 8);
        assert_eq!(worst, 0, "{name}: off by up to {worst}");
    }
}

#[test]
fn a_region_has_the_pixels_of_the_whole_image() {
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    for (name, jpeg, _) in GOLDEN {
        let (width, height, whole) = decode(&mut decoder, jpeg).unwrap();
        let starts = |extent: u32| [0, 1, 7, 8, 15, 16, 17, 31, 32, extent - 9, extent - 1];
        for x in starts(width) {
            for y in starts(height) {
                for (w, h) in [(1, 1), (2, 9), (9, 2), (16, 16), (width, height)] {
                    let region = Region { x, y, width: w.min(width - x), height: h.min(height - y) };
                    let decoded = decoder.decode_region(jpeg, region, &mut out).unwrap();
                    for row in 0..region.height {
                        let line = |pixels: &[u8], stride: u32, x: u32, y: u32| {
                            let at = (y * stride + x) as usize * 3;
                            pixels[at..at + region.width as usize * 3].to_vec()
                        };
                        let found = line(&out, decoded.width, decoded.x_offset, decoded.y_offset + row);
                        assert_eq!(found, line(&whole, width, x, y + row), "{name} {region:?} row {row}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_small_region_decodes_few_pixels() {
    let mut decoder = Decoder::new().unwrap();
    let region = Region { x: 20, y: 10, width: 5, height: 4 };
    let decoded = decoder.decode_region(jpeg("420"), region, &mut Vec::new()).unwrap();
    assert_eq!((decoded.width, decoded.height, decoded.x_offset, decoded.y_offset), (11, 4, 4, 0));
}

#[test]
fn headers_describe_the_files() {
    let mut decoder = Decoder::new().unwrap();
    let mut header = |name| decoder.header(jpeg(name)).unwrap();
    assert_eq!(header("420").colorspace, Colorspace::YCbCr);
    assert_eq!(header("420").column_width, Some(16));
    assert_eq!(header("grey").colorspace, Colorspace::Grey);
    assert_eq!(header("cmyk").colorspace, Colorspace::Cmyk);
    assert_eq!(header("ycck").colorspace, Colorspace::Ycck);
    assert!(header("progressive").is_progressive && !header("420").is_progressive);
    let rotated = header("exif6");
    assert_eq!(
        (rotated.width, rotated.height, rotated.stored_width, rotated.stored_height),
        (45, 61, 61, 45)
    );
    assert_eq!(rotated.orientation.tag(), 6);
    assert!(!rotated.is_lossless);
}

#[test]
fn a_truncated_file_is_an_error_at_every_length() {
    let mut decoder = Decoder::new().unwrap();
    for name in ["420", "progressive", "exif6", "cmyk", "restart"] {
        let whole = jpeg(name);
        // The two bytes of the end marker contain no data, but scans may be missing too in an image with several scans.
        let end_bytes = if name == "progressive" { 0 } else { 2 };
        for length in 0..whole.len() - end_bytes {
            let decoded = decode(&mut decoder, &whole[..length]).map(|_| "an image");
            assert!(!decoded.expect_err("a truncated file is not an image").to_string().is_empty());
        }
        assert!(decode(&mut decoder, whole).is_ok(), "the decoder is reusable");
    }
    let most = &jpeg("420")[..jpeg("420").len() - 200];
    let message = decode(&mut decoder, most).unwrap_err().to_string();
    assert_eq!(message, "Corrupt JPEG data, after the warning: Premature end of JPEG file");
}

#[test]
fn damaged_bytes_neither_panic_nor_affect_the_next_image() {
    let mut decoder = Decoder::new().unwrap();
    let mut state = 88172645463325252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize
    };
    let mut out = Vec::new();
    for (name, jpeg, golden) in GOLDEN {
        for _ in 0..150 {
            let mut damaged = jpeg.to_vec();
            for _ in 0..1 + random() % 4 {
                let position = random() % damaged.len();
                damaged[position] = random() as u8;
            }
            let Ok(opened) = decoder.open(&damaged) else { continue };
            let (width, height) = (opened.header().width, opened.header().height);
            if u64::from(width) * u64::from(height) > 1 << 22 {
                continue;
            }
            let region = Region { x: width / 3, y: height / 3, width: width - width / 3, height: 1 };
            let _ = opened.decode_region(region, &mut out);
        }
        let (_, _, pixels) = decode(&mut decoder, jpeg).unwrap();
        assert!(pixels == golden[8..], "{name}");
    }
}

#[test]
fn stray_bytes_before_the_end_are_harmless() {
    let mut stray = jpeg("420").to_vec();
    let end = stray.len() - 2;
    stray.splice(end..end, [0x12, 0x34, 0x56]);
    let mut decoder = Decoder::new().unwrap();
    assert_eq!(decode(&mut decoder, &stray).unwrap(), decode(&mut decoder, jpeg("420")).unwrap());
}

#[test]
fn a_decompression_bomb_is_rejected_by_its_header() {
    let mut bomb = jpeg("420").to_vec();
    let frame = bomb.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    bomb[frame + 5..frame + 9].copy_from_slice(&[0xFD, 0xE8, 0xFD, 0xE8]);
    let error = Decoder::new().unwrap().header(&bomb).unwrap_err();
    assert_eq!(error, JpegError::TooLarge { width: 65000, height: 65000 });
    assert_eq!(
        error.to_string(),
        "the image has 65000 x 65000 pixels, more than the maximum of 178956970: skip the image or make it smaller"
    );
}

#[test]
fn data_without_an_image_is_an_error() {
    let mut decoder = Decoder::new().unwrap();
    assert!(decoder.header(&[]).is_err());
    assert!(decoder.header(b"GIF89a").unwrap_err().to_string().contains("FF D8"));
    assert!(decoder.header(&[0xFF, 0xD8, 0xFF, 0xD9]).is_err());
    // Quantisation tables only, after a valid image whose size the decoder may remember.
    decoder.header(jpeg("420")).unwrap();
    let good = jpeg("420");
    let table = good.windows(2).position(|pair| pair == [0xFF, 0xDB]).unwrap();
    let length = usize::from(u16::from_be_bytes([good[table + 2], good[table + 3]]));
    let tables = [&[0xFF, 0xD8], &good[table..table + 2 + length], &[0xFF, 0xD9]].concat();
    assert!(decoder.header(&tables).unwrap_err().to_string().contains("no image"));
}

#[test]
fn a_region_must_be_within_the_upright_image() {
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    let mut attempt = |x, y, width, height| {
        decoder.decode_region(jpeg("exif6"), Region { x, y, width, height }, &mut out).map(|_| ())
    };
    assert_eq!(attempt(0, 0, 45, 61), Ok(()));
    for (x, y, width, height) in [(0, 0, 46, 61), (0, 0, 0, 1), (45, 0, 1, 1), (u32::MAX, 0, 2, 1)] {
        assert!(matches!(attempt(x, y, width, height), Err(JpegError::Region { .. })));
    }
}

#[test]
fn a_decoder_moves_between_threads() {
    let decoder = Decoder::new().unwrap();
    let header = std::thread::spawn(move || {
        let mut decoder = decoder;
        decoder.header(jpeg("420"))
    });
    assert_eq!(header.join().unwrap().unwrap().width, 61);
}

#[test]
fn unsupported_images_are_not_decoded_at_half_size() {
    let mut decoder = Decoder::new().unwrap();
    let region = Region { x: 0, y: 0, width: 8, height: 8 };
    let mut out = Vec::new();
    for name in ["progressive", "cmyk", "ycck", "exif6"] {
        assert_eq!(decoder.open(jpeg(name)).unwrap().decode_half(region, &mut out), None, "{name}");
    }
    let mut opened = decoder.open(jpeg("420")).unwrap();
    assert!(opened.decode_half(region, &mut out).is_some());
    for region in [
        Region { x: 1 << 20, ..region },
        Region { height: u32::MAX, ..region },
        Region { width: 0, ..region },
    ] {
        assert_eq!(opened.decode_half(region, &mut out), None, "{region:?}");
    }
}

/// Returns a JPEG with another size in its frame header.
fn resized(name: &str, width: u16, height: u16) -> Vec<u8> {
    let mut bytes = jpeg(name).to_vec();
    let is_frame = |pair: &[u8]| pair[0] == 0xFF && matches!(pair[1], 0xC0 | 0xC2);
    let frame = bytes.windows(2).position(is_frame).unwrap();
    bytes[frame + 5..frame + 7].copy_from_slice(&height.to_be_bytes());
    bytes[frame + 7..frame + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}

#[test]
fn the_memory_of_an_image_is_limited_by_its_header() {
    let mut decoder = Decoder::new().unwrap();
    let refused =
        |decoder: &mut Decoder, name: &str| decoder.header(&resized(name, 13_000, 13_000)).unwrap_err();
    assert!(decoder.header(&resized("420", 13_000, 13_000)).is_ok(), "the pixels are within the limit");
    let error = refused(&mut decoder, "progressive");
    assert!(matches!(error, JpegError::TooMuchMemory { bytes: 1_521_000_000, .. }), "{error}");
    let error = refused(&mut decoder, "cmyk");
    assert!(matches!(error, JpegError::TooMuchMemory { .. }), "{error}");
    let error = decoder.header(&resized("420", 65_000, 65_000)).unwrap_err();
    assert!(matches!(error, JpegError::TooLarge { .. }), "{error}");
    assert_eq!(decoder.with_index(&resized("420", 65_000, 65_000)), None);
    // The decoder is reusable.
    assert!(decode(&mut decoder, jpeg("progressive")).is_ok());
}

#[test]
fn the_memory_of_a_region_is_known_before_decoding() {
    let mut decoder = Decoder::new().unwrap();
    let large = resized("420", 10_000, 10_000);
    let opened = decoder.open(&large).unwrap();
    let square = |side| Region { x: 0, y: 0, width: side, height: side };
    assert_eq!(opened.working_bytes(square(10_000)), 300_000_000);
    assert!((3_000_000..4_000_000).contains(&opened.working_bytes(square(1_000))));
    let progressive = resized("progressive", 5_000, 5_000);
    let opened = decoder.open(&progressive).unwrap();
    assert_eq!(
        opened.working_bytes(square(10)),
        225_000_000,
        "the coefficients of the whole image are required"
    );
}

#[test]
fn excessive_scans_are_rejected() {
    let bytes = jpeg("progressive");
    let last_scan = bytes.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap();
    let (whole, end) = bytes.split_at(bytes.len() - 2);
    assert_eq!(end, [0xFF, 0xD9]);
    let bomb = [whole, &whole[last_scan..].repeat(600), end].concat();
    let mut decoder = Decoder::new().unwrap();
    let error = decode(&mut decoder, &bomb).unwrap_err().to_string();
    assert!(error.contains("more than 500 scans"), "{error}");
}
