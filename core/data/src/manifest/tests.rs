//! Tests of building manifests and of detecting changed shards.

use super::merge::common_scalar;
use super::*;
use crate::pipeline::{Mix, MixPart, MixStop, Source};
use crate::schema::{ColumnType, ScalarType};

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
    use ScalarType::{Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt64};
    assert_eq!(common_scalar(Int8, Int32), Some(Int32));
    assert_eq!(common_scalar(Float32, Int64), Some(Float64));
    assert_eq!(common_scalar(UInt8, Float32), Some(Float32));
    assert_eq!(common_scalar(UInt8, Int16), Some(Int16));
    assert_eq!(common_scalar(Int8, UInt8), Some(Int16));
    assert_eq!(common_scalar(Int64, UInt64), Some(UInt64));
    assert_eq!(common_scalar(Int16, Float16), Some(Float32));
    assert_eq!(common_scalar(UInt8, Float16), Some(Float16));
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

fn untyped_shard(url: &str, schema: Schema, untyped: &[&str]) -> Shard {
    let mut shard = shard(url, Some(schema));
    shard.index.columns.untyped = untyped.iter().map(|name| (*name).to_owned()).collect();
    shard
}

#[test]
fn a_column_of_nulls_takes_its_type_from_another_shard() {
    let list = |item| ColumnType::List(Box::new(item));
    let nulls =
        || Schema::new([("x", ColumnType::Utf8), ("y", list(ColumnType::Utf8)), ("z", ColumnType::Utf8)]);
    let typed = || Schema::new([("x", number(ScalarType::Int64)), ("y", list(number(ScalarType::Float64)))]);
    let expected = Schema::new([
        ("x", number(ScalarType::Int64)),
        ("y", list(number(ScalarType::Float64))),
        ("z", ColumnType::Utf8),
    ]);
    let of_nulls = || untyped_shard("a", nulls(), &["x", "y", "z"]);
    let manifest = Manifest::build(vec![of_nulls(), shard("b", Some(typed()))]).expect("they agree");
    assert_eq!(manifest.schema, expected);
    assert_eq!(manifest.summary().widened, []);
    let reversed = Manifest::build(vec![shard("b", Some(typed())), of_nulls()]).expect("they agree");
    assert_eq!(reversed.schema, expected);
    let lists = untyped_shard("c", Schema::new([("x", list(ColumnType::Utf8))]), &["x"]);
    let text = shard("d", Some(Schema::new([("x", ColumnType::Utf8)])));
    let error = Manifest::build(vec![lists, text]).expect_err("a list is not text");
    assert!(error.contains("`x`") && error.contains(" d;"), "{error}");
}

#[test]
fn the_summary_lists_widened_rounded_and_ignored_columns_once() {
    let of = |scalar| Schema::new([("x", number(scalar)), ("y", ColumnType::Utf8)]);
    let mut shards = vec![
        shard("a", Some(of(ScalarType::Int64))),
        shard("b", Some(of(ScalarType::Float64))),
        shard("c", Some(of(ScalarType::Int64))),
    ];
    shards[0].index.columns.ignored = vec!["late".to_owned(), "b".to_owned()];
    shards[2].index.columns.ignored = vec!["late".to_owned()];
    let rounded = || RoundedColumn { column: "x".to_owned(), reason: "to even numbers".to_owned() };
    shards[1].index.columns.rounded = vec![rounded()];
    shards[2].index.columns.rounded = vec![rounded()];
    let summary = Manifest::build(shards).expect("they agree").summary();
    let from_int64 = WidenedColumn {
        column: "x".to_owned(),
        from: number(ScalarType::Int64),
        to: number(ScalarType::Float64),
    };
    assert_eq!(summary.widened, [from_int64]);
    assert_eq!(summary.ignored, ["b", "late"]);
    assert_eq!(summary.rounded, [rounded()]);
}

#[test]
fn numbers_of_different_kinds_have_no_common_type() {
    let of = |url, kind: Option<&str>| {
        let mut shard = shard(url, Some(Schema::new([("t", number(ScalarType::Int64))])));
        let kind = kind.map(|kind| ColumnKind { column: "t".to_owned(), kind: kind.to_owned() });
        shard.index.columns.kinds = kind.into_iter().collect();
        shard
    };
    let numbers = || of("a", Some("numbers"));
    Manifest::build(vec![of("c", None), numbers(), of("c", None), of("b", Some("numbers"))])
        .expect("the kind of some shards is unknown");
    let error = Manifest::build(vec![numbers(), of("c", None), of("b", Some("dates"))]).unwrap_err();
    assert!(error.starts_with("column `t` contains numbers in a but dates in b; read"), "{error}");
    let (zoned, any) = ("timestamps in UTC", ColumnKind::TIMESTAMPS);
    Manifest::build(vec![of("a", Some(any)), of("b", Some(zoned)), of("c", Some(any))])
        .expect("the time zone of some shards is unknown");
    let zoneless = "timestamps without a time zone";
    for (kinds, expected) in [
        ([any, zoned, zoneless], format!("column `t` contains {zoned} in b but {zoneless} in c; read")),
        ([any, any, "numbers"], format!("column `t` contains {any} in a but numbers in c; read")),
        (["dates", any, any], format!("column `t` contains dates in a but {any} in b; read")),
    ] {
        let shards = ["a", "b", "c"].into_iter().zip(kinds).map(|(url, kind)| of(url, Some(kind)));
        let error = Manifest::build(shards.collect()).unwrap_err();
        assert!(error.starts_with(&expected), "{error}");
    }
    let mut nulls = of("b", Some("dates"));
    nulls.index.schema = Some(Schema::new([("t", ColumnType::Utf8)]));
    nulls.index.columns.untyped = vec!["t".to_owned()];
    Manifest::build(vec![numbers(), nulls]).expect("all values of a shard are null");
}

