//! Tests of shards that exceed size limits.

use std::sync::Arc;

use feedline_data::pipeline::{Format, Source};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};

use super::*;
use crate::object::Object;
use crate::testing::{Feature, example, fixture, path, tar, tar_member, tfrecord, write_settled};
use crate::version::version_of;
use crate::{Dataset, Stores};

async fn refused(bytes: &[u8], format: Format) -> String {
    fixture(bytes, format, &[]).index().await.unwrap_err().to_string()
}

#[tokio::test]
async fn the_depth_of_nested_lists_is_limited() {
    let nested = |depth: usize| format!("{{\"a\":{}1{}}}\n", "[".repeat(depth), "]".repeat(depth));
    let all = fixture(nested(MAX_NESTING).as_bytes(), Format::Jsonl, &[]).read_all().await;
    assert_eq!(all.rows().len(), 1);
    let message = refused(nested(MAX_NESTING + 1).as_bytes(), Format::Jsonl).await;
    assert!(message.contains("the lists of column `a` are nested more than 8 deep"), "{message}");
    // Deeper than the limit, so no columns are found.
    let message = refused(nested(10_000).as_bytes(), Format::Jsonl).await;
    assert!(message.contains("none of the lines is a JSON object"), "{message}");
}

#[tokio::test]
async fn a_row_of_too_deep_nesting_fails_only_its_row() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let text = format!("{{\"a\":1}}\n{{\"a\":{deep}}}\n{{\"a\":2,\"b\":{deep}}}\n");
    let all = fixture(text.as_bytes(), Format::Jsonl, &[]).read_all().await;
    assert_eq!(all.rows(), ["1", "null", "null"]);
    assert!(
        all.failures()
            .iter()
            .all(|failure| failure.reason == "the values of the line are nested more than 128 deep")
    );
    // Brackets in a string do not count.
    let text = format!("{{\"a\":\"{}\\\"[\"}}\n", "[".repeat(1_000));
    assert_eq!(fixture(text.as_bytes(), Format::Jsonl, &[]).read_all().await.failures(), []);
}

#[tokio::test]
async fn columns_and_their_names_are_limited() {
    let fields: Vec<String> = (0..5_000).map(|at| format!("\"c{at}\":1")).collect();
    let line = format!("{{{}}}\n", fields.join(","));
    let message = refused(line.as_bytes(), Format::Jsonl).await;
    assert!(message.contains("columns exceed the limit of 4096"), "{message}");
    let chosen = fixture(line.as_bytes(), Format::Jsonl, &[("x", "c4999")]).read_all().await;
    assert_eq!(chosen.rows(), ["1"]);
    let message = refused(format!("{{\"{}\":1}}\n", "n".repeat(2_000)).as_bytes(), Format::Jsonl).await;
    assert!(message.contains("is 2000 bytes long; the limit is 1024") && message.len() < 400, "{message}");
    let names: Vec<String> = (0..5_000).map(|at| format!("f{at:04}")).collect();
    let features: Vec<(&str, Feature<'_>)> =
        names.iter().map(|name| (name.as_str(), Feature::Ints(&[1]))).collect();
    let message = refused(&tfrecord(&[example(&features)]), Format::TfRecord).await;
    assert!(message.contains("exceed the limit of 4096 features"), "{message}");
}

#[tokio::test]
async fn the_length_of_a_header_line_is_limited() {
    let message = refused(&vec![b'x'; MAX_HEADER_BYTES as usize + 1], Format::Csv).await;
    assert!(message.contains("the header line is longer than 16777216 bytes"), "{message}");
    let commas = ",".repeat(MAX_CSV_COLUMNS) + "\n";
    let message = refused(commas.as_bytes(), Format::Csv).await;
    assert!(message.contains("more than the limit of 131072"), "{message}");
}

#[tokio::test]
async fn samples_of_a_tar_file_are_limited() {
    let names: Vec<String> = (0..MAX_SAMPLE_MEMBERS + 1).map(|at| format!("k.e{at}")).collect();
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), b"".as_slice())).collect();
    let mut bytes = tar(&[("a.txt", b"whole")]);
    bytes.truncate(1024);
    bytes.extend(tar(&members));
    let index = fixture(&bytes, Format::WebDataset, &[("text", "txt")]).index().await.unwrap().index;
    assert_eq!((index.rows(), index.defects.len()), (1, 1));
    let reason = &index.defects[0].reason;
    assert!(
        reason.contains("the limit of 4096 members") || reason.contains("the limit of 4096 extensions"),
        "{reason}"
    );
    let record = format!(" path={}.txt\n", "d".repeat(5_000));
    let pax = format!("{}{record}", record.len() + 4);
    let bytes = [tar_member(b'x', "pax", pax.as_bytes()), tar(&[("short", b"x")])].concat();
    let index = fixture(&bytes, Format::WebDataset, &[("text", "txt")]).index().await.unwrap().index;
    assert!(index.defects[0].reason.contains("a member name is 5004 bytes long"), "{:?}", index.defects);
}

