//! Tests of building manifests and of detecting changed shards.

use super::*;

fn shard(url: &str, schema: Option<Schema>) -> Shard {
    let object =
        ShardRef { url: url.to_owned(), size_bytes: 10, version: "v".to_owned(), ..ShardRef::default() };
    let block = Block { rows: 3, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() };
    Shard::new(
        object,
        ShardIndex { blocks: vec![block], schema, defects: Vec::new(), ..ShardIndex::default() },
    )
}

fn number(scalar: ScalarType) -> ColumnType {
    ColumnType::Scalar(scalar)
}

#[test]
fn merged_schemas_widen_and_include_columns_that_some_shards_lack() {
    let list = ColumnType::List(Box::new(number(ScalarType::Int64)));
    let one = Schema::new([("x", number(ScalarType::Int64)), ("y", ColumnType::Utf8), ("z", list.clone())]);
    let two = Schema::new([("x", number(ScalarType::Float64)), ("z", number(ScalarType::Int64))]);
    let manifest = Manifest::build(vec![shard("a", Some(one)), shard("b", Some(two)), shard("c", None)]);
    let expected = Schema::new([("x", number(ScalarType::Float64)), ("y", ColumnType::Utf8), ("z", list)]);
    assert_eq!(manifest.map(|manifest| manifest.schema), Ok(expected));
}

#[test]
fn the_error_names_the_incompatible_shard() {
    let one = Schema::new([("x", ColumnType::Utf8)]);
    let two = Schema::new([("x", number(ScalarType::Int64))]);
    let error =
        Manifest::build(vec![shard("a", Some(one)), shard("b.csv", Some(two))]).expect_err("they differ");
    assert!(error.contains("b.csv") && error.contains("`x`") && error.contains("int64"), "{error}");
}

#[test]
fn the_columns_of_all_shards_together_are_limited() {
    let columns =
        |from: usize| Schema::new((from..from + 3_000).map(|at| (format!("c{at}"), ColumnType::Utf8)));
    let error = Manifest::build(vec![shard("a", Some(columns(0))), shard("b.csv", Some(columns(3_000)))]);
    let error = error.expect_err("they are too many");
    assert!(error.contains("limit of 4096 columns") && error.contains("b.csv"), "{error}");
}

#[test]
fn the_common_type_of_numbers_preserves_their_range() {
    use ScalarType::{Bool, Float32, Float64, Int8, Int16, Int32, Int64, UInt8};
    assert_eq!(common_scalar(Int8, Int32), Some(Int32));
    assert_eq!(common_scalar(Float32, Int64), Some(Float64));
    assert_eq!(common_scalar(UInt8, Float32), Some(Float32));
    assert_eq!(common_scalar(UInt8, Int16), None);
    assert_eq!(common_scalar(Bool, Int8), None);
}

#[test]
fn unreadable_bytes_never_exceed_the_size_of_the_shard() {
    let mut damaged = shard("a", None);
    damaged.index.defects.push(Defect { offset: 4, reason: "cut short".to_owned() });
    damaged.index.blocks[0].bytes = 4;
    assert_eq!(damaged.unreadable_bytes(), 6);
    let block = &mut damaged.index.blocks[0];
    (block.offset, block.bytes) = (u64::MAX, u64::MAX);
    assert_eq!(damaged.unreadable_bytes(), 0, "a block beyond the shard's end");
}

#[test]
fn blocks_that_share_an_access_point_form_a_run() {
    use crate::compression::{AccessPoint, Codec};
    let block = |offset| Block { rows: 1, offset, bytes: 10, group: 0, row_bytes: Vec::new() };
    let blocks: Vec<Block> = [0, 10, 20, 30, 40].map(block).into();
    let mut index = ShardIndex { blocks, ..ShardIndex::default() };
    assert_eq!(index.runs().collect::<Vec<_>>(), [0..1, 1..2, 2..3, 3..4, 4..5]);
    let point = |content_offset: u64| AccessPoint {
        bit_offset: content_offset * 2,
        content_offset,
        state: Vec::new(),
    };
    let points = [18, 29, 41].map(point).into();
    let codec = Codec::Gzip;
    index.compression =
        Some(ShardCompression { codec, content_bytes: 50, readable_bytes: 9, decoder_bytes: 0, points });
    assert_eq!(index.runs().collect::<Vec<_>>(), [0..2, 2..3, 3..5]);
    assert_eq!(ShardIndex::default().runs().count(), 0);
}
