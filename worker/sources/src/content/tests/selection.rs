//! Tests of how the codec of a shard is determined: by its first bytes, by `source.compression`, and by its name if it is truncated.

use std::collections::BTreeSet;
use std::io::Write;

use feedline_data::compression::{Codec, SourceCompression};
use feedline_data::pipeline::{Format, Source};
use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::codecs::{bzip2_file, xz_blocks, zstd_frames};
use super::{archive, csv, gzip, json_lines, records};
use crate::testing::{Fixture, fixture, fixture_of, lines};

fn zlib(content: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn declared(bytes: &[u8], format: Format, compression: SourceCompression) -> Fixture {
    fixture_of("shard", bytes, Source::new(format, "").compression(compression))
}

async fn codec(fixture: &Fixture) -> Option<Codec> {
    fixture.index().await.unwrap().index.compression.map(|compression| compression.codec)
}

#[tokio::test]
async fn records_in_zlib_streams_are_recognised_by_content() {
    let content = records(2_500);
    let plain = fixture(&content, Format::TfRecord, &[]).read_all().await;
    let shard = fixture(&zlib(&content), Format::TfRecord, &[]);
    assert_eq!(codec(&shard).await, Some(Codec::Zlib));
    let all = shard.read_all().await;
    assert!(all.rows() == plain.rows() && all.index.defects.is_empty());
    let compression = all.index.compression.unwrap();
    assert!(compression.points.len() > 1 && compression.content_bytes == content.len() as u64);
}

/// Two bytes of text may look like a zlib stream, so other formats must declare it.
#[tokio::test]
async fn a_declared_codec_is_used_whatever_the_shard_begins_with() {
    for (format, content) in [
        (Format::Jsonl, json_lines(300)),
        (Format::Text, json_lines(300)),
        (Format::Csv, csv(300)),
        (Format::WebDataset, archive(20)),
    ] {
        let plain = fixture(&content, format, &[]).read_all().await;
        for (compression, file) in [
            (SourceCompression::Gzip, gzip(&content)),
            (SourceCompression::Zlib, zlib(&content)),
            (SourceCompression::Zstd, zstd_frames(&content, 5_000)),
            (SourceCompression::Bzip2, bzip2_file(&content, 1)),
            (SourceCompression::Xz, xz_blocks(&content, 5_000)),
        ] {
            let shard = declared(&file, format, compression);
            assert_eq!(codec(&shard).await, compression.codec());
            assert!(shard.read_all().await.rows() == plain.rows(), "{format:?} {compression:?}");
        }
    }
    for text in [&b"BZh91AY&SY is no bzip2\n"[..], b"(\xb5/\xfd\n"] {
        assert!(codec(&fixture(text, Format::Text, &[])).await.is_some());
        let shard = declared(text, Format::Text, SourceCompression::Uncompressed);
        assert_eq!(codec(&shard).await, None);
        let read = shard.read_all().await;
        assert_eq!((read.rows().len(), read.failures().len()), (1, usize::from(!text.is_ascii())));
    }
}

#[tokio::test]
async fn a_plain_shard_is_read_whatever_its_name_says() {
    let content = json_lines(300);
    let plain = fixture(&content, Format::Jsonl, &[]).read_all().await;
    for name in ["a.jsonl.gz", "a.jsonl.zst", "a.jsonl.bz2", "a.jsonl.xz"] {
        let shard = fixture_of(name, &content, Source::new(Format::Jsonl, ""));
        assert_eq!(codec(&shard).await, None, "{name}");
        assert!(shard.read_all().await.rows() == plain.rows(), "{name}");
        let other = fixture_of(name, &gzip(&content), Source::new(Format::Jsonl, ""));
        assert_eq!(codec(&other).await, Some(Codec::Gzip), "{name}");
        assert!(other.read_all().await.rows() == plain.rows(), "{name}");
    }
}

#[tokio::test]
async fn a_shard_that_contradicts_the_declared_codec_is_an_error_that_names_the_codec() {
    let content = json_lines(10);
    for (compression, expected) in [
        (SourceCompression::Gzip, "gzip"),
        (SourceCompression::Zlib, "zlib"),
        (SourceCompression::Zstd, "zstd"),
        (SourceCompression::Bzip2, "bzip2"),
        (SourceCompression::Xz, "xz"),
    ] {
        let shard = declared(&content, Format::Text, compression).index().await.unwrap();
        assert!(shard.index.blocks.is_empty(), "{compression:?} delivers rows");
        let [defect] = &shard.index.defects[..] else { panic!("{:?}", shard.index.defects) };
        assert!(defect.reason.contains(expected), "{compression:?}: {}", defect.reason);
    }
}

#[tokio::test]
async fn files_of_other_compressed_formats_are_rejected() {
    let starts: [(&[u8], &str); 6] = [
        (b"PK\x03\x04\x14\x00", "a ZIP archive"),
        (b"\x04\x22\x4d\x18\x64", "an LZ4 file"),
        (b"\xff\x06\x00\x00sNaPpY", "a file of the Snappy framing format"),
        (b"\x1f\x9d\x90", "a file of `compress`"),
        (b"\x5d\x00\x00\x80\x00", "an LZMA file"),
        (b"7z\xbc\xaf\x27\x1c\x00", "a 7z archive"),
    ];
    for (start, name) in starts {
        let file = [start, b"\nsome text\n"].concat();
        for format in [Format::Text, Format::Csv, Format::Jsonl, Format::WebDataset, Format::TfRecord] {
            let index = fixture_of("shard", &file, Source::new(format, "")).index().await;
            let reason = index.expect_err("the format is not supported").to_string();
            assert!(reason.contains(&format!("it is {name}: compress")), "{format:?}: {reason}");
        }
        let plain =
            Source { compression: Some(SourceCompression::Uncompressed), ..Source::new(Format::Text, "") };
        assert_eq!(fixture_of("shard", &file, plain).index().await.unwrap().index.rows(), 2);
    }
}

/// No beginning of a compressed file is read as a row. Without a name, some beginnings are valid text of one character.
#[tokio::test]
async fn a_shard_that_ends_at_any_of_its_first_bytes_is_truncated() {
    let content = json_lines(10);
    for (name, file) in [
        ("a.gz", gzip(&content)),
        ("a.zst", zstd_frames(&content, 1_000)),
        ("a.bz2", bzip2_file(&content, 9)),
        ("a.xz", xz_blocks(&content, 1_000)),
    ] {
        for format in [Format::Text, Format::Csv, Format::Jsonl, Format::WebDataset] {
            for end in 0..40 {
                let index = fixture_of(name, &file[..end], Source::new(format, "")).index().await;
                let reason = match &index {
                    Err(error) => error.to_string(),
                    Ok(shard) => {
                        assert!(shard.index.blocks.is_empty(), "{format:?} {name} {end}: rows");
                        shard.index.defects.first().map(|defect| defect.reason.clone()).unwrap_or_default()
                    }
                };
                assert!(reason.contains("truncated"), "{format:?} {name} {end}: {reason}");
            }
        }
    }
}

/// The decoders are tested with truncations at every byte, and each format with each codec here with 200 truncations.
#[tokio::test]
async fn a_shard_that_is_truncated_at_any_place_has_the_rows_before_it_and_one_defect() {
    for (format, content) in [
        (Format::Jsonl, json_lines(80)),
        (Format::Text, json_lines(80)),
        (Format::Csv, csv(80)),
        (Format::TfRecord, records(15)),
        (Format::WebDataset, archive(12)),
    ] {
        let files = [
            (SourceCompression::Gzip, gzip(&content)),
            (SourceCompression::Zlib, zlib(&content)),
            (SourceCompression::Zstd, zstd_frames(&content, 5_000)),
            (SourceCompression::Bzip2, content.chunks(5_000).flat_map(|part| bzip2_file(part, 1)).collect()),
            (SourceCompression::Xz, xz_blocks(&content, 5_000)),
        ];
        let mut with_rows = BTreeSet::new();
        for ((compression, file), place) in
            files.iter().flat_map(|file| (0..200).map(move |place| (file, place)))
        {
            let end = (file.len() - 1) * (place + 1) / 200;
            let truncated = declared(&file[..end], format, *compression);
            let context = format!("{format:?} {compression:?} {end} of {}", file.len());
            let shard = match truncated.index().await {
                Ok(shard) => shard,
                // Without its header line, nothing of a CSV file can be read.
                Err(error) if format == Format::Csv && error.to_string().contains("at byte 0: ") => {
                    assert!(error.to_string().contains("truncated"), "{context}: {error}");
                    continue;
                }
                Err(error) => panic!("{context}: {error}"),
            };
            let [defect] = &shard.index.defects[..] else { panic!("{context}: {:?}", shard.index.defects) };
            assert!(defect.reason.contains("truncated"), "{context}: {}", defect.reason);
            assert!(defect.offset <= content.len() as u64, "{context}: {}", defect.offset);
            let mut rows = Vec::new();
            for block in 0..shard.index.blocks.len() {
                let read = truncated.read(&shard, block, None).await.unwrap();
                assert!(read.failures.is_empty(), "{context}: {:?}", read.failures);
                rows.extend(lines(&read.batch));
            }
            let before = &content[..defect.offset as usize];
            if rows.is_empty() {
                assert!(before.len() < content.len() / 10, "{context}: no rows before {}", before.len());
                continue;
            }
            with_rows.insert(format!("{compression:?}"));
            let complete = fixture(before, format, &[]).read_all().await.rows();
            // Another member of the last sample may follow.
            let unfinished = usize::from(format == Format::WebDataset);
            assert!(complete.starts_with(&rows), "{context}");
            assert!(
                rows.len() + unfinished >= complete.len(),
                "{context}: {} of {}",
                rows.len(),
                complete.len()
            );
        }
        assert_eq!(with_rows.len(), files.len(), "{format:?}: {with_rows:?}");
    }
}
