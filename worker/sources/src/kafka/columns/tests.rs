//! Tests of the columns of a block.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Int32Type, Int64Type};
use feedline_data::kafka_range::KafkaRange;
use feedline_data::manifest::{Block, ShardRef};
use feedline_data::pipeline::{Payload, PayloadFormat};

use super::*;
use crate::testing::{Feature, example};

const FIRST: u64 = 100;

/// A block of payloads by their row. A record without payload is a tombstone.
fn block(payloads: &[(u64, Option<&str>)]) -> RecordBlock {
    let mut block = RecordBlock::default();
    for (row, payload) in payloads {
        let mut span = |text: &str| {
            let start = block.data.len() as u32;
            block.data.extend_from_slice(text.as_bytes());
            Span { start, len: text.len() as u32 }
        };
        let key = (row % 2 == 0).then(|| span(&format!("key {row}")));
        let headers = Some(span("{}"));
        let value = payload.map(&mut span);
        let timestamp_ms = Some(1000 + *row as i64);
        let is_tombstone = payload.is_none();
        block.records.push(KafkaRecord {
            offset: FIRST + row,
            timestamp_ms,
            key,
            headers,
            value,
            is_tombstone,
        });
    }
    block
}

fn rows(
    format: PayloadFormat,
    on_tombstone: OnTombstone,
    fields: &[(&str, ColumnType)],
    block: RecordBlock,
) -> KafkaRows {
    let schema = Schema::new(fields.iter().cloned());
    let shard = ShardRef { url: "kafka://a/t/7".to_owned(), size_bytes: 0, ..ShardRef::default() };
    let description = Block { rows: 5, offset: FIRST, bytes: 1, group: 0, row_bytes: Vec::new() };
    let read = BlockRead { shard: &shard, block: &description, schema: &schema, rows: None, index: None };
    let selection = Selection::default();
    let columns = RequestedColumns::new(&schema, &selection);
    let options = KafkaOptions { on_tombstone, ..KafkaOptions::topic("t") };
    let payload = PayloadDecoder::new(&Payload { format, ..Payload::default() }, None);
    let topic_id = "id".to_owned();
    let range = KafkaRange { topic_id, from: 0, to: 1000, leader_epoch: None, schema_id: None };
    let partition = Partition { topic: "t".into(), number: 7, range };
    futures::executor::block_on(build_rows(block, &read, &columns, &partition, &options, &payload)).unwrap()
}

fn text(array: &dyn Array) -> Vec<Option<String>> {
    array.as_string_view().iter().map(|value| value.map(str::to_owned)).collect()
}

#[test]
fn offsets_without_a_record_are_absent() {
    let fields = [
        ("text", ColumnType::Utf8),
        ("key", ColumnType::Binary),
        ("timestamp", ColumnType::Scalar(ScalarType::Int64)),
        ("partition", ColumnType::Scalar(ScalarType::Int32)),
        ("offset", ColumnType::Scalar(ScalarType::Int64)),
        ("headers", ColumnType::Utf8),
    ];
    let records = [(0, Some("a")), (2, None), (3, Some("d"))];
    let found = rows(PayloadFormat::Text, OnTombstone::Skip, &fields, block(&records));
    assert_eq!((found.absent, found.batch.num_rows()), (vec![1, 2, 4], 5));
    assert_eq!(text(found.batch.column(0)), [Some("a".to_owned()), None, None, Some("d".to_owned()), None]);
    let keys = found.batch.column(1).as_binary_view();
    assert_eq!((keys.value(0), keys.is_null(3)), (&b"key 0"[..], true));
    assert_eq!(found.batch.column(2).as_primitive::<Int64Type>().value(3), 1003);
    assert_eq!(found.batch.column(3).as_primitive::<Int32Type>().value(0), 7);
    assert_eq!(found.batch.column(4).as_primitive::<Int64Type>().value(3), 103);
    assert_eq!(text(found.batch.column(5))[3].as_deref(), Some("{}"));
    let found = rows(PayloadFormat::Text, OnTombstone::Null, &fields, block(&records));
    assert_eq!(found.absent, [1, 4], "a tombstone is a row");
    assert!(found.batch.column(0).is_null(2) && !found.batch.column(4).is_null(2));
}

