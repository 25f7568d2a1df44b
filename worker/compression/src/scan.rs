//! Creates the scanner of a codec.

use feedline_data::compression::{AccessPoint, Codec};

#[cfg(doc)]
use crate::StreamDecoder;
use crate::bzip2::Bzip2Scanner;
use crate::gzip::BgzipScanner;
use crate::scanner::Scanner;
use crate::xz::XzScanner;
use crate::zstd::ZstdScanner;

/// Creates a scanner that starts at a boundary which a decoder has reported. `start` has the state that
/// [`StreamDecoder::continuation`] returned there. `None` if the codec has no such positions.
pub fn scanner(codec: Codec, start: &AccessPoint) -> Option<Box<dyn Scanner>> {
    Some(match codec {
        Codec::Gzip => Box::new(BgzipScanner::new(start)),
        Codec::Zstd => Box::new(ZstdScanner::new(start)),
        Codec::Bzip2 => Box::new(Bzip2Scanner::new(start)?),
        Codec::Xz => Box::new(XzScanner::new(start)?),
        Codec::Zlib => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use liblzma::stream::{Action, Check, Status, Stream};
    use proptest::prelude::*;

    use super::*;
    use crate::tests::checks::text;
    use crate::{Event, ScanEvent, ScannedStart, StreamDecoder};

    /// Decodes a file. Returns its content, and the continuation at each boundary that has one.
    fn decode(mut decoder: Box<dyn StreamDecoder>, file: &[u8]) -> (Vec<u8>, Vec<AccessPoint>) {
        let (mut content, mut filled, mut consumed) = (vec![0; 16 << 20], 0, 0);
        let mut points = Vec::new();
        loop {
            let step = decoder.decode(&file[consumed..], true, &mut content, filled).unwrap();
            (consumed, filled) = (consumed + step.consumed, filled + step.produced);
            match step.event {
                Event::End => break,
                Event::Boundary(boundary) => points.extend(decoder.continuation(&boundary).map(|state| {
                    AccessPoint { bit_offset: boundary.bit_offset, content_offset: filled as u64, state }
                })),
                event => panic!("{event:?}"),
            }
        }
        content.truncate(filled);
        (content, points)
    }

    /// Scans a file in pieces. Returns the positions, and the sizes of the content before each.
    fn scan(codec: Codec, start: &AccessPoint, file: &[u8], piece: usize) -> Vec<ScannedStart> {
        let mut scanner = scanner(codec, start).expect("the codec has a scanner");
        let (mut at, mut end) = ((start.bit_offset / 8) as usize, 0);
        let mut found = Vec::new();
        loop {
            let scanned = scanner.scan(&file[at..end.max(at)]);
            at += scanned.consumed;
            match scanned.event {
                ScanEvent::Start(start) => found.push(start),
                ScanEvent::NeedsInput if end < file.len() => end = (end.max(at) + piece).min(file.len()),
                ScanEvent::NeedsInput | ScanEvent::Stop => return found,
            }
        }
    }

    fn check(codec: Codec, file: &[u8], content: &[u8], count: usize) {
        let (decoded, points) = decode(crate::start(codec).unwrap(), file);
        assert!(decoded == content, "{codec:?}: other content");
        assert!(points.len() >= count, "{codec:?}: {} boundaries", points.len());
        for piece in [1, 7, 1_000, file.len()] {
            let found = scan(codec, &points[0], file, piece);
            let expected: Vec<_> = points[1..].iter().map(|point| (point.bit_offset, &point.state)).collect();
            let starts: Vec<_> =
                found.iter().map(|start| (start.point.bit_offset, &start.point.state)).collect();
            assert_eq!(starts, expected, "{codec:?} in pieces of {piece} bytes");
            for ((start, point), previous) in found.iter().zip(&points[1..]).zip(&points) {
                let bytes = point.content_offset - previous.content_offset;
                assert!(start.content_bytes.is_none_or(|stated| stated == bytes), "{start:?}: {bytes}");
            }
        }
        // A decoder that starts at a position verifies everything after it.
        for point in &points {
            let mut at = point.clone();
            at.content_offset = 0;
            let decoder = crate::resume(codec, &at).unwrap();
            let (rest, _) = decode(decoder, &file[(point.bit_offset / 8) as usize..]);
            assert!(rest == content[point.content_offset as usize..], "{codec:?}: other content");
        }
    }

    fn xz(content: &[u8], block: usize) -> Vec<u8> {
        let mut encoder = Stream::new_easy_encoder(1, Check::Crc64).unwrap();
        let mut file = Vec::new();
        for start in (0..content.len()).step_by(block) {
            let end = (start + block).min(content.len());
            let action = if end == content.len() { Action::Finish } else { Action::FullFlush };
            loop {
                file.reserve(1 << 16);
                let input = &content[encoder.total_in() as usize..end];
                if encoder.process_vec(input, &mut file, action).unwrap() == Status::StreamEnd {
                    break;
                }
            }
        }
        file
    }

    fn bzip2(content: &[u8]) -> Vec<u8> {
        let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(1));
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    fn zstd(content: &[u8], is_sized: bool) -> Vec<u8> {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.include_checksum(content.len().is_multiple_of(2)).unwrap();
        if is_sized {
            encoder.set_pledged_src_size(Some(content.len() as u64)).unwrap();
        }
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap()
    }

    /// A member with its size in the header, as bgzip writes it.
    fn bgzip(content: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::new(1));
        encoder.write_all(content).unwrap();
        let data = encoder.finish().unwrap();
        let size = (18 + data.len() + 8 - 1) as u16;
        let header = [31, 139, 8, 4, 0, 0, 0, 0, 0, 255, 6, 0, b'B', b'C', 2, 0];
        let trailer = [crc32fast::hash(content).to_le_bytes(), (content.len() as u32).to_le_bytes()].concat();
        [&header[..], &size.to_le_bytes(), &data, &trailer].concat()
    }

    #[test]
    fn scanners_find_what_decoders_report() {
        let content = text(900_000);
        let parts = |bytes: usize| content.chunks(bytes);
        check(Codec::Xz, &xz(&content, 100_000), &content, 8);
        // Several streams, and padding between two of them.
        let streams: Vec<u8> =
            parts(250_000).flat_map(|part| [xz(part, 60_000), vec![0; 8]].concat()).collect();
        check(Codec::Xz, &streams, &content, 12);
        check(Codec::Bzip2, &bzip2(&content), &content, 7);
        let streams: Vec<u8> = parts(250_000).flat_map(bzip2).collect();
        check(Codec::Bzip2, &streams, &content, 9);
        let skippable = [&0x184d_2a53_u32.to_le_bytes()[..], &5_u32.to_le_bytes(), b"skips"].concat();
        let frames: Vec<u8> = parts(70_001)
            .enumerate()
            .flat_map(|(number, part)| [zstd(part, number % 3 > 0), skippable.repeat(number % 3)].concat())
            .collect();
        check(Codec::Zstd, &frames, &content, 12);
        let members: Vec<u8> = parts(60_000).chain([&b""[..]]).flat_map(bgzip).collect();
        let (_, points) = decode(crate::start(Codec::Gzip).unwrap(), &members);
        assert_eq!(points.len(), content.len().div_ceil(60_000) + 1);
        // The decoder also reports the end of the file, where no member begins.
        let found = scan(Codec::Gzip, &points[0], &members, 500);
        assert_eq!(found.len(), points.len() - 2);
        assert!(
            found.iter().zip(&points[1..]).all(|(start, point)| start.point.bit_offset == point.bit_offset)
        );
    }

    #[test]
    fn members_without_their_size_are_not_scanned() {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
        encoder.write_all(b"content").unwrap();
        let file = encoder.finish().unwrap().repeat(3);
        let (_, points) = decode(crate::start(Codec::Gzip).unwrap(), &file);
        assert_eq!(scan(Codec::Gzip, &points[0], &file, 100), []);
    }

    proptest! {
        #[test]
        fn damaged_data_does_not_stop_a_scanner_from_ending(
            codec in prop::sample::select(vec![Codec::Gzip, Codec::Zstd, Codec::Bzip2, Codec::Xz]),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
            piece in 1usize..5_000,
        ) {
            let content = text(300_000);
            let mut file: Vec<u8> = match codec {
                Codec::Gzip => content.chunks(20_000).flat_map(bgzip).collect(),
                Codec::Zstd => content.chunks(20_000).flat_map(|part| zstd(part, true)).collect(),
                Codec::Bzip2 => bzip2(&content),
                _ => xz(&content, 50_000),
            };
            let (_, points) = decode(crate::start(codec).unwrap(), &file);
            for (at, byte) in changes {
                let at = at.index(file.len());
                file[at] ^= byte;
            }
            let found = scan(codec, &points[0], &file, piece);
            prop_assert!(found.is_sorted_by(|a, b| a.point.bit_offset < b.point.bit_offset));
            prop_assert!(found.iter().all(|start| start.point.bit_offset / 8 < file.len() as u64));
        }
    }
}
