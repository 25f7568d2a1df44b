//! Compares our Huffman decoder with libjpeg-turbo's, with and without an index, on images of various kinds.

use std::ffi::c_int;

use turbojpeg_sys as sys;

use super::{GOLDEN, decode, jpeg};
use crate::handle::TurboJpeg;
use crate::partial::Reduction;
use crate::{Decoder, Region};

/// The parameters of a generated image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    width: u32,
    height: u32,
    subsampling: sys::TJSAMP,
    quality: u32,
    /// MCU rows between restart markers, or 0 if there are no restart markers.
    restart_rows: u32,
    /// Whether the Huffman tables are optimized for the image.
    optimized: bool,
}

/// A xorshift generator.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) as u32 % limit
    }

    pub(super) fn shape(&mut self) -> Shape {
        let subsamplings = [
            sys::TJSAMP_TJSAMP_444,
            sys::TJSAMP_TJSAMP_422,
            sys::TJSAMP_TJSAMP_420,
            sys::TJSAMP_TJSAMP_GRAY,
            sys::TJSAMP_TJSAMP_440,
            sys::TJSAMP_TJSAMP_411,
        ];
        Shape {
            width: 1 + self.below(400),
            height: 1 + self.below(200),
            subsampling: subsamplings[self.below(6) as usize],
            quality: [1, 30, 75, 95, 100][self.below(5) as usize],
            restart_rows: self.below(3),
            optimized: self.below(2) == 1,
        }
    }

    fn region(&mut self, width: u32, height: u32) -> Region {
        let (x, y) = (self.below(width), self.below(height));
        Region { x, y, width: 1 + self.below(width - x), height: 1 + self.below(height - y) }
    }
}

/// Encodes a JPEG with smooth areas, edges and noise.
pub(super) fn encode(shape: Shape, random: &mut Random) -> Vec<u8> {
    let Shape { width, height, .. } = shape;
    let noise = [0, 8, 255][random.below(3) as usize];
    let mut pixels = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let edge = if (x / 37 + y / 23) % 2 == 0 { 60 } else { 180 };
            let tones = [edge, (x * 255 / width), (y * 255 / height)];
            pixels.extend(tones.map(|tone| (tone + random.below(noise + 1)).min(255) as u8));
        }
    }
    // SAFETY: the handle is created, used and destroyed here. `pixels` has `width * height` RGB pixels. The encoder returns
    // its own buffer, which is copied before it is freed.
    unsafe {
        let handle = sys::tj3Init(sys::TJINIT_TJINIT_COMPRESS as c_int);
        for (parameter, value) in [
            (sys::TJPARAM_TJPARAM_SUBSAMP, shape.subsampling as c_int),
            (sys::TJPARAM_TJPARAM_QUALITY, shape.quality as c_int),
            (sys::TJPARAM_TJPARAM_RESTARTROWS, shape.restart_rows as c_int),
            (sys::TJPARAM_TJPARAM_OPTIMIZE, c_int::from(shape.optimized)),
        ] {
            assert_eq!(sys::tj3Set(handle, parameter as c_int, value), 0);
        }
        let (mut data, mut length) = (std::ptr::null_mut(), 0);
        let rgb = sys::TJPF_TJPF_RGB as c_int;
        let status = sys::tj3Compress8(
            handle,
            pixels.as_ptr(),
            width as c_int,
            0,
            height as c_int,
            rgb,
            &raw mut data,
            &raw mut length,
        );
        assert_eq!(status, 0);
        let encoded = std::slice::from_raw_parts(data, length as usize).to_vec();
        sys::tj3Free(data.cast());
        sys::tj3Destroy(handle);
        encoded
    }
}

/// Decodes the whole image with libjpeg-turbo only.
fn reference(decoder: &mut Decoder, jpeg: &[u8]) -> Vec<u8> {
    let header = decoder.header(jpeg).unwrap();
    let handle = TurboJpeg::new().unwrap();
    handle.read_header(jpeg, crate::exif::read_markers(jpeg)).unwrap();
    let whole = Region { x: 0, y: 0, width: header.stored_width, height: header.stored_height };
    let mut out = vec![0; (whole.width * whole.height * 3) as usize];
    handle.decompress_rgb(jpeg, &header, whole, (&mut Vec::new(), &mut || false), &mut out).unwrap();
    out
}

/// Decodes the whole image at half size with libjpeg-turbo only.
fn half_reference(jpeg: &[u8], [width, height]: [u32; 2]) -> Vec<u8> {
    let (width, height) = (width.div_ceil(2), height.div_ceil(2));
    let mut out = vec![0; (width * height * 3) as usize];
    // SAFETY: the handle is created, used and destroyed here. `out` has the size of the image at half size.
    unsafe {
        let handle = sys::tj3Init(sys::TJINIT_TJINIT_DECOMPRESS as c_int);
        let length = jpeg.len() as sys::size_t;
        assert_eq!(sys::tj3DecompressHeader(handle, jpeg.as_ptr(), length), 0);
        assert_eq!(sys::tj3SetScalingFactor(handle, sys::tjscalingfactor { num: 1, denom: 2 }), 0);
        let rgb = sys::TJPF_TJPF_RGB as c_int;
        assert_eq!(sys::tj3Decompress8(handle, jpeg.as_ptr(), length, out.as_mut_ptr(), 0, rgb), 0);
        sys::tj3Destroy(handle);
    }
    out
}

