//! Tests of shards that are compressed with zstd, bzip2 and xz.

use std::io::Write;
use std::sync::Arc;

use feedline_data::compression::Codec;
use feedline_data::pipeline::{Format, Source};
use liblzma::stream::{Action, Check, Status, Stream};
use metrics::set_default_local_recorder;
use metrics_exporter_prometheus::PrometheusBuilder;

use super::object;
use crate::content::{Content, IndexingMemory};
use crate::testing::{All, Feature, example, fixture, path, tar, tfrecord, write_settled};
use crate::{Dataset, Stores};

/// Returns a pseudorandom number.
fn mixed(seed: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}

fn words(seed: u64, count: u64) -> String {
    (0..count).map(|at| format!("{:x}", mixed(seed * 31 + at) % 50_000)).collect::<Vec<_>>().join(" ")
}

fn json_lines(rows: u64) -> Vec<u8> {
    let line = |row| format!("{{\"id\": {row}, \"text\": \"{}\"}}\n", words(row, 20 + row % 90));
    (0..rows).map(line).collect::<String>().into_bytes()
}

pub(super) fn zstd_frames(content: &[u8], frame: usize) -> Vec<u8> {
    let mut compressor = zstd::bulk::Compressor::new(1).unwrap();
    compressor.include_checksum(true).unwrap();
    content.chunks(frame).flat_map(|part| compressor.compress(part).unwrap()).collect()
}

pub(super) fn bzip2_file(content: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::new(level));
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// An xz file with a block for each `block` bytes.
pub(super) fn xz_blocks(content: &[u8], block: usize) -> Vec<u8> {
    let mut encoder = Stream::new_easy_encoder(0, Check::Crc32).unwrap();
    let mut out = Vec::new();
    for start in (0..content.len()).step_by(block) {
        let end = (start + block).min(content.len());
        let action = if end == content.len() { Action::Finish } else { Action::FullFlush };
        loop {
            out.reserve(1 << 16);
            let input = &content[encoder.total_in() as usize..end];
            if encoder.process_vec(input, &mut out, action).unwrap() == Status::StreamEnd {
                break;
            }
        }
    }
    out
}

async fn read(bytes: &[u8], format: Format) -> All {
    fixture(bytes, format, &[]).read_all().await
}

/// Each codec with many access points.
fn with_points(content: &[u8]) -> [(Codec, Vec<u8>); 4] {
    [
        (Codec::Zstd, zstd_frames(content, 300_000)),
        (Codec::Bzip2, bzip2_file(content, 9)),
        (Codec::Bzip2, bzip2_file(content, 1)),
        (Codec::Xz, xz_blocks(content, 400_000)),
    ]
}

#[tokio::test]
async fn shards_of_every_format_and_codec_have_the_rows_of_the_plain_shard() {
    let rows = |count: u64, length: u64| (0..count).map(move |row| (row, words(row, length + row % length)));
    let csv: String = rows(9_000, 60).map(|(row, text)| format!("{row},\"{text}\n\",x\n")).collect();
    let records: Vec<Vec<u8>> =
        rows(1_500, 300).map(|(_, text)| example(&[("text", Feature::Bytes(&[text.as_bytes()]))])).collect();
    let bodies: Vec<(String, String)> =
        rows(200, 2_000).map(|(row, text)| (format!("{row:05}.txt"), text)).collect();
    let members: Vec<(&str, &[u8])> =
        bodies.iter().map(|(name, body)| (name.as_str(), body.as_bytes())).collect();
    let shards = [
        (Format::Jsonl, json_lines(8_000)),
        (Format::Text, json_lines(8_000)),
        (Format::Csv, format!("a,b,c\n{csv}").into_bytes()),
        (Format::TfRecord, tfrecord(&records)),
        (Format::WebDataset, tar(&members)),
    ];
    for (format, content) in shards {
        let plain = read(&content, format).await;
        for (codec, file) in with_points(&content) {
            let shard = read(&file, format).await;
            assert!(shard.rows() == plain.rows(), "{format:?} {codec:?} differs");
            assert_eq!((shard.failures(), &shard.index.defects), (plain.failures(), &plain.index.defects));
            let compression = shard.index.compression.as_ref().unwrap();
            assert_eq!(compression.codec, codec);
            assert_eq!(compression.content_bytes, content.len() as u64);
            assert_eq!(compression.readable_bytes, file.len() as u64);
            assert!(!compression.points.is_empty(), "{format:?} {codec:?} {} bytes", content.len());
        }
    }
}

