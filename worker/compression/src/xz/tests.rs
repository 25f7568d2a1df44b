//! Tests of the xz decoder.

use feedline_data::compression::Codec;
use liblzma::stream::{Check, Filters, LzmaOptions, Status};
use proptest::prelude::*;

use super::*;
use crate::tests::checks::{check, check_truncations, decode, resume, text};

const XZ: Codec = Codec::Xz;

/// Compresses content with a block for each `block` bytes.
fn encode(mut encoder: Stream, content: &[u8], block: usize) -> Vec<u8> {
    let mut out = Vec::new();
    let mut end = 0;
    loop {
        end = (end + block).min(content.len());
        let action = if end == content.len() { Action::Finish } else { Action::FullFlush };
        loop {
            out.reserve(4_096);
            let input = &content[encoder.total_in() as usize..end];
            if encoder.process_vec(input, &mut out, action).unwrap() == Status::StreamEnd {
                break;
            }
        }
        if end == content.len() {
            return out;
        }
    }
}

fn one_block(content: &[u8], check: Check) -> Vec<u8> {
    encode(Stream::new_easy_encoder(1, check).unwrap(), content, content.len())
}

fn blocks(content: &[u8], block: usize) -> Vec<u8> {
    encode(Stream::new_easy_encoder(1, Check::Crc64).unwrap(), content, block)
}

fn with_dictionary(content: &[u8], bytes: u32) -> Vec<u8> {
    let mut options = LzmaOptions::new_preset(0).unwrap();
    options.dict_size(bytes);
    let mut filters = Filters::new();
    filters.x86().lzma2(&options);
    encode(Stream::new_stream_encoder(&filters, Check::Crc32).unwrap(), content, content.len())
}

#[test]
fn each_block_is_an_access_point() {
    let content = text(100_000);
    let points = check(XZ, &blocks(&content, 30_000), &content);
    let offsets: Vec<u64> = points.iter().map(|point| point.content_offset).collect();
    assert_eq!(offsets, [30_000, 60_000, 90_000]);
    for kind in [Check::None, Check::Crc32, Check::Crc64, Check::Sha256] {
        assert!(check(XZ, &one_block(&content, kind), &content).is_empty());
    }
    assert!(check(XZ, &one_block(b"", Check::Crc32), b"").is_empty());
    check(XZ, &with_dictionary(&content, 1 << 16), &content);
}

#[test]
fn data_that_does_not_compress_is_decoded() {
    let mut value = 1_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (value >> 40) as u8
    })
    .take(200_000)
    .collect();
    assert_eq!(check(XZ, &blocks(&noise, 150_000), &noise).len(), 1);
}

#[test]
fn streams_and_padding_are_concatenated() {
    let content = text(4_000);
    let (first, second) = (one_block(&content[..1_500], Check::Crc32), blocks(&content[1_500..], 2_000));
    let file = [first, vec![0; 8], second, vec![0; 4]].concat();
    let points = check(XZ, &file, &content);
    let offsets: Vec<u64> = points.iter().map(|point| point.content_offset).collect();
    assert_eq!(offsets, [1_500, 3_500]);
    let error = decode(XZ, &[file, vec![0, 0, 1, 0]].concat(), 100, 1_000).error.unwrap();
    assert!(error.reason.contains("damaged"), "{error}");
}

#[test]
fn truncated_files_are_errors() {
    let content = text(3_000);
    let (first, second) = (one_block(&content[..1_500], Check::Crc32), blocks(&content[1_500..], 1_000));
    let ends = [first.len(), first.len() + 4];
    check_truncations(XZ, &[first, vec![0; 4], second].concat(), &content, &ends);
}

#[test]
fn damage_is_an_error() {
    let content = text(3_000);
    let file = blocks(&content, 1_000);
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            assert!(decode(XZ, &damaged, 500, 1_000).error.is_some(), "{at} {bit}");
        }
    }
    let error = decode(XZ, &[file.clone(), b"garbage".to_vec()].concat(), 500, 1_000).error.unwrap();
    assert_eq!(error.reason, "the data after the last xz stream is not an xz stream: remove it");
    assert_eq!(error.offset, file.len() as u64);
}

#[test]
fn a_missing_block_is_an_error() {
    // The index has three blocks, but the file has only the last two.
    let content = text(3_000);
    let file = blocks(&content, 1_000);
    let points = check(XZ, &file, &content);
    let second = (points[0].bit_offset / 8) as usize;
    let shorter = [&file[..STREAM_HEADER_BYTES], &file[second..]].concat();
    let decoded = decode(XZ, &shorter, 500, 1_000);
    assert!(decoded.error.unwrap().reason.contains("index"));
    assert_eq!(decoded.content, &content[1_000..]);
}

#[test]
fn large_dictionaries_are_rejected() {
    let content = text(1_000);
    let file = with_dictionary(&content, 128 << 20);
    assert!(decode(XZ, &file, 500, 1_000).error.is_none());
    let error = decode(XZ, &with_dictionary(&content, 192 << 20), 500, 1_000).error.unwrap();
    assert!(error.reason.contains("201326592 bytes, more than the limit of 134217728"), "{error}");
    let mut decoder = XzDecoder::start();
    decoder.decode(&with_dictionary(&content, 1 << 20), true, &mut [0; 2000], 0).unwrap();
    assert!((1 << 20..8 << 20).contains(&decoder.memory_bytes()));
}

#[test]
fn invalid_access_points_are_errors() {
    for (bit_offset, state) in [(0, vec![]), (0, vec![16]), (0, vec![1, 1]), (4, vec![1])] {
        let point = AccessPoint { bit_offset, content_offset: 0, state };
        assert!(resume(XZ, b"x", &point, 1).error.unwrap().reason.contains("--rebuild"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_streams_decode(
        content in proptest::collection::vec(any::<u8>(), 0..5_000),
        block in 100usize..3_000,
    ) {
        let points = check(XZ, &blocks(&content, block), &content);
        prop_assert_eq!(points.len(), content.len().div_ceil(block).saturating_sub(1));
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let file = [&stream_header(1)[..], &bytes].concat();
        decode(XZ, &file, 7, 100);
    }
}