#[test]
fn regions_at_half_size_equal_those_of_libjpeg() {
    let mut random = Random(7263254885172);
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    for _ in 0..150 {
        let shape = random.shape();
        let plain = encode(shape, &mut random);
        let whole = half_reference(&plain, [shape.width, shape.height]);
        let indexed = decoder.with_index(&plain).unwrap();
        for _ in 0..8 {
            let region = random.region(shape.width, shape.height);
            let (x, y) = (region.x / 2, region.y / 2);
            let columns = (region.x + region.width).div_ceil(2) - x;
            for jpeg in [&plain, &indexed] {
                out.fill(0x55);
                let decoded = decoder.open(jpeg).unwrap().decode_half(region, &mut out).unwrap();
                for row in 0..(region.y + region.height).div_ceil(2) - y {
                    let at = ((decoded.y_offset + row) * decoded.width + decoded.x_offset) as usize * 3;
                    let expected = ((y + row) * shape.width.div_ceil(2) + x) as usize * 3;
                    let bytes = columns as usize * 3;
                    let (found, expected) = (&out[at..at + bytes], &whole[expected..expected + bytes]);
                    assert!(found == expected, "{shape:?} {region:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn regions_equal_those_of_libjpeg_with_and_without_an_index() {
    let mut random = Random(88172645463325252);
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    for _ in 0..250 {
        let shape = random.shape();
        let plain = encode(shape, &mut random);
        let whole = reference(&mut decoder, &plain);
        let indexed = decoder.with_index(&plain).unwrap_or_else(|| panic!("{shape:?} has no index"));
        assert!(decoder.with_index(&indexed).is_none(), "the JPEG already has an index");
        for _ in 0..8 {
            let region = random.region(shape.width, shape.height);
            for jpeg in [&plain, &indexed] {
                out.fill(0x55);
                let decoded = decoder.decode_region(jpeg, region, &mut out).unwrap();
                for row in 0..region.height {
                    let at = ((decoded.y_offset + row) * decoded.width + decoded.x_offset) as usize * 3;
                    let expected = ((region.y + row) * shape.width + region.x) as usize * 3;
                    let bytes = region.width as usize * 3;
                    let (found, expected) = (&out[at..at + bytes], &whole[expected..expected + bytes]);
                    assert!(found == expected, "{shape:?} {region:?} row {row}");
                }
            }
        }
    }
}

#[test]
fn our_decoder_decodes_all_supported_images() {
    let mut random = Random(7);
    let mut decoder = Decoder::new().unwrap();
    for _ in 0..50 {
        let shape = random.shape();
        let encoded = encode(shape, &mut random);
        let whole = Region { x: 0, y: 0, width: shape.width, height: shape.height };
        let mut out = vec![0; (shape.width * shape.height * 3) as usize];
        assert!(decoder.partial.decode(&encoded, (whole, Reduction::None), None, &mut out), "{shape:?}");
        assert!(out == reference(&mut decoder, &encoded));
    }
}

#[test]
fn an_indexed_jpeg_has_one_additional_segment() {
    let mut decoder = Decoder::new().unwrap();
    for (name, plain, golden) in GOLDEN {
        let unsuited = ["progressive", "cmyk", "ycck"].contains(&name);
        let Some(indexed) = decoder.with_index(plain) else {
            assert!(unsuited, "{name} has no index");
            continue;
        };
        assert!(!unsuited, "{name} has an index");
        let segment = indexed.windows(2).position(|pair| pair == [0xFF, 0xEA]).unwrap();
        let length = usize::from(u16::from_be_bytes([indexed[segment + 2], indexed[segment + 3]]));
        let without = [&indexed[..segment], &indexed[segment + 2 + length..]].concat();
        assert!(without == plain, "{name}");
        let (_, _, pixels) = decode(&mut decoder, &indexed).unwrap();
        assert!(pixels == golden[8..] && reference(&mut decoder, &indexed) == reference(&mut decoder, plain));
    }
}

#[test]
fn an_index_of_other_data_is_not_used() {
    let mut random = Random(3);
    let mut decoder = Decoder::new().unwrap();
    let shape = Shape {
        width: 300,
        height: 100,
        subsampling: sys::TJSAMP_TJSAMP_420,
        quality: 90,
        restart_rows: 0,
        optimized: false,
    };
    let (first, second) = (encode(shape, &mut random), encode(shape, &mut random));
    let indexed = decoder.with_index(&first).unwrap();
    let segment = indexed.windows(2).position(|pair| pair == [0xFF, 0xEA]).unwrap();
    let length = usize::from(u16::from_be_bytes([indexed[segment + 2], indexed[segment + 3]]));
    let index = &indexed[segment..segment + 2 + length];
    let forged = [&second[..2], index, &second[2..]].concat();
    assert!(decode(&mut decoder, &forged).unwrap().2 == reference(&mut decoder, &second));
}

#[test]
fn damage_to_an_indexed_jpeg_neither_panics_nor_affects_the_next_image() {
    let mut random = Random(11);
    let mut decoder = Decoder::new().unwrap();
    let mut out = Vec::new();
    let sound = decoder.with_index(jpeg("420")).unwrap();
    let pixels = decode(&mut decoder, &sound).unwrap();
    for round in 0..3000 {
        let mut damaged = sound.clone();
        for _ in 0..1 + random.below(3) {
            let position = random.below(damaged.len() as u32) as usize;
            damaged[position] = random.below(256) as u8;
        }
        if round % 3 == 0 {
            damaged.truncate(random.below(damaged.len() as u32) as usize);
        }
        let Ok(opened) = decoder.open(&damaged) else { continue };
        let (width, height) = (opened.header().width, opened.header().height);
        if u64::from(width) * u64::from(height) <= 1 << 20 {
            let _ = opened.decode_region(random.region(width, height), &mut out);
        }
    }
    assert_eq!(decode(&mut decoder, &sound).unwrap(), pixels);
}