#[tokio::test]
async fn a_file_without_access_points_is_one_run() {
    let content = json_lines(30_000);
    let plain = read(&content, Format::Jsonl).await.rows();
    let length = content.len();
    for file in [zstd_frames(&content, length), xz_blocks(&content, length)] {
        let shard = read(&file, Format::Jsonl).await;
        assert!(shard.rows() == plain);
        assert!(shard.index.compression.unwrap().points.is_empty());
        assert!(shard.index.blocks.len() > 3);
        // The blocks of a run continue the decoder of the previous block.
        let read: u64 = shard.blocks.iter().map(|block| block.store_bytes).sum();
        assert!(read < file.len() as u64 * 11 / 10, "{read} of {} bytes", file.len());
        let requests: u32 = shard.blocks.iter().map(|block| block.store_requests).sum();
        assert!(requests as usize <= shard.index.blocks.len() + 1, "{requests} requests");
    }
}

#[tokio::test]
async fn a_run_may_contain_a_row_that_is_larger_than_the_content_that_others_may_need() {
    let mut content = json_lines(100_000);
    let small = content.clone();
    content.extend(std::iter::repeat_n(b'x', 70 << 20));
    content.push(b'\n');
    content.extend(small);
    let rows = read(&zstd_frames(&content, content.len()), Format::Text).await.rows();
    assert!(rows == read(&content, Format::Text).await.rows());
}

#[tokio::test]
async fn a_resume_within_a_run_decompresses_it_once() {
    let content = json_lines(30_000);
    let plain = read(&content, Format::Text).await.rows();
    for file in [zstd_frames(&content, content.len()), xz_blocks(&content, content.len())] {
        let fixture = fixture(&file, Format::Text, &[]);
        let shard = fixture.index().await.unwrap();
        let half = shard.index.blocks.len() / 2;
        assert!(half > 2);
        let (mut rows, mut store_bytes) = (Vec::new(), 0);
        for block in half..shard.index.blocks.len() {
            let read = fixture.read(&shard, block, None).await.unwrap();
            rows.extend(crate::testing::lines(&read.batch));
            store_bytes += read.store_bytes;
        }
        assert!(plain.ends_with(&rows) && rows.len() > plain.len() / 3);
        assert!(store_bytes <= file.len() as u64, "{store_bytes} of {} bytes", file.len());
    }
}

#[tokio::test]
async fn the_end_of_a_row_does_not_decode_another_bzip2_block() {
    let content = json_lines(20_000);
    let file = bzip2_file(&content, 9);
    let shard = read(&file, Format::Jsonl).await;
    let compression = shard.index.compression.as_ref().unwrap();
    let stored = |point| feedline_compression::stored_content(Codec::Bzip2, point).len();
    assert!(compression.points.iter().any(|point| stored(point) > 0));
    for (point, block) in compression.points.iter().zip(&shard.index.blocks[1..]) {
        assert_eq!(point.content_offset + stored(point) as u64, block.offset);
    }
    let read: u64 = shard.blocks.iter().map(|block| block.store_bytes).sum();
    assert!(read < file.len() as u64 * 11 / 10, "{read} of {} bytes", file.len());
}

