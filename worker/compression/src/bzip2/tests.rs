//! Tests of the bzip2 decoder.

use std::io::Write;

use bzip2::Compression;
use bzip2::write::BzEncoder;
use feedline_data::compression::Codec;
use proptest::prelude::*;

use super::*;
use crate::tests::checks::{check, check_truncations, decode, resume, text};

const BZIP2: Codec = Codec::Bzip2;

fn stream(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = BzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Bytes that do not compress.
fn noise(bytes: usize) -> Vec<u8> {
    let mut value = 1_u64;
    let next = || {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (value >> 40) as u8
    };
    std::iter::repeat_with(next).take(bytes).collect()
}

#[test]
fn each_block_is_an_access_point() {
    for content in [text(350_000), noise(250_000), vec![7; 9_000_000]] {
        let file = stream(&content, 1);
        let points = check(BZIP2, &file, &content);
        assert!(points.windows(2).all(|pair| pair[0].content_offset < pair[1].content_offset));
        let is_run = content[..1_000] == [7; 1_000];
        assert!(points.len() >= if is_run { 0 } else { 2 }, "{}", points.len());
        assert!(points.iter().all(|point| point.content_offset > 0));
    }
    let points = check(BZIP2, &stream(&text(350_000), 1), &text(350_000));
    assert!(points.iter().any(|point| point.bit_offset % 8 != 0));
}

#[test]
fn streams_are_concatenated() {
    let content = text(5_000);
    let streams: Vec<Vec<u8>> = content.chunks(1_000).map(|part| stream(part, 9)).collect();
    let points = check(BZIP2, &streams.concat(), &content);
    let offsets: Vec<u64> = points.iter().map(|point| point.content_offset).collect();
    assert_eq!(offsets, [1_000, 2_000, 3_000, 4_000]);
    assert!(check(BZIP2, &stream(b"", 9), b"").is_empty());
    let with_empty = [stream(b"", 9), stream(b"a", 1), stream(b"", 2)].concat();
    check(BZIP2, &with_empty, b"a");
}

#[test]
fn the_rest_of_a_block_is_decoded_with_its_first_byte() {
    let content = text(250_000);
    let file = stream(&content, 1);
    let mut decoder = Bzip2Decoder::start();
    assert_eq!(decoder.max_decoded_ahead(), 0);
    let mut decoded = vec![0; content.len()];
    let step = decoder.decode(&file, true, &mut decoded[..10], 0).unwrap();
    assert_eq!((step.event, step.produced, decoder.max_decoded_ahead()), (Event::ContentFull, 10, 99_990));
    let step = decoder.decode(&file[step.consumed..], true, &mut decoded, 10).unwrap();
    assert!(matches!(step.event, Event::Boundary(_)), "{:?}", step.event);
    assert!(step.produced > 80_000, "{} bytes", step.produced);
    assert_eq!(decoder.max_decoded_ahead(), 0);
}

#[test]
fn content_that_contains_a_magic_is_decoded() {
    // Each of the 8 shifts of both magics, in content that bzip2 stores almost unchanged.
    let mut content = noise(20_000);
    for (at, magic) in [BLOCK_MAGIC, END_MAGIC].into_iter().enumerate() {
        for shift in 0..8 {
            let start = 1_000 * (at * 8 + shift + 1);
            content[start..start + 8].copy_from_slice(&(magic << 16 >> shift).to_be_bytes());
        }
    }
    check(BZIP2, &stream(&content, 9), &content);
}

#[test]
fn truncated_files_are_errors() {
    let content = text(3_000);
    let (first, second) = (stream(&content[..1_500], 9), stream(&content[1_500..], 1));
    let end = first.len();
    check_truncations(BZIP2, &[first, second].concat(), &content, &[end]);
}

#[test]
fn damage_is_an_error() {
    let content = text(3_000);
    let file = stream(&content, 1);
    for at in 0..file.len() {
        for bit in 0..8 {
            let mut damaged = file.clone();
            damaged[at] ^= 1 << bit;
            let decoded = decode(BZIP2, &damaged, 500, 1_000);
            // The level of the stream, code tables without use, and bits after the end do not affect the content.
            assert!(decoded.error.is_some() || decoded.content == content, "{at} {bit}");
        }
    }
    for garbage in [&b"\n"[..], b"BZ\0"] {
        let error = decode(BZIP2, &[&file[..], garbage].concat(), 500, 1_000).error.unwrap();
        assert!(error.reason.ends_with("is not a bzip2 stream: remove it"), "{error}");
    }
    let error = decode(BZIP2, &[file.clone(), b"garbage".to_vec()].concat(), 500, 1_000).error.unwrap();
    assert_eq!(error.reason, "the data after the last bzip2 stream is not a bzip2 stream: remove it");
    assert_eq!(error.offset, file.len() as u64);
}

#[test]
fn a_decoder_can_be_called_after_an_error() {
    // A block without symbols: the 16 bits after the magic, the CRC, the flag and the position of the block.
    let mut file = stream(&text(3_000), 1);
    for bit in 32 + MAGIC_BITS + CRC_BITS + 25..32 + MAGIC_BITS + CRC_BITS + 41 {
        file[(bit / 8) as usize] &= !(0x80 >> (bit % 8));
    }
    assert!(decode(BZIP2, &file, 500, 1_000).error.unwrap().reason.contains("damaged"));
}

#[test]
fn invalid_access_points_are_errors() {
    for state in [vec![], vec![0, 0, 0, 0, 0], vec![9, 0, 0, 0], vec![10, 0, 0, 0, 0]] {
        let point = AccessPoint { bit_offset: 35, content_offset: 0, state };
        assert!(resume(BZIP2, b"BZh9xxxxxxxx", &point, 1).error.unwrap().reason.contains("--rebuild"));
    }
    let point = AccessPoint { bit_offset: 35, content_offset: 0, state: vec![9, 0, 0, 0, 0] };
    assert!(resume(BZIP2, &[0; 50], &point, 1).error.unwrap().reason.contains("damaged"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn random_streams_decode(
        parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..2_000), 1u32..10), 1..4),
    ) {
        let content: Vec<u8> = parts.iter().flat_map(|(part, _)| part.clone()).collect();
        let file: Vec<u8> = parts.iter().flat_map(|(part, level)| stream(part, *level)).collect();
        check(BZIP2, &file, &content);
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let file = [b"BZh1\x31\x41\x59\x26\x53\x59".as_slice(), &bytes].concat();
        decode(BZIP2, &file, 7, 100);
    }
}
