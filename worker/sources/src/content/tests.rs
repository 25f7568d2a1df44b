//! Tests of compressed shards: they have the rows of the plain shards, and reading each block once decompresses little more
//! than the content.

mod cancelled;
mod codecs;
mod sections;
mod selection;

use std::cell::Cell;
use std::io::Write;
use std::sync::Arc;

use feedline_data::compression::{Codec, ShardCompression};
use feedline_data::manifest::{Block, Shard, ShardRef};
use feedline_data::pipeline::Format;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::FutureExt;
use object_store::ObjectStoreExt;
use object_store::memory::InMemory;
use object_store::path::Path;

use super::runs::RunPart;
use super::{Content, runs};
use crate::object::Object;
use crate::testing::{All, Feature, example, fixture, tar, tfrecord};

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// Many members, some of them empty.
fn members(content: &[u8]) -> Vec<u8> {
    content.chunks(60_000).flat_map(|part| [gzip(part), gzip(b"")].concat()).collect()
}

fn word(seed: u64) -> String {
    let mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    format!("{:x}{}", mixed >> 40, ["the", "of", "and", "to", "in"][(mixed % 5) as usize])
}

fn words(seed: u64, count: u64) -> String {
    (0..count).map(|number| word(seed * 31 + number)).collect::<Vec<_>>().join(" ")
}

fn json_lines(rows: u64) -> Vec<u8> {
    let line = |row| format!("{{\"id\": {row}, \"text\": \"{}\"}}\n", words(row, 20 + row % 90));
    (0..rows).map(line).collect::<String>().into_bytes()
}

fn csv(rows: u64) -> Vec<u8> {
    let line = |row| format!("{row},\"{}\n{}\",{}\n", words(row, 30), words(row + 1, 9), row as f64 / 4.0);
    format!("a,b,c\n{}", (0..rows).map(line).collect::<String>()).into_bytes()
}

fn records(rows: u64) -> Vec<u8> {
    let record = |row: u64| {
        let text = words(row, 200 + row % 300);
        example(&[("id", Feature::Ints(&[row as i64])), ("text", Feature::Bytes(&[text.as_bytes()]))])
    };
    tfrecord(&(0..rows).map(record).collect::<Vec<_>>())
}

fn archive(rows: u64) -> Vec<u8> {
    let bodies: Vec<(String, String)> =
        (0..rows).map(|row| (format!("{row:05}"), words(row, 500 + row * 7 % 9000))).collect();
    let names: Vec<[String; 2]> =
        bodies.iter().map(|(key, _)| [format!("{key}.txt"), format!("{key}.cls")]).collect();
    let mut entries: Vec<(&str, &[u8])> = Vec::new();
    for (names, (_, body)) in names.iter().zip(&bodies) {
        entries.push((&names[0], body.as_bytes()));
        entries.push((&names[1], b"3"));
    }
    tar(&entries)
}

async fn read(bytes: &[u8], format: Format) -> All {
    fixture(bytes, format, &[]).read_all().await
}

/// Bytes that reading each block once decompresses.
fn decompressed(shard: &All) -> u64 {
    let compression = shard.index.compression.as_ref().unwrap();
    let start =
        |offset| compression.point_before(offset).map_or(0, |point| compression.points[point].content_offset);
    shard.index.blocks.iter().map(|block| block.offset + block.bytes - start(block.offset)).sum()
}

#[tokio::test]
async fn compressed_shards_of_every_format_have_the_rows_of_the_plain_shard() {
    let shards = [
        (Format::Jsonl, json_lines(9000)),
        (Format::Text, json_lines(9000)),
        (Format::Csv, csv(12_000)),
        (Format::TfRecord, records(2500)),
        (Format::WebDataset, archive(450)),
    ];
    for (format, content) in shards {
        let plain = read(&content, format).await;
        for compressed in [gzip(&content), members(&content)] {
            let shard = read(&compressed, format).await;
            assert_eq!(shard.columns(), plain.columns());
            assert!(shard.rows() == plain.rows(), "{format:?} differs");
            assert_eq!((shard.failures(), &shard.index.defects), (plain.failures(), &plain.index.defects));
            assert!(shard.index.blocks.len() > 3, "{format:?} has few blocks");
            let compression = shard.index.compression.as_ref().unwrap();
            assert_eq!(compression.points.len() + 1, shard.index.blocks.len());
            assert_eq!(compression.content_bytes, content.len() as u64);
            assert_eq!(compression.readable_bytes, compressed.len() as u64);
            // A resume decompresses from the point before the first row to the end of its block.
            let from_point = |block: &Block| {
                let point = compression.point_before(block.offset);
                block.offset + block.bytes - point.map_or(0, |point| compression.points[point].content_offset)
            };
            assert!(shard.index.blocks.iter().all(|block| from_point(block) <= 2 << 20));
            let ratio = decompressed(&shard) as f64 / content.len() as f64;
            assert!(ratio < 1.1, "{format:?} decompresses {ratio} of the content");
            let index_bytes: usize = compression.points.iter().map(|point| point.state.len() + 12).sum();
            let part = index_bytes as f64 / content.len() as f64;
            assert!(part < 0.015, "the index of {format:?} has {part} of the content");
        }
    }
}