/// A Parquet file with only this footer.
fn parquet_with(footer: &[u8]) -> Vec<u8> {
    let length = (footer.len() as u32).to_le_bytes();
    [b"PAR1".as_slice(), footer, &length, b"PAR1"].concat()
}

#[tokio::test]
async fn a_footer_with_impossible_sizes_is_rejected() {
    // Version 1, a schema of one group without children, and two billion row groups.
    let mut footer = vec![0x15, 2, 0x19, 0x1c, 0x48, 1, b'r', 0x15, 0, 0, 0x16, 2, 0x19, 0xfc];
    footer.extend([0x80, 0xa8, 0xd6, 0xb9, 0x07]);
    let message = refused(&parquet_with(&footer), Format::Parquet).await;
    assert!(message.contains("corrupted"), "{message}");
    let group = [0x48, 1, b'g', 0x15, 2, 0];
    let mut footer = vec![0x15, 2, 0x19, 0xfc, 0xa0, 0x8d, 0x06];
    footer.extend(group.repeat(100_000));
    footer.push(0);
    let message = refused(&parquet_with(&footer), Format::Parquet).await;
    assert!(message.contains("nested more than 64 deep"), "{message}");
    let mut long = vec![0; MAX_FOOTER_BYTES as usize + 100];
    let end = long.len();
    long[..4].copy_from_slice(b"PAR1");
    long[end - 8..end - 4].copy_from_slice(&(MAX_FOOTER_BYTES as u32 + 1).to_le_bytes());
    long[end - 4..].copy_from_slice(b"PAR1");
    let message = refused(&long, Format::Parquet).await;
    assert!(message.contains("the footer is 67108865 bytes long"), "{message}");
    long[end - 10..end - 6].copy_from_slice(&(MAX_FOOTER_BYTES as u32 + 1).to_le_bytes());
    long[end - 6..].copy_from_slice(b"ARROW1");
    let message = refused(&long, Format::Arrow).await;
    assert!(message.contains("the footer is 67108865 bytes long"), "{message}");
}

/// Whatever a compressed shard claims, a worker holds at most a part of its memory.
#[tokio::test]
async fn rows_that_determine_the_columns_are_limited_by_the_memory_of_the_worker() {
    // The row does not end in the piece in which it begins.
    let long = "z".repeat(2 << 20);
    let record = example(&[("t", Feature::Bytes(&[long.as_bytes()]))]);
    for (format, content) in [
        (Format::Jsonl, format!("{{\"t\": \"a\"}}\n{{\"t\": \"{long}\"}}\n").into_bytes()),
        (Format::Csv, format!("t\n{long}\n").into_bytes()),
        (Format::TfRecord, tfrecord(&[record])),
    ] {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        std::io::Write::write_all(&mut encoder, &content).unwrap();
        let directory = tempfile::tempdir().unwrap();
        write_settled(&directory.path().join("shard"), &encoder.finish().unwrap());
        let stores = Stores::new(Vec::new());
        let dataset =
            Dataset::new(Source::new(format, path(directory.path(), "shard")), Arc::clone(&stores)).unwrap();
        let shard = dataset.list().await.unwrap().remove(0);
        assert!(dataset.index_shard(&shard).await.is_ok(), "{format:?}");
        stores.decoders().set_sampled_row_limit(1_000);
        let message = dataset.index_shard(&shard).await.unwrap_err().to_string();
        assert!(message.contains("more than the limit of 1000 bytes"), "{format:?}: {message}");
        assert!(message.contains(", or raise the workers' --memory"), "{format:?}: {message}");
    }
}

#[tokio::test]
async fn a_first_row_above_the_limit_is_not_sampled() {
    let store = InMemory::new();
    let path = Path::from("x");
    store.put(&path, b"{}".as_slice().into()).await.unwrap();
    let meta = store.head(&path).await.unwrap();
    let shard = ShardRef {
        url: "mem://x".to_owned(),
        size_bytes: u64::MAX,
        version: version_of(&meta),
        ..ShardRef::default()
    };
    let object = Object::new(Arc::new(store) as Arc<dyn ObjectStore>, path, shard);
    let content = crate::content::Content::indexed(&object, None);
    let bytes = MAX_SAMPLED_ROW_BYTES + 1;
    let block = feedline_data::manifest::Block { rows: 1, offset: 0, bytes, group: 0, row_bytes: Vec::new() };
    let message = crate::formats::lines::sample(&content, &[block], 10).await.unwrap_err().to_string();
    assert!(message.contains("the row is at least 268435457 bytes long"), "{message}");
}
