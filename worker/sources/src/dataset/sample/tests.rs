//! Tests of samples: the beginning of a large shard is enough, and its rows are those of the whole shard.

use arrow::array::ArrayRef;
use feedline_compression::DETECTION_BYTES;
use feedline_data::compression::Codec;
use feedline_data::pipeline::{Format, Partitions, Source};
use feedline_data::schema::Schema;

use super::*;
use crate::Stores;
use crate::testing::{Feature, copied, dataset, example, fixture, lines, path, tar, tfrecord};

/// More bytes than a sample indexes at first.
const LARGE: usize = 3 << 20;

async fn check(bytes: &[u8], format: Format) {
    let fixture = fixture(bytes, format, &[]);
    let shard = fixture.shard().await;
    let sampled = fixture.dataset.sample_shard(&shard).await.unwrap();
    assert!(!sampled.is_whole(&shard) && sampled.index.defects.is_empty());
    assert!(sampled.indexed_bytes <= 1 << 20, "{}", sampled.indexed_bytes);
    assert!(sampled.store_bytes <= 5 << 19, "{}", sampled.store_bytes);
    let whole = fixture.index().await.unwrap().index;
    assert_eq!(sampled.index.schema, whole.schema);
    let (estimated, rows) = (sampled.estimated_rows(&shard), whole.rows());
    assert!(estimated.abs_diff(rows) * 20 <= rows, "{estimated} of {rows}");
    let schema = whole.schema.unwrap();
    let first = fixture.dataset.first_rows(&shard, &sampled.index, &schema, 5).await.unwrap();
    let all = fixture.read_all().await.rows();
    assert_eq!(lines(&first.batch), all[..5]);
    assert!(first.failures.is_empty());
}

#[tokio::test]
async fn the_beginning_of_a_large_shard_is_enough() {
    let rows = LARGE / 512;
    let text: String =
        (0..rows).map(|row| format!("{{\"a\": {row}, \"b\": \"{}\"}}\n", "x".repeat(480))).collect();
    check(text.as_bytes(), Format::Jsonl).await;
    check(text.as_bytes(), Format::Text).await;
    let table: String = (0..rows).map(|row| format!("{row},{}\n", "x".repeat(500))).collect();
    check(format!("a,b\n{table}").as_bytes(), Format::Csv).await;
    let records: Vec<Vec<u8>> =
        (0..rows).map(|row| example(&[("a", Feature::Bytes(&[format!("{row:0500}").as_bytes()]))])).collect();
    check(&tfrecord(&records), Format::TfRecord).await;
    let names: Vec<String> = (0..LARGE / 1024).map(|row| format!("{row:06}.txt")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), name.as_bytes())).collect();
    check(&tar(&members), Format::WebDataset).await;
}

/// Rows that compress to a third of their size.
fn numbers(rows: u64) -> String {
    let word = |row: u64| {
        row.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    };
    let words =
        |row: u64| (0..40).map(|at| format!("{:08x}", word(row * 41 + at) % 50_000)).collect::<String>();
    (0..rows).map(|row| format!("{{\"a\": {row}, \"b\": \"{}\"}}\n", words(row))).collect()
}

#[tokio::test]
async fn samples_of_compressed_shards_estimate_rows_and_find_long_runs() {
    let content = numbers(120_000);
    let one_frame = zstd::encode_all(content.as_bytes(), 1).unwrap();
    let frames: Vec<u8> =
        content.as_bytes().chunks(1 << 20).flat_map(|part| zstd::encode_all(part, 1).unwrap()).collect();
    for (bytes, run) in [(one_frame, Some(Codec::Zstd)), (frames, None)] {
        assert!(bytes.len() > 8 << 20, "the sample is a part of the shard");
        let fixture = fixture(&bytes, Format::Jsonl, &[]);
        let shard = fixture.shard().await;
        let sampled = fixture.dataset.sample_shard(&shard).await.unwrap();
        assert!(!sampled.is_whole(&shard) && sampled.index.defects.is_empty());
        let estimated = sampled.estimated_rows(&shard);
        assert!(estimated.abs_diff(120_000) * 20 <= 120_000, "{estimated}");
        assert_eq!(sampled.long_run(), run);
        let schema = sampled.index.schema.clone().unwrap();
        let first = fixture.dataset.first_rows(&shard, &sampled.index, &schema, 5).await.unwrap();
        assert_eq!((first.batch.num_rows(), first.failures.len()), (5, 0));
    }
}

/// Records of random bytes, which compression does not make smaller.
fn noise(records: u64) -> Vec<u8> {
    let mut state = 1_u64;
    let mut word = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb).to_le_bytes()
    };
    let mut record = |_: u64| {
        let value: Vec<u8> = (0..1250).flat_map(|_| word()).collect();
        example(&[("a", Feature::Bytes(&[value.as_slice()]))])
    };
    tfrecord(&(0..records).map(&mut record).collect::<Vec<_>>())
}

#[tokio::test]
async fn long_runs_of_incompressible_data_are_found() {
    let content = noise(2_000);
    let one_frame = zstd::encode_all(content.as_slice(), 1).unwrap();
    let frames: Vec<u8> =
        content.chunks(1 << 20).flat_map(|part| zstd::encode_all(part, 1).unwrap()).collect();
    for (bytes, run, indexed_bytes) in [(one_frame, Some(Codec::Zstd), 12 << 20), (frames, None, 6 << 20)] {
        let fixture = fixture(&bytes, Format::TfRecord, &[]);
        let sampled = fixture.dataset.sample_shard(&fixture.shard().await).await.unwrap();
        assert_eq!((sampled.long_run(), sampled.indexed_bytes), (run, indexed_bytes));
    }
}