#[test]
fn a_payload_that_cannot_be_decoded_is_a_failed_row_with_its_offset() {
    let fields = [("n", ColumnType::Scalar(ScalarType::Int64)), ("value.offset", ColumnType::Utf8)];
    let records = [(1, Some(r#"{"n": 5, "offset": "own"}"#)), (2, None), (4, Some("{ no"))];
    let found = rows(PayloadFormat::Json, OnTombstone::Null, &fields, block(&records));
    assert_eq!(found.batch.column(0).as_primitive::<Int64Type>().value(1), 5);
    assert_eq!(text(found.batch.column(1))[1].as_deref(), Some("own"));
    assert_eq!(found.absent, [0, 3]);
    let failures: Vec<(u32, u64)> =
        found.failures.iter().map(|failure| (failure.row, failure.offset)).collect();
    assert_eq!(failures, [(4, 104)]);
}

#[test]
fn features_of_examples_are_columns() {
    // All bytes of these messages are ASCII characters.
    let message = |n: i64, text: &[u8]| {
        String::from_utf8(example(&[("n", Feature::Ints(&[n])), ("t", Feature::Bytes(&[text]))])).unwrap()
    };
    let (first, second) = (message(5, b"one"), message(6, b"two"));
    let truncated = &first[..first.len() - 1];
    let decoder =
        PayloadDecoder::new(&Payload { format: PayloadFormat::Example, ..Payload::default() }, None);
    let samples = [first.as_bytes(), second.as_bytes()];
    let (columns, _) = futures::executor::block_on(decoder.columns(&samples, None)).ok().flatten().unwrap();
    let int64 = ColumnType::Scalar(ScalarType::Int64);
    assert_eq!(
        columns,
        [("n".to_owned(), Ok(int64.clone())), ("t".to_owned(), Ok(ColumnType::Binary))],
        "the samples determine the columns"
    );
    let fields = [("n", int64), ("t", ColumnType::Binary), ("offset", ColumnType::Scalar(ScalarType::Int64))];
    let records = [(0, Some(first.as_str())), (2, Some(truncated)), (4, Some(second.as_str()))];
    let found = rows(PayloadFormat::Example, OnTombstone::Skip, &fields, block(&records));
    let numbers = found.batch.column(0).as_primitive::<Int64Type>();
    assert_eq!((numbers.value(0), numbers.value(4)), (5, 6));
    let texts = found.batch.column(1).as_binary_view();
    assert_eq!((texts.value(0), texts.value(4)), (&b"one"[..], &b"two"[..]));
    assert_eq!(found.batch.column(2).as_primitive::<Int64Type>().value(4), 104);
    assert_eq!(found.absent, [1, 3]);
    let failures: Vec<(u32, u64)> =
        found.failures.iter().map(|failure| (failure.row, failure.offset)).collect();
    assert_eq!(failures, [(2, 102)]);
}

#[test]
fn a_dense_block_is_not_copied() {
    let records: Vec<(u64, Option<&str>)> = (0..5).map(|row| (row, Some("x"))).collect();
    let found =
        rows(PayloadFormat::Bytes, OnTombstone::Skip, &[("value", ColumnType::Binary)], block(&records));
    assert!(found.absent.is_empty() && found.failures.is_empty());
    assert_eq!(found.batch.column(0).as_binary_view().value(4), b"x");
    let none = rows(PayloadFormat::Bytes, OnTombstone::Skip, &[("value", ColumnType::Binary)], block(&[]));
    assert_eq!((none.absent.len(), none.batch.num_rows()), (5, 5));
}

#[test]
fn payload_columns_with_the_name_of_a_record_column_have_a_prefix() {
    let payload = ["a", "offset"].map(|name| (name.to_owned(), Ok(ColumnType::Utf8))).to_vec();
    let names: Vec<String> = record_columns(payload).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["a", "value.offset", "key", "headers", "timestamp", "partition", "offset"]);
}

#[test]
fn an_offset_outside_of_the_block_is_an_error() {
    let schema = Schema::default();
    let shard = ShardRef { url: "kafka://a/t/7".to_owned(), size_bytes: 0, ..ShardRef::default() };
    let description = Block { rows: 5, offset: FIRST, bytes: 1, group: 0, row_bytes: Vec::new() };
    let read = BlockRead { shard: &shard, block: &description, schema: &schema, rows: None, index: None };
    assert!(Slots::new(&read, &block(&[(5, None)]).records).is_err());
}
