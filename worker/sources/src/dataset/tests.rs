//! Tests of the digests of indexed shards, and of objects without validators.

mod digests;
mod samples;
mod versions;

use arrow::array::{Int64Array, RecordBatch};
use feedline_data::manifest::ShardDigest;
use feedline_data::pipeline::{Format, Source};
use parquet::arrow::ArrowWriter;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::*;
use crate::testing::{Feature, example, fixture, tar, tfrecord};

async fn digest(bytes: &[u8], format: Format) -> ShardDigest {
    let shard = fixture(bytes, format, &[]).index().await.expect("the test's data is sound");
    shard.digest.expect("each indexed shard has a digest")
}

fn records(count: usize, record_bytes: usize) -> Vec<u8> {
    let record = |number: usize| {
        let value = vec![number as u8; record_bytes];
        example(&[("x", Feature::Bytes(&[&value]))])
    };
    tfrecord(&(0..count).map(record).collect::<Vec<_>>())
}

/// An archive of members of this size.
fn archive(count: usize, member_bytes: usize) -> Vec<u8> {
    let names: Vec<String> = (0..count).map(|number| format!("{number}.bin")).collect();
    let body = vec![7; member_bytes];
    let members: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), body.as_slice())).collect();
    tar(&members)
}

fn parquet(rows: i64) -> Vec<u8> {
    let values =
        Int64Array::from_iter_values((0..rows).map(|row| row.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64 as i64)));
    let batch = RecordBatch::try_from_iter([("x", Arc::new(values) as _)]).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

#[tokio::test]
async fn formats_that_are_read_sequentially_have_a_digest_of_all_bytes() {
    let lines = "{\"x\": 1}\n".repeat(700_000);
    let with_mark = [b"\xef\xbb\xbf".as_slice(), lines.as_bytes()].concat();
    let cases = [
        (Format::Jsonl, lines.clone().into_bytes()),
        (Format::Jsonl, with_mark),
        (Format::Text, b"one\n\ntwo".to_vec()),
        (Format::Csv, ["x,y\n".to_owned(), "1,2\n".repeat(2_000_000)].concat().into_bytes()),
        (Format::TfRecord, records(3, 10)),
        // The end of the read-ahead is within a record.
        (Format::TfRecord, records(100, 100_000)),
        (Format::WebDataset, archive(200, 60_000)),
        (Format::Parquet, parquet(10)),
    ];
    for (format, bytes) in cases {
        assert_eq!(digest(&bytes, format).await, ShardDigest::of_bytes(&bytes), "{format:?}");
    }
}

#[tokio::test]
async fn formats_that_skip_bytes_have_a_digest_of_the_parts_that_they_read() {
    let large = archive(12, 1 << 20);
    let cases = [
        (Format::WebDataset, large.clone()),
        // The first 16 records are read to infer the columns.
        (Format::TfRecord, records(30, 1 << 20)),
        (Format::Parquet, parquet(100_000)),
        (Format::Files, b"an image".to_vec()),
    ];
    for (format, bytes) in cases {
        let found = digest(&bytes, format).await;
        assert!(!found.is_whole(), "{format:?}");
        assert_eq!(digest(&bytes, format).await, found, "{format:?}: it is reproducible");
    }
    let mut other = large.clone();
    // The body of a member, which indexing skips.
    let place = other.len() - (1 << 19);
    other[place] ^= 1;
    assert_eq!(digest(&other, Format::WebDataset).await, digest(&large, Format::WebDataset).await);
}

#[tokio::test]
async fn a_changed_byte_changes_the_digest() {
    let bytes = records(50, 100_000);
    let original = digest(&bytes, Format::TfRecord).await;
    for place in (0..bytes.len()).step_by(1_000_003) {
        let mut changed = bytes.clone();
        // A record with a wrong checksum fails when it is read, and not when it is indexed.
        changed[place / 100_037 * 100_037 + 50_000] ^= 1;
        assert_ne!(digest(&changed, Format::TfRecord).await, original, "{place}");
    }
}

/// A web server that sends no entity tag and no modification time.
async fn bare_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
    let url = format!("http://{}/x", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            let mut connection = BufReader::new(connection);
            let mut request = String::new();
            while connection.read_line(&mut request).await.unwrap_or(0) > 0 {
                if request.ends_with("\r\n\r\n") {
                    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
                    connection.get_mut().write_all(answer.as_bytes()).await.expect("the client reads");
                    request.clear();
                }
            }
        }
    });
    url
}

#[tokio::test]
async fn an_object_whose_change_would_not_be_detected_is_rejected() {
    let url = bare_server().await;
    let dataset = Dataset::new(Source::text(&url), Stores::new(Vec::new())).unwrap();
    let message = dataset.list().await.unwrap_err().to_string();
    assert!(message.starts_with(&format!("`{url}` has no validator")), "{message}");
    assert!(message.contains("`ETag` or `Last-Modified`"), "{message}");
}
