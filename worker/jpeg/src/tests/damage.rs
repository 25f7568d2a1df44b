//! Whether an image is corrupted depends on its bytes alone: crops agree with the decoder of whole images.

use super::entropy::{Random, encode};
use super::{GOLDEN, decode, jpeg};
use crate::{Decoder, Region};

/// Regions at all places of an image, each a small part of it.
fn regions(width: u32, height: u32) -> Vec<Region> {
    let thirds = |extent: u32| [0, extent / 3, extent - extent.div_ceil(3)];
    let (w, h) = (width.div_ceil(3), height.div_ceil(3));
    let places = thirds(height).into_iter().flat_map(|y| thirds(width).map(|x| (x, y)));
    let mut regions: Vec<Region> =
        places.map(|(x, y)| Region { x, y, width: w.min(width - x), height: h.min(height - y) }).collect();
    regions.push(Region { x: 0, y: 0, width, height });
    regions
}

/// Checks that all crops accept or reject an image like the decoder of whole images. Returns whether the image is accepted.
fn check_agreement(decoder: &mut Decoder, bytes: &[u8], what: &str) -> bool {
    let whole = decode(decoder, bytes);
    let Ok(header) = decoder.header(bytes) else {
        assert!(whole.is_err());
        return false;
    };
    let mut out = Vec::new();
    for region in regions(header.width, header.height) {
        let decoded = decoder.decode_region(bytes, region, &mut out);
        assert_eq!(
            decoded.is_ok(),
            whole.is_ok(),
            "{what} {region:?}: {decoded:?}, {:?}",
            whole.as_ref().err()
        );
        // An image that cannot be decoded at half size is decoded by the other function.
        let half = decoder.open(bytes).unwrap().decode_half(region, &mut Vec::new());
        assert!(half.is_none() || whole.is_ok(), "{what} {region:?}");
    }
    whole.is_ok()
}

/// All kinds of images: subsamplings, several scans, restart markers, rotations, four components, and an index.
fn images(decoder: &mut Decoder) -> Vec<(String, Vec<u8>)> {
    let names = ["420", "444", "grey", "restart", "exif6", "progressive", "cmyk"];
    let mut images: Vec<(String, Vec<u8>)> =
        names.map(|name| (name.to_owned(), jpeg(name).to_vec())).into_iter().collect();
    images.push(("indexed".to_owned(), decoder.with_index(jpeg("420")).unwrap()));
    images.push(("indexed with restarts".to_owned(), decoder.with_index(jpeg("restart")).unwrap()));
    let mut random = Random(5);
    for number in 0..4 {
        let shape = random.shape();
        images.push((format!("generated {number}"), encode(shape, &mut random)));
    }
    images
}

#[test]
fn crops_agree_on_an_image_that_is_cut() {
    let mut decoder = Decoder::new().unwrap();
    for (name, whole) in images(&mut decoder) {
        assert!(check_agreement(&mut decoder, &whole, &name));
        let is_progressive = name == "progressive";
        for length in (0..whole.len()).rev().step_by(whole.len() / 60).chain(whole.len() - 5..whole.len()) {
            let what = format!("{name} cut to {length} bytes");
            let is_accepted = check_agreement(&mut decoder, &whole[..length], &what);
            assert_eq!(is_accepted, length >= whole.len() - 2 && !is_progressive, "{what}");
            let mut padded = whole[..length].to_vec();
            padded.resize(whole.len() + 64, 0);
            check_agreement(&mut decoder, &padded, &format!("{what}, padded with zeros"));
        }
    }
}

#[test]
fn crops_agree_on_an_image_with_other_markers() {
    let mut decoder = Decoder::new().unwrap();
    for (name, whole) in images(&mut decoder) {
        let scan = whole.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
        for at in (scan..whole.len() - 2).step_by((whole.len() - scan) / 23 + 1) {
            for marker in [0xD9, 0xD8, 0xD3, 0xC4, 0xDA, 0xFE] {
                let what = format!("{name} with marker {marker:02X} at {at}");
                let mut other = whole.clone();
                other[at..at + 2].copy_from_slice(&[0xFF, marker]);
                let is_accepted = check_agreement(&mut decoder, &other, &what);
                assert!(!is_accepted || marker != 0xD9 || name == "progressive", "{what}");
            }
        }
    }
}

#[test]
fn crops_agree_on_an_image_with_a_hole() {
    let mut decoder = Decoder::new().unwrap();
    for (name, whole) in images(&mut decoder) {
        let scan = whole.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
        for at in (scan..whole.len() - 2).step_by((whole.len() - scan) / 17 + 1) {
            for fill in [0, 0xFF] {
                let mut other = whole.clone();
                let end = (at + 128).min(whole.len());
                other[at..end].fill(fill);
                check_agreement(&mut decoder, &other, &format!("{name} with {fill:02X} at {at}"));
            }
        }
    }
}

#[test]
fn data_after_the_end_of_an_image_is_not_damage() {
    let mut decoder = Decoder::new().unwrap();
    for (name, whole) in images(&mut decoder) {
        for tail in [&[0][..], &[0xFF; 40], b"a second image", &whole] {
            let longer = [&whole, tail].concat();
            assert!(check_agreement(&mut decoder, &longer, &format!("{name} and {} bytes", tail.len())));
            assert!(decode(&mut decoder, &longer).unwrap() == decode(&mut decoder, &whole).unwrap());
        }
    }
}

/// Flipped bits do not change the structure. A crop of an image that is accepted as a whole is accepted too.
#[test]
fn crops_of_an_accepted_image_are_accepted() {
    let mut decoder = Decoder::new().unwrap();
    let mut random = Random(17);
    let (mut accepted, mut rejected) = (0, 0);
    for (name, whole, _) in GOLDEN {
        for _ in 0..40 {
            let mut damaged = whole.to_vec();
            let position = random.below(damaged.len() as u32) as usize;
            damaged[position] ^= 1 << random.below(8);
            let Ok(header) = decoder.header(&damaged) else { continue };
            if u64::from(header.width) * u64::from(header.height) > 1 << 20 {
                continue;
            }
            if decode(&mut decoder, &damaged).is_ok() {
                accepted += 1;
                assert!(check_agreement(
                    &mut decoder,
                    &damaged,
                    &format!("{name} with a flip at {position}")
                ));
            } else {
                rejected += 1;
            }
        }
    }
    assert!(accepted > 100 && rejected > 20, "{accepted} accepted, {rejected} rejected");
}
