//! Tests of the zstd decoder.

use feedline_data::compression::{AccessPoint, Codec};
use proptest::prelude::*;

use super::*;
use crate::tests::checks::{check, check_truncations, decode, resume, text};

const ZSTD: Codec = Codec::Zstd;

fn frame(content: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(content, 3).unwrap()
}

/// A frame with a checksum and without the size of its content.
fn streamed(content: &[u8], window_log: u32) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.include_contentsize(false).unwrap();
    encoder.window_log(window_log).unwrap();
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn skippable(content: &[u8]) -> Vec<u8> {
    [&0x184d_2a5e_u32.to_le_bytes(), &(content.len() as u32).to_le_bytes(), content].concat()
}

#[test]
fn each_frame_is_an_access_point() {
    let content = text(50_000);
    let frames: Vec<Vec<u8>> = content.chunks(9_000).map(frame).collect();
    let points = check(ZSTD, &frames.concat(), &content);
    let offsets: Vec<u64> = points.iter().map(|point| point.content_offset).collect();
    assert_eq!(offsets, [9_000, 18_000, 27_000, 36_000, 45_000]);
    assert!(points.iter().all(|point| point.state.is_empty()));
    assert!(check(ZSTD, &frame(&content), &content).is_empty());
    assert!(check(ZSTD, &streamed(&content, 17), &content).is_empty());
    assert!(check(ZSTD, &frame(b""), b"").is_empty());
}

#[test]
fn skippable_frames_are_not_content() {
    let content = text(2_000);
    let parts = [
        skippable(b"first"),
        frame(&content[..1_000]),
        skippable(b""),
        frame(&content[1_000..]),
        skippable(&[7; 999]),
    ];
    let points = check(ZSTD, &parts.concat(), &content);
    assert_eq!(points.len(), 1);
    assert_eq!((points[0].content_offset, points[0].bit_offset % 8), (1_000, 0));
    assert!(check(ZSTD, &skippable(b"only"), b"").is_empty());
}

/// `testdata/make_seekable.py` wrote the file with pyzstd: four frames, and the seek table.
#[test]
fn the_frames_of_a_file_in_the_seekable_format_are_access_points() {
    let file = include_bytes!("../../testdata/seekable.zst");
    let content: String = (0..1_000_u64).map(|row| format!("row {row}, {}\n", row * row % 977)).collect();
    // The seek table ends with the number of frames, flags and a magic number.
    assert!(file.ends_with(&[4, 0, 0, 0, 0, 0xb1, 0xea, 0x92, 0x8f]));
    let points = check(ZSTD, file, content.as_bytes());
    let found: Vec<(u64, u64)> =
        points.iter().map(|point| (point.bit_offset / 8, point.content_offset)).collect();
    assert_eq!(found, [(1_421, 4_096), (2_744, 8_192), (4_138, 12_288)]);
    check_truncations(ZSTD, file, content.as_bytes(), &[1_421, 2_744, 4_138, 4_329]);
}

#[test]
fn truncated_files_are_errors() {
    let content = text(3_000);
    let (first, second) = (streamed(&content[..1_500], 17), frame(&content[1_500..]));
    let seek_table = skippable(b"seek table");
    let ends = [first.len(), first.len() + second.len()];
    check_truncations(ZSTD, &[first, second, seek_table].concat(), &content, &ends);
}

#[test]
fn damage_is_an_error() {
    let content = text(3_000);
    let file = streamed(&content, 17);
    for at in 4..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        // The checksum covers the content. Other bits of the header may change without an effect on the content.
        let decoded = decode(ZSTD, &damaged, 100, 1_000);
        assert!(decoded.error.is_some() || decoded.content == content, "{at}");
    }
    for garbage in [&b"\n"[..], b"ab", b"P*x"] {
        let error = decode(ZSTD, &[&frame(b"x"), garbage].concat(), 100, 100).error.unwrap();
        assert!(error.reason.ends_with("is not a zstd frame: remove it"), "{error}");
    }
    let garbage = [frame(b"x"), b"garbage".to_vec()].concat();
    let error = decode(ZSTD, &garbage, 100, 100).error.unwrap();
    assert_eq!(error.reason, "the data after the last zstd frame is not a zstd frame: remove it");
    assert_eq!(error.offset, garbage.len() as u64 - 7);
}

#[test]
fn a_wrong_content_size_is_an_error() {
    // A single segment with a content size of 1 byte in the header.
    let content = [5; 200];
    let file = frame(&content);
    assert_eq!((file[4], file[5]), (0x20, 200));
    for size in [0, 1, 199, 201, 255] {
        let mut wrong = file.clone();
        wrong[5] = size;
        let decoded = decode(ZSTD, &wrong, 100, 1_000);
        assert!(decoded.error.unwrap().reason.contains("damaged"), "{size}");
    }
}

#[test]
fn large_windows_and_dictionaries_are_rejected() {
    let content = text(2_000);
    assert!(decode(ZSTD, &streamed(&content, 27), 100, 1_000).error.is_none());
    let error = decode(ZSTD, &streamed(&content, 28), 100, 1_000).error.unwrap();
    assert!(error.reason.contains("268435456 bytes, more than the limit of 134217728"), "{error}");
    // A header with a dictionary of one byte, and a single segment of 2^63 bytes.
    let dictionary = [&FRAME_MAGIC.to_le_bytes()[..], &[0x21, 9, 4, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert!(decode(ZSTD, &dictionary, 100, 1_000).error.unwrap().reason.contains("dictionary"));
    let huge = [&FRAME_MAGIC.to_le_bytes()[..], &[0xe0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0]].concat();
    assert!(decode(ZSTD, &huge, 100, 1_000).error.unwrap().reason.contains("more than the limit"));
}

#[test]
fn the_memory_is_that_of_the_window() {
    let mut decoder = ZstdDecoder::start().unwrap();
    let file = streamed(&text(100_000), 20);
    decoder.decode(&file, true, &mut [0; 1000], 0).unwrap();
    let window = 1 << 20;
    assert!((window..window + (1 << 20)).contains(&decoder.memory_bytes()));
}

#[test]
fn invalid_access_points_are_errors() {
    for (bit_offset, state) in [(3, vec![]), (8, vec![1])] {
        let point = AccessPoint { bit_offset, content_offset: 0, state };
        assert!(resume(ZSTD, b"x", &point, 1).error.unwrap().reason.contains("--rebuild"));
    }
}

proptest! {
    #[test]
    fn random_frames_decode(
        parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..300), any::<bool>()), 1..6),
    ) {
        let content: Vec<u8> = parts.iter().flat_map(|(part, _)| part.clone()).collect();
        let file: Vec<u8> = parts
            .iter()
            .flat_map(|(part, is_streamed)| if *is_streamed { streamed(part, 12) } else { frame(part) })
            .collect();
        let points = check(ZSTD, &file, &content);
        prop_assert_eq!(points.len(), parts.len().saturating_sub(1));
    }

    #[test]
    fn any_bytes_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let file = [&FRAME_MAGIC.to_le_bytes()[..], &bytes].concat();
        decode(ZSTD, &file, 7, 100);
    }
}