#[tokio::test]
async fn the_index_of_an_archive_of_images_is_small() {
    let noise = |seed: u64| -> Vec<u8> {
        (0..12_000_u64)
            .flat_map(|at| {
                (seed * 12_000 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).to_le_bytes()
            })
            .collect()
    };
    let images: Vec<(String, Vec<u8>)> =
        (0..80).map(|seed| (format!("{seed:03}.jpg"), noise(seed))).collect();
    let members: Vec<(&str, &[u8])> =
        images.iter().map(|(name, image)| (name.as_str(), image.as_slice())).collect();
    let content = tar(&members);
    let shard = read(&gzip(&content), Format::WebDataset).await;
    let compression = shard.index.compression.as_ref().unwrap();
    assert!(compression.points.len() > 4, "{} points", compression.points.len());
    let index_bytes: usize = compression.points.iter().map(|point| point.state.len() + 12).sum();
    let part = index_bytes as f64 / content.len() as f64;
    assert!(part < 0.005, "the index has {part} of the content");
}

#[tokio::test]
async fn plain_records_whose_length_looks_like_a_magic_are_not_decompressed() {
    // The lengths 1f 8b 00 00 and 1f 8b 08 00 in little endian.
    for length in [35_615, 560_927] {
        let record = |bytes: usize| example(&[("x", Feature::Bytes(&[&vec![7; bytes]]))]);
        let overhead = record(length).len() - length;
        let record = record(length - overhead);
        assert_eq!(record.len(), length);
        let shard = read(&tfrecord(&[record.clone(), record]), Format::TfRecord).await;
        assert_eq!((shard.rows().len(), shard.index.defects.len()), (2, 0));
        assert!(shard.index.compression.is_none());
    }
    for text in ["BZh1 is a word\n", "\u{1f}\n"] {
        let shard = read(text.as_bytes(), Format::Text).await;
        assert_eq!((shard.rows().len(), shard.index.compression.is_none()), (1, true));
    }
}

#[tokio::test]
async fn damage_after_some_rows_loses_only_the_rows_after_it() {
    let content = json_lines(9000);
    let plain = read(&content, Format::Jsonl).await.rows();
    let file = gzip(&content);
    let mut checksum = file.clone();
    *checksum.last_mut().unwrap() ^= 1;
    let truncated = &file[..file.len() / 2];
    let garbage = [&file[..], b"garbage"].concat();
    // The header of the second member ends with its checksum.
    let header = [&file[..], &[0x1f, 0x8b, 8, 2, 0, 0, 0, 0, 0, 255, 0, 0]].concat();
    for (file, reason) in [
        (truncated, "truncated"),
        (checksum.as_slice(), "size"),
        (garbage.as_slice(), "not a gzip member"),
        (header.as_slice(), "the checksum of the header"),
    ] {
        let shard = read(file, Format::Jsonl).await;
        let rows = shard.rows();
        assert!(plain.starts_with(&rows) && rows.len() > 4000, "{} rows", rows.len());
        let [defect] = shard.index.defects.as_slice() else { panic!("{:?}", shard.index.defects) };
        assert!(defect.reason.contains(reason) && defect.reason.contains("at byte"), "{}", defect.reason);
    }
    for format in [Format::TfRecord, Format::WebDataset] {
        let content = if format == Format::TfRecord { records(900) } else { archive(90) };
        let plain = read(&content, format).await.rows();
        let file = gzip(&content);
        let shard = read(&file[..file.len() * 2 / 3], format).await;
        assert!(plain.starts_with(&shard.rows()) && shard.rows().len() > plain.len() / 3);
        assert!(shard.index.defects[0].reason.contains("truncated"), "{:?}", shard.index.defects);
    }
}

