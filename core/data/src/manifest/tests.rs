//! Putting shards together, and noticing that they changed.

use super::*;

fn shard(url: &str, schema: Option<Schema>) -> Shard {
    let object = ShardRef { url: url.to_owned(), size_bytes: 10, version: "v".to_owned(), part: 0 };
    let block = Block { rows: 3, offset: 0, bytes: 10, group: 0, row_bytes: Vec::new() };
    Shard { object, index: ShardIndex { blocks: vec![block], schema, defects: Vec::new() } }
}

fn number(scalar: ScalarType) -> ColumnType {
    ColumnType::Scalar(scalar)
}

#[test]
fn schemas_widen_and_keep_columns_that_some_shards_lack() {
    let list = ColumnType::List(Box::new(number(ScalarType::Int64)));
    let one = Schema::new([("x", number(ScalarType::Int64)), ("y", ColumnType::Utf8), ("z", list.clone())]);
    let two = Schema::new([("x", number(ScalarType::Float64)), ("z", number(ScalarType::Int64))]);
    let manifest = Manifest::build(vec![shard("a", Some(one)), shard("b", Some(two)), shard("c", None)]);
    let expected = Schema::new([("x", number(ScalarType::Float64)), ("y", ColumnType::Utf8), ("z", list)]);
    assert_eq!(manifest.map(|manifest| manifest.schema), Ok(expected));
}

#[test]
fn the_shard_that_differs_is_named() {
    let one = Schema::new([("x", ColumnType::Utf8)]);
    let two = Schema::new([("x", number(ScalarType::Int64))]);
    let error =
        Manifest::build(vec![shard("a", Some(one)), shard("b.csv", Some(two))]).expect_err("they differ");
    assert!(error.contains("b.csv") && error.contains("`x`") && error.contains("int64"), "{error}");
}

#[test]
fn shards_that_have_no_column_in_common_do_not_add_up_without_end() {
    let columns =
        |from: usize| Schema::new((from..from + 3_000).map(|at| (format!("c{at}"), ColumnType::Utf8)));
    let error = Manifest::build(vec![shard("a", Some(columns(0))), shard("b.csv", Some(columns(3_000)))]);
    let error = error.expect_err("they are too many");
    assert!(error.contains("more than 4096 columns") && error.contains("b.csv"), "{error}");
}

#[test]
fn numbers_join_without_loss_of_range() {
    use ScalarType::{Bool, Float32, Float64, Int8, Int16, Int32, Int64, UInt8};
    assert_eq!(join_scalars(Int8, Int32), Some(Int32));
    assert_eq!(join_scalars(Float32, Int64), Some(Float64));
    assert_eq!(join_scalars(UInt8, Float32), Some(Float32));
    assert_eq!(join_scalars(UInt8, Int16), None);
    assert_eq!(join_scalars(Bool, Int8), None);
}

#[test]
fn every_kind_of_change_is_noticed_and_named() {
    let schema = Some(Schema::new([("x", ColumnType::Utf8)]));
    let manifest = Manifest::build(vec![shard("a", schema.clone()), shard("b", schema)]).expect("they agree");
    let listed: Vec<ShardRef> = manifest.shards.iter().map(|shard| shard.object.clone()).collect();
    assert_eq!(manifest.check_unchanged(&listed), Ok(()));
    let said = |change: &dyn Fn(&mut Vec<ShardRef>)| {
        let mut listed = listed.clone();
        change(&mut listed);
        manifest.check_unchanged(&listed).expect_err("it changed")
    };
    assert!(
        said(&|listed| listed[1].size_bytes = 11)
            .contains("b changed after it was indexed: 10 bytes then, 11 now")
    );
    assert!(said(&|listed| listed[0].version = "w".to_owned()).contains("a was written again"));
    assert!(said(&|listed| listed.truncate(1)).contains("2 shards then, 1 now"));
    assert!(said(&|listed| listed[0].url = "0".to_owned()).contains("a was where 0 is now"));
}

#[test]
fn what_is_left_out_of_a_shard_is_never_more_than_all_of_it() {
    let mut damaged = shard("a", None);
    damaged.index.defects.push(Defect { offset: 4, reason: "cut short".to_owned() });
    damaged.index.blocks[0].bytes = 4;
    assert_eq!(damaged.left_out_bytes(), 6);
    let block = &mut damaged.index.blocks[0];
    (block.offset, block.bytes) = (u64::MAX, u64::MAX);
    assert_eq!(damaged.left_out_bytes(), 0, "a block beyond the shard's end");
}