#[tokio::test]
async fn a_bzip2_block_counts_as_a_whole_and_other_codecs_count_what_was_read() {
    let content = json_lines(12_000);
    let cases = [
        (bzip2_file(&content, 9), 900_000),
        (bzip2_file(&content, 1), 100_000),
        (xz_blocks(&content, 400_000), 1_000),
    ];
    for (file, block_bytes) in cases {
        let shard = read(&file, Format::Text).await;
        let compression = shard.index.compression.as_ref().unwrap();
        let first_point = compression.points[0].content_offset;
        assert!(first_point > 900_000, "{first_point}");
        let object = object(file).await;
        let source = Content::indexed(&object, Some(compression));
        let recorder = PrometheusBuilder::new().build_recorder();
        let (handle, _guard) = (recorder.handle(), set_default_local_recorder(&recorder));
        let counted = || -> u64 {
            let name = "feedline_worker_decompressed_bytes_total{purpose=\"read\"} ";
            let text = handle.render();
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
        };
        source.read(0..1_000).await.unwrap();
        let part = counted();
        assert_eq!(part, block_bytes);
        // The block ends at the end of the range.
        source.read(0..first_point).await.unwrap();
        assert_eq!(counted() - part, first_point);
        // At the end of the content, a block is smaller.
        let last_point = compression.points.last().unwrap().content_offset;
        let before = counted();
        source.read(last_point..content.len() as u64 - 1).await.unwrap();
        let decoded = counted() - before;
        assert!(decoded <= content.len() as u64 - last_point, "{decoded} bytes");
    }
}

#[tokio::test]
async fn damage_loses_only_the_rows_after_it() {
    let content = json_lines(8_000);
    let plain = read(&content, Format::Jsonl).await.rows();
    for (codec, file) in with_points(&content) {
        let half = file.len() / 2;
        let mut damaged = file.clone();
        damaged[half] ^= 0x10;
        for (bytes, reason) in [(&file[..half], "truncated"), (damaged.as_slice(), "damaged")] {
            let shard = read(bytes, Format::Jsonl).await;
            let [defect] = shard.index.defects.as_slice() else { panic!("{codec:?} {reason}") };
            assert!(defect.reason.contains(reason), "{}", defect.reason);
            assert!(plain.starts_with(&shard.rows()[..1_000]), "{codec:?} {reason}");
            assert!(shard.index.rows() < 8_000);
        }
    }
}

/// The dictionary of this level has 64 MiB.
fn xz_with_a_large_dictionary(content: &[u8]) -> Vec<u8> {
    let mut encoder = Stream::new_easy_encoder(9, Check::Crc32).unwrap();
    let mut out = Vec::with_capacity(content.len() + 1_000);
    assert_eq!(encoder.process_vec(content, &mut out, Action::Finish).unwrap(), Status::StreamEnd);
    out
}

#[tokio::test]
async fn a_large_decoder_waits_for_memory_and_is_refused_if_it_exceeds_that_of_the_worker() {
    let directory = tempfile::tempdir().unwrap();
    write_settled(&directory.path().join("a"), &xz_with_a_large_dictionary(&json_lines(500)));
    let stores = Stores::new(Vec::new());
    let source = Source::new(Format::Jsonl, path(directory.path(), "*"));
    let dataset = Dataset::new(source, Arc::clone(&stores)).unwrap();
    let shards = dataset.list().await.unwrap();
    let mut other_shard = IndexingMemory::new(stores.decoders());
    other_shard.hold_row(u64::from(u32::MAX)).await;
    let mut index = std::pin::pin!(dataset.index_shard(&shards[0]));
    let has_decoded_the_header = async {
        while stores.decoders().used_bytes() < 64 << 20 {
            tokio::task::yield_now().await;
        }
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut index => panic!("the shard does not wait"),
        () = has_decoded_the_header => {}
    }
    drop(other_shard);
    assert_eq!(index.await.unwrap().index.rows(), 500);
    stores.decoders().set_decoder_limit(32 << 20);
    let error = dataset.index_shard(&shards[0]).await.unwrap_err().to_string();
    assert!(
        error.contains("MiB of memory, more than the worker has: raise the workers' --memory"),
        "{error}"
    );
}