#[tokio::test]
async fn small_and_empty_files_are_read() {
    for content in [&b""[..], b"\xef\xbb\xbf{\"a\": 1}", b"\n\n", b"{\"a\": 1}\n{\"a\": 2}\n"] {
        let plain = read(content, Format::Jsonl).await;
        let shard = read(&gzip(content), Format::Jsonl).await;
        assert_eq!(shard.rows(), plain.rows());
        assert_eq!(shard.index.defects, plain.index.defects);
    }
    let shard = fixture(&gzip(b"x")[..5], Format::Text, &[]).index().await.unwrap();
    assert!(shard.index.defects[0].reason.contains("truncated"), "{:?}", shard.index.defects);
    let shard = fixture(b"BZh91AY&SY", Format::Text, &[]).index().await.unwrap();
    assert!(shard.index.defects[0].reason.contains("truncated"), "{:?}", shard.index.defects);
}

#[tokio::test]
async fn rows_of_a_bomb_are_found_without_its_content_in_memory() {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(9));
    encoder.write_all(b"first\n").unwrap();
    let zeros = vec![b'z'; 1 << 20];
    (0..100).for_each(|_| encoder.write_all(&zeros).unwrap());
    encoder.write_all(b"\nlast\n").unwrap();
    let file = encoder.finish().unwrap();
    assert!(file.len() < 200_000);
    let Shard { index, .. } = fixture(&file, Format::Text, &[]).index().await.unwrap();
    assert_eq!((index.rows(), index.defects.len()), (3, 0));
}

/// The sizes of lines.
fn plain_lines(content: &[u8]) -> Vec<u64> {
    content.split_inclusive(|byte| *byte == b'\n').map(|line| line.len() as u64).collect()
}

#[tokio::test]
async fn the_blocks_of_a_run_are_decoded_once_in_order_and_in_any_order_correctly() {
    // Without access points, the whole shard is one run.
    let content = json_lines(9000);
    let fixture = fixture(&gzip(&content), Format::Text, &[]);
    let mut shard = fixture.index().await.unwrap();
    shard.index.compression.as_mut().unwrap().points.clear();
    // Later blocks are shorter than the window of the decoder.
    let last = shard.index.blocks.pop().unwrap();
    let sizes: Vec<u64> = plain_lines(&content[last.offset as usize..]);
    let mut offset = last.offset;
    for rows in sizes.chunks(20) {
        let bytes = rows.iter().sum();
        let rows = rows.len() as u32;
        shard.index.blocks.push(Block { rows, offset, bytes, ..last.clone() });
        offset += bytes;
    }
    shard.index.blocks.iter_mut().for_each(|block| block.group = runs::INNER_GROUP);
    shard.index.blocks.last_mut().unwrap().group = runs::LAST_GROUP;
    let count = shard.index.blocks.len();
    assert!(shard.index.runs().eq(std::iter::once(0..count)));
    // Concurrent reads in any order read the compressed data once.
    let mut reads: Vec<_> = (0..count).rev().map(|at| fixture.read(&shard, at, None)).collect();
    reads.swap(0, count / 2);
    let store_bytes: u64 =
        futures::future::join_all(reads).await.iter().map(|read| read.as_ref().unwrap().store_bytes).sum();
    assert!(store_bytes <= gzip(&content).len() as u64, "{store_bytes}");
    let plain = read(&content, Format::Text).await.rows();
    for order in [
        (0..count).collect::<Vec<_>>(),
        (0..count).rev().collect(),
        vec![3, 1, 2, 2, 4, count - 1, count - 3, count - 2],
    ] {
        for at in order {
            let rows = crate::testing::lines(&fixture.read(&shard, at, None).await.unwrap().batch);
            let first: u32 = shard.index.blocks[..at].iter().map(|block| block.rows).sum();
            assert!(plain[first as usize..].starts_with(&rows), "block {at} differs");
        }
    }
}

