//! Helpers for tests: decode a file in pieces, and from each of its access points.

use feedline_data::compression::{AccessPoint, Codec};

use crate::decoder::{DecodeError, Event, StreamDecoder};

/// The content of a file up to the first error, and the boundaries with their states.
pub(crate) struct Decoded {
    pub(crate) content: Vec<u8>,
    pub(crate) points: Vec<AccessPoint>,
    pub(crate) error: Option<DecodeError>,
}

/// Decodes a file from its start.
pub(crate) fn decode(codec: Codec, file: &[u8], piece: usize, room: usize) -> Decoded {
    let decoder = crate::start(codec).unwrap();
    run(decoder, file, 0, 0, piece, room)
}

/// Decodes a file from an access point.
pub(crate) fn resume(codec: Codec, file: &[u8], point: &AccessPoint, piece: usize) -> Decoded {
    match crate::resume(codec, point) {
        Ok(decoder) => run(decoder, file, (point.bit_offset / 8) as usize, point.content_offset, piece, 777),
        Err(error) => Decoded { content: Vec::new(), points: Vec::new(), error: Some(error) },
    }
}

/// Passes pieces of the file, and buffers with `room` bytes, until the decoder ends or fails.
fn run(
    mut decoder: Box<dyn StreamDecoder>,
    file: &[u8],
    start: usize,
    content_start: u64,
    piece: usize,
    room: usize,
) -> Decoded {
    let mut decoded = Decoded { content: decoder.take_history(), points: Vec::new(), error: None };
    let history_bytes = decoded.content.len();
    let (mut at, mut end) = (start, start);
    let mut idle = 0;
    loop {
        let filled = decoded.content.len();
        decoded.content.resize(filled + room, 0);
        let is_last = end == file.len();
        let step = decoder.decode(&file[at..end], is_last, &mut decoded.content, filled);
        decoded.content.truncate(filled + decoder.produced());
        let step = match step {
            Ok(step) => step,
            Err(error) => {
                let again = decoder.decode(&file[at..end], is_last, &mut vec![0; filled + room], filled);
                assert_eq!((again.as_ref(), decoder.produced()), (Err(&error), 0));
                decoded.error = Some(error);
                decoded.content.drain(..history_bytes);
                return decoded;
            }
        };
        assert_eq!(step.produced, decoder.produced());
        at += step.consumed;
        idle = if step.consumed + step.produced == 0 { idle + 1 } else { 0 };
        assert!(idle < 1_000, "no progress at {at} of {}", file.len());
        match step.event {
            Event::NeedsInput => {
                assert!(!is_last, "the decoder needs input after the end");
                end = (end + piece).min(file.len());
                idle = 0;
            }
            Event::ContentFull => assert_eq!(step.produced, room),
            Event::Boundary(boundary) => {
                let end = decoded.content.len();
                let history = &decoded.content[end.saturating_sub(decoder.history_bytes())..];
                let state =
                    decoder.access_state(&boundary, history, &file[(boundary.bit_offset / 8) as usize..]);
                let content_offset = content_start + (end - history_bytes) as u64;
                decoded.points.push(AccessPoint { bit_offset: boundary.bit_offset, content_offset, state });
            }
            Event::End => {
                assert_eq!(at, file.len());
                decoded.content.drain(..history_bytes);
                return decoded;
            }
        }
    }
}

/// Checks that a file decodes to its content with any pieces, and from each access point. Returns the points.
pub(crate) fn check(codec: Codec, file: &[u8], content: &[u8]) -> Vec<AccessPoint> {
    let whole = decode(codec, file, file.len().max(1), 1 << 16);
    assert_eq!(whole.error, None);
    assert!(whole.content == content, "{} of {} bytes", whole.content.len(), content.len());
    for (piece, room) in [(1, 1 << 16), (17, 13), (4_096, 1_000)] {
        let pieces = decode(codec, file, piece, room);
        assert!(pieces.content == content && pieces.error.is_none(), "{piece} {room} {:?}", pieces.error);
        assert_eq!(pieces.points, whole.points, "{piece} {room}");
    }
    for point in &whole.points {
        let rest = resume(codec, file, point, 1_000);
        assert_eq!(rest.error, None, "{point:?}");
        assert!(rest.content == content[point.content_offset as usize..], "{point:?}");
    }
    whole.points
}

/// Checks that every truncation of a file is an error, after a part of its content. The ends of `valid` are the ends of complete
/// streams.
pub(crate) fn check_truncations(codec: Codec, file: &[u8], content: &[u8], valid: &[usize]) {
    for end in 0..file.len() {
        let part = decode(codec, &file[..end], end.max(1), 1 << 16);
        assert!(content.starts_with(&part.content), "{end}");
        assert_eq!(part.error.is_none(), valid.contains(&end), "{end}: {:?}", part.error);
    }
}

/// Lines of text that compress like prose.
pub(crate) fn text(bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 100);
    let mut value = 1_u64;
    while out.len() < bytes {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"][(value >> 33) as usize % 6];
        out.extend_from_slice(format!("{{\"{word}\": {}}}\n", value >> 40).as_bytes());
    }
    out.truncate(bytes);
    out
}