fn text_shard(url: &str, columns: &[&str]) -> Shard {
    shard(url, Some(Schema::new(columns.iter().map(|name| (*name, ColumnType::Utf8)))))
}

#[test]
fn a_named_column_may_be_in_any_shard() {
    let source = Source::jsonl("/d/").feature("x", "late");
    let mut first = text_shard("a", &[]);
    first.index.columns.ignored = vec!["id".to_owned(), "latex".to_owned()];
    let second = text_shard("b", &["x"]);
    let manifest =
        Manifest::of_source(vec![first.clone(), second], &source).expect("the second shard has it");
    assert_eq!(manifest.schema.names().collect::<Vec<_>>(), ["x"]);
    let error = |shards| Manifest::of_source(shards, &source).expect_err("no shard has it");
    assert_eq!(
        error(vec![first.clone()]),
        "`a` has no column `late`, which the pipeline reads as `x`; did you mean `latex`? (the columns are: id, latex)"
    );
    assert_eq!(
        error(vec![first.clone(), text_shard("b", &[])]),
        "none of 2 shards, such as `a`, has a column `late`, which the pipeline reads as `x`; did you mean `latex`? (the columns are: id, latex)"
    );
    let optional = Source::jsonl("/d/").optional_feature("x", "late");
    let manifest = Manifest::of_source(vec![first], &optional).expect("it is optional");
    assert_eq!(manifest.schema, Schema::new([("x", ColumnType::Utf8)]));
}

#[test]
fn a_shard_with_a_fixed_schema_must_contain_the_required_columns() {
    let check = |source: Source, is_fixed: bool, required: &[&str]| {
        let mut shards = vec![text_shard("a", &["x", "v"]), text_shard("b", &["x"]), shard("c", None)];
        shards.iter_mut().for_each(|shard| shard.index.columns.is_fixed = is_fixed);
        let manifest = Manifest::of_source(shards, &source).expect("the columns agree");
        let required: Vec<String> = required.iter().map(|name| (*name).to_owned()).collect();
        manifest.check_columns(&source, &required)
    };
    let all = || Source::parquet("/d/");
    assert_eq!(check(all(), true, &["x"]), Ok(()));
    assert_eq!(
        check(all(), true, &["x", "v"]),
        Err("shard b has no column `v`, which a has; to read null for shards without the column, declare `v: { name: v, optional: true }` under `source.features`, with all other columns that you need".to_owned())
    );
    assert_eq!(check(all().feature("x", "x").optional_feature("v", "v"), true, &["x", "v"]), Ok(()));
    // In other formats, each row has its own columns.
    assert_eq!(check(Source::jsonl("/d/"), false, &["x", "v"]), Ok(()));
}

#[test]
fn datasets_of_a_mix_may_have_different_columns() {
    let mut shards = vec![text_shard("a", &["x", "v"]), text_shard("b", &["x"])];
    shards[1].object.part = 1;
    shards.iter_mut().for_each(|shard| shard.index.columns.is_fixed = true);
    let part = |source| MixPart { weight: 1.0, source };
    let parts = vec![part(Source::parquet("/a")), part(Source::parquet("/b"))];
    let source = Source::mixed(Mix { parts, stop: MixStop::All });
    let manifest = Manifest::of_source(shards, &source).expect("the columns agree");
    assert_eq!(manifest.check_columns(&source, &["x".to_owned(), "v".to_owned()]), Ok(()));
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

#[test]
fn lists_and_lists_of_lists_have_no_common_type() {
    let list = |item| ColumnType::List(Box::new(item));
    let int64 = || number(ScalarType::Int64);
    let of = |url: &str, column_type| shard(url, Some(Schema::new([("t", column_type)])));
    let common = |a, b| Manifest::build(vec![of("a", a), of("b", b)]).map(|manifest| manifest.schema);
    let error = common(list(int64()), list(list(int64()))).unwrap_err();
    assert!(error.starts_with("column `t` is list of int64 in a but list of list of int64 in b"), "{error}");
    let widened = common(list(list(int64())), list(list(number(ScalarType::Float64)))).unwrap();
    assert_eq!(widened, Schema::new([("t", list(list(number(ScalarType::Float64))))]));
    assert!(common(int64(), list(list(int64()))).is_err());
    assert_eq!(common(int64(), list(int64())).unwrap(), Schema::new([("t", list(int64()))]));
}