#[tokio::test]
async fn a_beginning_grows_until_it_contains_a_row() {
    let text = format!("{{\"a\": \"{}\"}}\n{{\"a\": \"b\"}}\n", "x".repeat(LARGE));
    let fixture = fixture(text.as_bytes(), Format::Jsonl, &[]);
    let shard = fixture.shard().await;
    let sampled = fixture.dataset.sample_shard(&shard).await.unwrap();
    assert_eq!((sampled.index.rows(), sampled.is_whole(&shard)), (2, true));
}

#[tokio::test]
async fn a_small_shard_is_indexed_completely() {
    let fixture = fixture(b"{\"a\": 1}\n{\"a\": 2}\n{\"a\"", Format::Jsonl, &[]);
    let shard = fixture.shard().await;
    let sampled = fixture.dataset.sample_shard(&shard).await.unwrap();
    assert!(sampled.is_whole(&shard));
    assert_eq!(sampled.estimated_rows(&shard), 3);
    let part = fixture.dataset.part_of(&shard).unwrap();
    let object = Arc::new(part.open(&shard).unwrap());
    shard_values::index(part.reader.as_ref(), &object, &part.selection, true).await.unwrap();
    let (bytes, requests, _) = object.traffic();
    let detection_bytes = DETECTION_BYTES.min(shard.size_bytes);
    assert_eq!(sampled.store_bytes, bytes + detection_bytes, "the detection of compression is counted");
    assert_eq!(sampled.store_requests, requests + 1);
    let schema: Schema = sampled.index.schema.clone().unwrap();
    let rows = fixture.dataset.first_rows(&shard, &sampled.index, &schema, 8).await.unwrap();
    assert_eq!(rows.batch.num_rows(), 3);
    assert_eq!(rows.failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [2]);
}

#[tokio::test]
async fn the_reader_of_a_shard_determines_the_sample() {
    let directory = tempfile::tempdir().unwrap();
    let lines: String = (0..LARGE / 12).map(|row| format!("{{\"a\": {row}}}\n")).collect();
    std::fs::write(directory.path().join("train.jsonl"), lines).unwrap();
    let dataset = dataset(&[directory.path().to_str().unwrap()], Format::HuggingFace, &[]);
    let shard = dataset.list().await.unwrap().remove(0);
    let sampled = dataset.sample_shard(&shard).await.unwrap();
    assert!(sampled.indexed_bytes <= 1 << 20 && sampled.index.rows() > 1_000, "{}", sampled.indexed_bytes);
}

#[tokio::test]
async fn a_sample_does_not_read_whole_files_to_verify_them() {
    let folder = copied("mds/hashed");
    let file = folder.path().join("shard.00000.mds");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file, bytes).unwrap();
    let dataset = dataset(&[folder.path().to_str().unwrap()], Format::Mds, &[]);
    let shard = dataset.list().await.unwrap().remove(0);
    assert!(dataset.index_shard(&shard).await.unwrap_err().to_string().contains("hash of the file"));
    assert!(dataset.sample_shard(&shard).await.unwrap().index.rows() > 0);
}

#[tokio::test]
async fn a_sample_has_the_columns_of_directories() {
    let directory = tempfile::tempdir().unwrap();
    for image in ["year=1/cat/1.png", "year=1/dog/1.png"] {
        let file = directory.path().join(image);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, image).unwrap();
    }
    let url = path(directory.path(), "year=1");
    let source = Source::imagefolder(url).partitions(Partitions::Hive);
    let dataset = Dataset::new(source, Stores::new(Vec::new())).unwrap();
    assert_eq!(dataset.url_groups().len(), 1);
    let shards = dataset.list_group(0, dataset.url_groups()[0].1).await.unwrap();
    let sampled = dataset.sample_shard(&shards[1]).await.unwrap();
    let schema = sampled.index.schema.clone().unwrap();
    assert_eq!(schema.names().collect::<Vec<_>>(), ["bytes", "path", "label", "class", "year"]);
    let rows = dataset.first_rows(&shards[1], &sampled.index, &schema, 8).await.unwrap();
    assert!(lines(&rows.batch)[0].ends_with("|1|dog|1"), "{:?}", lines(&rows.batch));
}

#[test]
fn offsets_without_a_record_are_not_rows_of_a_sample() {
    let numbers: ArrayRef = Arc::new(arrow::array::Int32Array::from_iter_values(0..6));
    let failure = |row| RowFailure { row, offset: 0, reason: String::new() };
    let read = BlockRows {
        batch: RecordBatch::try_from_iter([("n", numbers)]).unwrap(),
        failures: vec![failure(3), failure(5)],
        absent: vec![0, 2, 5],
        lost: Vec::new(),
        newest_ms: None,
        held_bytes: 0,
        store_bytes: 0,
        store_requests: 0,
        store_wait: std::time::Duration::ZERO,
        blocking_bytes: 0,
    };
    let (batch, failures) = present_rows(read, 5).unwrap();
    assert_eq!(lines(&batch), ["1", "3", "4"]);
    assert_eq!(failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn a_missing_object_has_a_nearest_match() {
    let fixture = fixture(b"a\n", Format::Text, &[]);
    let shard = fixture.shard().await;
    let nearest = |url: String| {
        let dataset = &fixture.dataset;
        async move { dataset.nearest_url(0, &url).await }
    };
    let (folder, name) = shard.url.rsplit_once('/').unwrap();
    assert_eq!(nearest(format!("{folder}/{name}x")).await.as_deref(), Some(shard.url.as_str()));
    assert!(nearest(format!("{folder}/zzz/*")).await.is_none());
}