/// A file in memory for a worker with one core.
async fn object(file: Vec<u8>) -> Object {
    let (store, path) = (InMemory::new(), Path::from("x"));
    store.put(&path, file.into()).await.unwrap();
    let meta = store.head(&path).await.unwrap();
    let version = crate::version::version_of(&meta);
    let shard = ShardRef { url: "mem://x".to_owned(), size_bytes: meta.size, version, ..ShardRef::default() };
    let object = Object::new(Arc::new(store), path, shard);
    object.decoders().set_cores(1);
    object
}

/// The description of a gzip file without access points.
fn without_points(content: &[u8], file: &[u8]) -> ShardCompression {
    ShardCompression {
        codec: Codec::Gzip,
        content_bytes: content.len() as u64,
        readable_bytes: file.len() as u64,
        decoder_bytes: 1,
        points: Vec::new(),
    }
}

#[tokio::test]
async fn a_read_decodes_to_its_end_before_another_read_decodes() {
    let content = words(1, 100).repeat(5_000).into_bytes();
    let file = gzip(&content);
    assert!(file.len() < 64 << 10, "one request reads the whole file");
    let compression = without_points(&content, &file);
    let range = 2_u64 << 20..3 << 20;
    for part in [Some(RunPart::Inner), None] {
        let object = object(file.clone()).await;
        let source = Content { part, ..Content::indexed(&object, Some(&compression)) };
        let has_ended = Cell::new(false);
        let read = async {
            let bytes = source.read(range.clone()).await.unwrap();
            assert!(bytes == content[range.start as usize..range.end as usize]);
            has_ended.set(true);
        };
        let other = async {
            // The read lets this task run between two steps.
            while object.decoders().decoding_turn().now_or_never().is_some() {
                assert!(!has_ended.get(), "{part:?}: the read does not let other tasks run");
                tokio::task::yield_now().await;
            }
            let _turn = object.decoders().decoding_turn().await;
            assert!(has_ended.get(), "{part:?}: the read has lost its turn");
        };
        tokio::join!(read, other);
    }
}

#[tokio::test]
async fn a_read_of_one_step_ends_its_turn_before_other_tasks_run() {
    let content = json_lines(10);
    let file = gzip(&content);
    let compression = without_points(&content, &file);
    for part in [Some(RunPart::Inner), None] {
        let object = object(file.clone()).await;
        let source = Content { part, ..Content::indexed(&object, Some(&compression)) };
        let has_ended = Cell::new(false);
        let read = async {
            assert!(source.read(0..1_000).await.unwrap() == content[..1_000]);
            has_ended.set(true);
        };
        let other = async {
            while !has_ended.get() {
                assert!(object.decoders().decoding_turn().now_or_never().is_some(), "{part:?}");
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(read, other);
    }
}

/// pyzstd wrote the file: `make_seekable.py` is beside it.
#[tokio::test]
async fn a_file_in_the_seekable_format_of_zstd_has_the_rows_of_its_content() {
    let file = include_bytes!("../../../compression/testdata/seekable.zst");
    let all = read(file, Format::Text).await;
    let expected: Vec<String> = (0..1_000_u64).map(|row| format!("row {row}, {}", row * row % 977)).collect();
    assert_eq!(all.rows(), expected);
}

#[tokio::test]
async fn indexes_that_do_not_match_the_content_are_rejected() {
    let content = json_lines(6000);
    let fixture = fixture(&gzip(&content), Format::Jsonl, &[]);
    let shard = fixture.index().await.unwrap();
    let read = async |change: &dyn Fn(&mut Shard)| {
        let mut shard = shard.clone();
        change(&mut shard);
        fixture.read(&shard, 1, None).await.unwrap_err().to_string()
    };
    let error = read(&|shard| shard.index.blocks[1].bytes += 1 << 30).await;
    assert!(error.contains("beyond the end"), "{error}");
    let point = |shard: &mut Shard| shard.index.compression.as_mut().unwrap().points[0].clone();
    let error = read(&|shard| {
        let changed = feedline_data::compression::AccessPoint { state: vec![9], ..point(shard) };
        shard.index.compression.as_mut().unwrap().points[0] = changed;
    })
    .await;
    assert!(error.contains("version 9"), "{error}");
    let error = read(&|shard| shard.index.compression.as_mut().unwrap().points[0].bit_offset += 3).await;
    assert!(error.contains("damaged") || error.contains("rows, but the index"), "{error}");
}
