//! Tests of the gzip decoder against files that flate2 has written.

use std::io::Write;

use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use flate2::{Compression, GzBuilder};
use proptest::prelude::*;

use super::*;

/// Text with many repetitions of words.
fn text(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut text = Vec::with_capacity(bytes + 64);
    while text.len() < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = (state >> 33) % 3000;
        text.extend(format!("w{word:x}{} ", if word.is_multiple_of(7) { "\n" } else { "" }).as_bytes());
    }
    text.truncate(bytes);
    text
}

fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 9_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..bytes).map(next).collect()
}

fn gzip(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

struct Decoded {
    content: Vec<u8>,
    /// Boundaries, with the length of the content before each.
    boundaries: Vec<(Boundary, usize)>,
    error: Option<DecodeError>,
}

/// Decodes a file whose input arrives in pieces of `piece` bytes, into a buffer of `space` more bytes for each call.
fn decode_with(mut decoder: Box<dyn StreamDecoder>, input: &[u8], piece: usize, space: usize) -> Decoded {
    let mut content = decoder.take_history();
    let start = content.len();
    let mut filled = start;
    let (mut at, mut end) = (0, piece.min(input.len()));
    let mut boundaries = Vec::new();
    let mut error = None;
    loop {
        content.resize(filled + space, 0);
        let step = match decoder.decode(&input[at..end], end == input.len(), &mut content, filled) {
            Ok(step) => step,
            Err(found) => {
                filled += decoder.produced();
                error = Some(found);
                break;
            }
        };
        at += step.consumed;
        filled += step.produced;
        match step.event {
            Event::End => break,
            Event::NeedsInput => {
                assert!(end < input.len(), "the decoder needs input after the end");
                end = (end + piece).min(input.len());
            }
            Event::ContentFull => {}
            Event::Boundary(boundary) => boundaries.push((boundary, filled - start)),
        }
    }
    content.truncate(filled);
    Decoded { content: content.split_off(start), boundaries, error }
}

fn decode(input: &[u8]) -> Decoded {
    decode_as(Framing::Gzip, input)
}

fn decode_as(framing: Framing, input: &[u8]) -> Decoded {
    decode_with(Box::new(GzipDecoder::start(framing)), input, 1 << 20, 1 << 20)
}

fn check(input: &[u8], expected: &[u8]) -> Decoded {
    let decoded = decode(input);
    assert_eq!(decoded.error, None);
    assert!(decoded.content == expected, "the content differs");
    decoded
}

/// Starts at every boundary, and compares the content with that of a sequential pass.
fn check_access_points(input: &[u8], decoded: &Decoded) {
    check_access_points_as(Framing::Gzip, input, decoded);
}

fn check_access_points_as(framing: Framing, input: &[u8], decoded: &Decoded) {
    let decoder = GzipDecoder::start(framing);
    for (boundary, length) in &decoded.boundaries {
        let history = &decoded.content[length.saturating_sub(WINDOW_BYTES)..*length];
        let compressed = &input[(boundary.bit_offset / 8) as usize..];
        let state = decoder.access_state(boundary, history, compressed);
        let point = AccessPoint { bit_offset: boundary.bit_offset, content_offset: *length as u64, state };
        let resumed = GzipDecoder::resume(framing, &point).unwrap();
        let rest = decode_with(Box::new(resumed), compressed, 4096, 70_000);
        assert_eq!(rest.error, None);
        assert!(rest.content == decoded.content[*length..], "the content after {boundary:?} differs");
    }
}

#[test]
fn files_of_all_levels_are_decoded_and_every_boundary_is_an_access_point() {
    for content in [text(400_000, 5), noise(150_000), vec![b'a'; 300_000], Vec::new()] {
        for level in 0..=9 {
            let file = gzip(&content, level);
            let decoded = check(&file, &content);
            check_access_points(&file, &decoded);
        }
    }
}

#[test]
fn members_headers_and_padding_are_accepted() {
    let (a, b) = (text(50_000, 1), text(20_000, 2));
    let mut header = GzBuilder::new()
        .extra(vec![7; 300])
        .filename("a name")
        .comment("c")
        .write(Vec::new(), Compression::fast());
    header.write_all(&b).unwrap();
    let members = [gzip(&a, 6), gzip(b"", 6), header.finish().unwrap(), gzip(&a, 0), gzip(b"", 0)];
    let mut file = members.concat();
    let content = [&a[..], &b, &a].concat();
    let decoded = check(&file, &content);
    check_access_points(&file, &decoded);
    file.extend([0; 700]);
    check(&file, &content);
    file.extend(&members[0]);
    check(&file, &[&content[..], &a].concat());
}

#[test]
fn checksums_sizes_and_trailing_data_are_checked() {
    let content = text(100_000, 3);
    let file = gzip(&content, 6);
    let error = |file: &[u8]| {
        let decoded = decode(file);
        assert!(decoded.content == content, "the content before the error is delivered");
        decoded.error.unwrap()
    };
    for at in 1..=8 {
        let mut damaged = file.clone();
        damaged[file.len() - at] ^= 0x10;
        let found = error(&damaged);
        assert_eq!(found.offset, file.len() as u64);
        let expected = if at <= 4 { "the size" } else { "the checksum" };
        assert!(found.reason.starts_with(expected), "{found}");
    }
    for garbage in [&b"garbage"[..], &[0, 0, 1], &[0x1f, 0x8b, 9]] {
        let found = error(&[&file, garbage].concat());
        assert!(found.offset >= file.len() as u64, "{found:?}");
    }
}

#[test]
fn the_checksum_of_a_header_is_verified() {
    let content = text(3_000, 3);
    let file = gzip(&content, 6);
    // An extra field of three bytes, a name and a comment.
    let header = [0x1f, 0x8b, 8, 0x1e, 0, 0, 0, 0, 0, 255, 3, 0, 1, 2, 3, b'n', 0, b'c', 0];
    let checksum = (crc32fast::hash(&header) as u16).to_le_bytes();
    let member = [&header[..], &checksum, &file[10..]].concat();
    check(&[&member[..], &file, &member].concat(), &content.repeat(3));
    for at in [4, 13, 15, 17, 19, 20] {
        let mut damaged = member.clone();
        damaged[at] ^= 1;
        for piece in [1, damaged.len()] {
            let decoder = Box::new(GzipDecoder::start(Framing::Gzip));
            let error = decode_with(decoder, &damaged, piece, 1 << 20).error.unwrap();
            let reason = "the checksum of the header of a gzip member does not match: write the file again";
            assert_eq!((error.reason.as_str(), error.offset), (reason, 20), "{at}");
        }
    }
}

fn zlib(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn zlib_streams_are_decoded_from_every_boundary_and_checked() {
    for content in [text(400_000, 5), noise(150_000), Vec::new()] {
        for level in [0, 1, 6, 9] {
            let file = [zlib(&content, level), zlib(&content, 1)].concat();
            let decoded = decode_as(Framing::Zlib, &file);
            assert_eq!(decoded.error, None);
            assert!(decoded.content == content.repeat(2), "the content differs");
            check_access_points_as(Framing::Zlib, &file, &decoded);
        }
    }
    let content = text(3_000, 3);
    let file = zlib(&content, 6);
    let error = |file: &[u8]| {
        let decoded = decode_as(Framing::Zlib, file);
        assert!(content.starts_with(&decoded.content));
        decoded.error.unwrap()
    };
    for at in 1..=4 {
        let mut damaged = file.clone();
        damaged[file.len() - at] ^= 0x10;
        let found = error(&damaged);
        assert_eq!(found.offset, file.len() as u64);
        assert!(found.reason.starts_with("the checksum of a zlib stream does not match"), "{found}");
    }
    for end in 1..file.len() {
        let found = error(&file[..end]);
        assert!(found.reason.starts_with("the zlib data is truncated"), "{found}");
        assert_eq!(found.offset, end as u64);
    }
    for garbage in [&b"garbage"[..], &[0, 0, 1], &[0x1f, 0x8b, 8]] {
        let found = error(&[&file, garbage].concat());
        assert!(found.offset > file.len() as u64, "{found:?}");
    }
    // The method is not deflate, a dictionary is needed, and the window is too large.
    for start in [[0x79, 0x9c], [0x78, 0xbb], [0x88, 0x1c]] {
        assert!(!Framing::is_zlib_start(start[0], start[1]));
        assert!(!error(&[&start[..], &file[2..]].concat()).reason.is_empty());
    }
}

#[test]
fn a_file_that_ends_at_any_byte_is_truncated_and_its_content_is_a_prefix() {
    let content = text(3_000, 4);
    let file = [gzip(&content, 6), gzip(&content, 1)].concat();
    let whole = [content.as_slice(), &content].concat();
    for end in 1..file.len() {
        let decoded = decode(&file[..end]);
        assert!(whole.starts_with(&decoded.content));
        if end == gzip(&content, 6).len() {
            assert_eq!(decoded.error, None);
            continue;
        }
        let error = decoded.error.unwrap();
        assert!(error.reason.contains("truncated"), "{error}");
        assert_eq!(error.offset, end as u64);
    }
}

#[test]
fn flushed_blocks_and_huge_ratios_are_decoded() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    let part = text(1000, 6);
    for _ in 0..50 {
        encoder.write_all(&part).unwrap();
        encoder.flush().unwrap();
        encoder.flush().unwrap();
    }
    let file = encoder.finish().unwrap();
    let decoded = check(&file, &part.repeat(50));
    check_access_points(&file, &decoded);
    let zeros = vec![0; 20_000_000];
    check(&gzip(&zeros, 9), &zeros);
}

#[test]
fn a_sparse_window_is_much_smaller_than_the_whole_window() {
    let content = [noise(40_000), text(600_000, 8)].concat();
    let file = gzip(&content, 6);
    let decoded = check(&file, &content);
    let (boundary, length) = *decoded.boundaries.iter().find(|(_, length)| *length > 200_000).unwrap();
    let history = &content[length - WINDOW_BYTES..length];
    let compressed = &file[(boundary.bit_offset / 8) as usize..];
    let whole = GzipDecoder::start(Framing::Gzip).access_state(&boundary, history, &compressed[..100]).len();
    let sparse = GzipDecoder::start(Framing::Gzip).access_state(&boundary, history, compressed).len();
    assert!(sparse < whole, "{sparse} of {whole} bytes");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn the_pieces_of_input_and_content_do_not_matter(
        size in 0_usize..20_000, level in 0_u32..10, piece in 1_usize..300, space in 1_usize..700, seed: u64,
    ) {
        let content = [text(size, seed), noise(size / 7), vec![3; size / 3]].concat();
        let file = [gzip(&content, level), gzip(&content, 6)].concat();
        let decoded = decode_with(Box::new(GzipDecoder::start(Framing::Gzip)), &file, piece, space);
        prop_assert_eq!(decoded.error, None);
        prop_assert!(decoded.content == content.repeat(2));
        let whole = decode(&file);
        prop_assert_eq!(decoded.boundaries, whole.boundaries);
    }

    #[test]
    fn damaged_data_is_never_accepted_and_never_panics(
        size in 1_usize..5_000, level in 0_u32..10, damage in proptest::collection::vec((0_usize..10_000, 1_u8..=255), 1..4),
    ) {
        let content = text(size, 7);
        let mut file = gzip(&content, level);
        for (at, bits) in damage {
            let at = 10 + at % (file.len() - 10);
            file[at] ^= bits;
        }
        let decoded = decode(&file);
        prop_assert!(decoded.error.is_some() || decoded.content == content);
    }

    #[test]
    fn changed_deflate_data_has_the_verdict_of_the_reference(
        size in 1_usize..3_000, level in 0_u32..10, changes in proptest::collection::vec((any::<usize>(), 1_u8..=255), 0..3),
    ) {
        let content = [text(size, 7), noise(size / 9)].concat();
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::new(level));
        encoder.write_all(&content).unwrap();
        let mut data = encoder.finish().unwrap();
        for (at, bits) in changes {
            let at = at % data.len();
            data[at] ^= bits;
        }
        let mut reference = flate2::Decompress::new(false);
        let mut expected = Vec::with_capacity(1 << 20);
        let status = reference.decompress_vec(&data, &mut expected, flate2::FlushDecompress::Finish);
        let header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0];
        // There is no trailer, so a valid stream is truncated.
        let data = if status.is_ok() { &data[..reference.total_in() as usize] } else { &data[..] };
        let decoded = decode(&[&header[..], data].concat());
        let reason = decoded.error.unwrap().reason;
        match status {
            Ok(flate2::Status::StreamEnd) => {
                prop_assert!(reason.contains("truncated"), "{}", reason);
                prop_assert!(decoded.content == expected);
            }
            Ok(_) => prop_assert!(decoded.content.starts_with(&expected)),
            Err(_) => prop_assert!(reason.contains("damaged"), "{}", reason),
        }
    }
}

#[test]
fn long_distances_and_the_longest_matches_are_decoded() {
    let far = [noise(32_768), noise(32_768), vec![1; 600], noise(32_000)].concat();
    check(&gzip(&far, 9), &far);
}

#[test]
fn damaged_states_of_access_points_are_rejected() {
    for state in [vec![2, 3], vec![1, 1, 2, 3]] {
        let point = AccessPoint { bit_offset: 8, content_offset: 0, state };
        assert!(GzipDecoder::resume(Framing::Gzip, &point).is_err());
    }
}
