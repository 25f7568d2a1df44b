//! Tests of the inferred columns and of the decoded numbers: against brute force, and by example.

use std::io::Write;
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema as ArrowSchema, UInt64Type};
use expect_test::{Expect, expect};
use feedline_data::manifest::Manifest;
use feedline_data::pipeline::Format;
use feedline_data::schema::{ColumnType, ScalarType};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::decode;
use super::super::infer::Inference;
use super::super::scan::{KindSink, ScanStop, ValueKinds, number_kinds, scan_line};
use crate::BlockRead;
use crate::select::Selection;
use crate::testing::{fixture, lines};

/// Infers the columns of lines, and formats them.
fn infer(lines: &[&str]) -> String {
    let selection = Selection::default();
    let mut inference = Inference::new(&selection);
    let no_columns = Arc::new(ArrowSchema::empty());
    for line in lines {
        inference.add(line.as_bytes(), |line| decode(&no_columns, &[line]).is_ok());
    }
    let (columns, notes) = inference.finish();
    let column = |(name, column_type): (String, Result<ColumnType, String>)| {
        let untyped = if notes.untyped.contains(&name) { " (untyped)" } else { "" };
        let widened =
            notes.widened_from.get(&name).map_or_else(String::new, |from| format!(" (widened from {from})"));
        let column_type = column_type
            .map_or_else(|reason| format!("error: {reason}"), |column_type| column_type.to_string());
        format!("{name}: {column_type}{untyped}{widened}")
    };
    columns.into_iter().map(column).collect::<Vec<_>>().join("\n")
}

#[track_caller]
fn check(lines: &[&str], expected: Expect) {
    expected.assert_eq(&infer(lines));
}

#[test]
fn numbers_are_widened_if_that_is_exact() {
    check(&[r#"{"x":1}"#, r#"{"x":2.5}"#], expect!["x: float64 (widened from int64)"]);
    check(
        &[r#"{"x":[1]}"#, r#"{"x":[null,2.5]}"#],
        expect!["x: list of float64 (widened from list of int64)"],
    );
    check(&[r#"{"x":18446744073709551615}"#, r#"{"x":0}"#], expect!["x: uint64"]);
    check(&[r#"{"x":18446744073709551615}"#, r#"{"x":-0}"#], expect!["x: uint64"]);
    check(&[r#"{"x":18446744073709551615}"#, r#"{"x":-1}"#], expect!["x: int64"]);
    check(&[r#"{"x":18446744073709551616}"#], expect!["x: float64"]);
    check(&[r#"{"x":1e3}"#], expect!["x: float64"]);
}

#[test]
fn the_first_inexact_integer_or_decimal_number_determines_the_type() {
    check(&[r#"{"x":9007199254740993}"#, r#"{"x":2.5}"#], expect!["x: int64"]);
    check(
        &[r#"{"x":1}"#, r#"{"x":2.5}"#, r#"{"x":9007199254740993}"#],
        expect!["x: float64 (widened from int64)"],
    );
    check(&[r#"{"x":9007199254740992}"#, r#"{"x":2.5}"#], expect!["x: float64 (widened from int64)"]);
}

#[test]
fn the_first_value_that_is_not_null_determines_the_kind() {
    check(&[r#"{"x":null}"#, r#"{"x":"a"}"#, r#"{"x":1}"#], expect!["x: text"]);
    check(&[r#"{"x":1}"#, r#"{"x":"a"}"#, r#"{"x":true}"#], expect!["x: int64"]);
    check(&[r#"{"x":[]}"#, r#"{"x":[true]}"#, r#"{"x":1}"#], expect!["x: list of bool (widened from bool)"]);
    check(
        &[r#"{"x":null}"#, r#"{"y":[]}"#, r#"{"z":[[],null]}"#],
        expect![[r#"
        x: text (untyped)
        y: list of text (untyped)
        z: list of list of text (untyped)"#]],
    );
    check(&[r#"{"x":{"y":1}}"#], expect!["x: error: nested objects are not supported"]);
}

#[test]
fn a_line_that_the_decoder_rejects_adds_nothing() {
    check(
        &[r#"{"a":1}"#, r#"{"b":1} {"c":1}"#, r#"{"d":"\q"}"#, r#"[{"e":1}]"#, r#"{"f":1"#, "7", ""],
        expect!["a: int64"],
    );
    check(
        &[r#"{"a":01,"b":1-2,"c":1e999}"#],
        expect![[r#"
        a: text (untyped)
        b: text (untyped)
        c: text (untyped)"#]],
    );
    check(
        &[r#"{"a\u0062\n":1,"\ud83d\ude00":2}"#, r#"{"😀":2}"#],
        expect![[r#"
        ab
        : int64
        😀: int64"#]],
    );
}

/// A value whose JSON text serde_json preserves.
fn values() -> impl Strategy<Value = Value> {
    let integers = prop::sample::select(vec![
        json!(0),
        json!(-1),
        json!(7),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1_u64 << 53),
        json!((1_u64 << 53) + 1),
        json!(-(1_i64 << 53) - 1),
        json!(1_u64 << 63),
    ]);
    let scalars = prop_oneof![
        4 => integers,
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        2 => prop::sample::select(vec![json!(0.5), json!(-2.0), json!(1e300)]),
        1 => "[a\"\\\\\u{e9}\n]{0,4}".prop_map(Value::from),
    ];
    scalars.prop_recursive(2, 8, 3, |inner| prop_oneof![
        3 => prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
        1 => prop::collection::btree_map("[ab]", inner, 0..2).prop_map(|map| Value::Object(map.into_iter().collect())),
    ])
}

/// Rows whose columns mostly have values of one kind.
fn rows() -> impl Strategy<Value = Vec<Vec<(String, Value)>>> {
    let row = prop::collection::btree_map("[a-d]{1,2}", values(), 0..4);
    prop::collection::vec(row.prop_map(|row| row.into_iter().collect()), 0..8)
}

/// Determines a type by its definition. Returns whether a value determines it.
fn brute_force(values: &[&Value]) -> (bool, Result<ColumnType, ()>) {
    let scalar = |scalar| (true, Ok(ColumnType::Scalar(scalar)));
    let Some(first) = values.iter().find(|value| !value.is_null()) else {
        return (false, Ok(ColumnType::Utf8));
    };
    let numbers: Vec<&Value> = values.iter().copied().filter(|value| value.is_number()).collect();
    let is_integer = |value: &Value| value.is_i64() || value.is_u64();
    let is_inexact = |value: &&&Value| {
        let integer = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
        integer.is_some_and(|integer| integer as f64 as i128 != integer)
    };
    match first {
        Value::Bool(_) => scalar(ScalarType::Bool),
        Value::String(_) => (true, Ok(ColumnType::Utf8)),
        Value::Object(_) => (true, Err(())),
        Value::Array(_) => {
            let elements: Vec<&Value> =
                values.iter().filter_map(|value| value.as_array()).flatten().collect();
            let (is_typed, element) = brute_force(&elements);
            (is_typed, element.map(|element| ColumnType::List(Box::new(element))))
        }
        Value::Number(_) => {
            let first_decimal = numbers.iter().position(|number| !is_integer(number));
            let first_inexact = numbers.iter().position(|number| is_inexact(&number));
            match (first_decimal, first_inexact) {
                (Some(decimal), Some(inexact)) if decimal < inexact => scalar(ScalarType::Float64),
                (Some(_), None) => scalar(ScalarType::Float64),
                _ if numbers.iter().any(|number| number.as_i64().is_none() && number.is_u64())
                    && !numbers.iter().any(|number| number.as_i64().is_some_and(|value| value < 0)) =>
                {
                    scalar(ScalarType::UInt64)
                }
                _ => scalar(ScalarType::Int64),
            }
        }
        Value::Null => unreachable!("the first value is not null"),
    }
}

fn line_of(row: &[(String, Value)]) -> String {
    let fields: Vec<String> = row.iter().map(|(key, value)| format!("\"{key}\":{value}")).collect();
    format!("{{{}}}", fields.join(", "))
}

struct AcceptAll;

impl KindSink for AcceptAll {
    type Node = ();

    fn column(&mut self, _: &[u8]) -> Result<Option<()>, ScanStop> {
        Ok(Some(()))
    }

    fn has(&self, (): (), _: ValueKinds) -> bool {
        false
    }

    fn value(&mut self, (): (), _: ValueKinds) -> Result<(), ScanStop> {
        Ok(())
    }

    fn elements(&mut self, (): ()) -> Result<(), ScanStop> {
        Ok(())
    }
}

proptest! {
    #[test]
    fn the_inferred_columns_are_those_of_brute_force(rows in rows()) {
        let lines: Vec<String> = rows.iter().map(|row| line_of(row)).collect();
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let selection = Selection::default();
        let mut inference = Inference::new(&selection);
        for line in &lines {
            inference.add(line.as_bytes(), |_| true);
        }
        let (columns, notes) = inference.finish();
        let mut names: Vec<&String> = Vec::new();
        for (name, _) in rows.iter().flatten() {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names.sort();
        prop_assert!(columns.iter().map(|(name, _)| name).eq(names.iter().copied()), "{columns:?} {lines:?}");
        for (name, column_type) in &columns {
            let values: Vec<&Value> =
                rows.iter().flatten().filter(|(key, _)| key == name).map(|(_, value)| value).collect();
            let (is_typed, expected) = brute_force(&values);
            prop_assert_eq!(column_type.clone().map_err(|_| ()), expected, "{}: {:?}", name, lines);
            if column_type.is_ok() {
                prop_assert_eq!(!notes.untyped.contains(name), is_typed, "{}: {:?}", name, lines);
            }
        }
    }

    #[test]
    fn the_scanner_accepts_every_line_that_the_decoder_accepts(line in "[\\{\\}\\[\\]\":,a\\\\0-9eE\\-+.nul ]{0,24}") {
        let no_columns = Arc::new(ArrowSchema::empty());
        for line in [line.clone(), format!("{{\"a\":{line}}}"), format!("{{\"a\":[{line}]}}")] {
            if decode(&no_columns, &[line.as_bytes()]).is_ok() {
                prop_assert_eq!(scan_line(line.as_bytes(), &mut AcceptAll), Ok(()), "{}", line);
            }
        }
    }

    #[test]
    fn a_decoded_number_is_exact(text in "-?(0|[1-9][0-9]{0,20})(\\.[0-9]{1,3})?(e-?[0-9]{1,2})?|-?[0-9][0-9.eE+-]{0,7}") {
        let read = |data_type: DataType| {
            let schema = Arc::new(ArrowSchema::new(vec![Field::new("x", data_type, true)]));
            decode(&schema, &[format!("{{\"x\":{text}}}").as_bytes()]).map(|batch| batch.column(0).clone()).ok()
        };
        let is_json = serde_json::from_str::<Value>(&text).is_ok_and(|value| value.is_number());
        let integer = text.parse::<i128>().ok().filter(|_| is_json);
        let as_int64 = read(DataType::Int64).map(|column| i128::from(column.as_primitive::<Int64Type>().value(0)));
        prop_assert_eq!(as_int64, integer.filter(|&value| i64::try_from(value).is_ok()), "{}", text);
        let as_uint64 = read(DataType::UInt64).map(|column| i128::from(column.as_primitive::<UInt64Type>().value(0)));
        let expected = integer.filter(|&value| u64::try_from(value).is_ok());
        prop_assert_eq!(as_uint64, expected, "{}", text);
        let as_float64 = read(DataType::Float64).map(|column| column.as_primitive::<Float64Type>().value(0));
        if let Some(value) = as_float64 {
            prop_assert_eq!(value, text.parse::<f64>().unwrap(), "{}", text);
        }
        let fits = |value: i128| i64::try_from(value).is_ok() || u64::try_from(value).is_ok();
        match integer.filter(|&value| fits(value)) {
            Some(integer) => {
                prop_assert_eq!(as_float64.map(|value| value as i128), Some(integer).filter(|&it| it as f64 as i128 == it), "{}", text);
            }
            None if is_json => prop_assert!(as_float64.is_some(), "{}", text),
            None => {}
        }
        // The kinds say which decoder accepts the number.
        let kinds = number_kinds(text.as_bytes());
        prop_assert_eq!(kinds == 0, as_int64.is_none() && as_uint64.is_none() && as_float64.is_none(), "{}", text);
    }
}

#[tokio::test]
async fn values_after_many_rows_are_read_unchanged() {
    let repeated = |line: &str, last: &str| format!("{}{last}\n", format!("{line}\n").repeat(2_000));
    for (line, last, columns, value) in [
        (r#"{"x":1}"#, r#"{"x":2.5}"#, "x: float64", "2.5"),
        (r#"{"x":1}"#, r#"{"x":-0.9}"#, "x: float64", "-0.9"),
        (r#"{"x":[1]}"#, r#"{"x":[1.5,2.5]}"#, "x: list of float64", "[1.5,2.5]"),
        (r#"{"y":1}"#, r#"{"x":2.5}"#, "x: float64, y: int64", "2.5|null"),
        (r#"{"x":null}"#, r#"{"x":3}"#, "x: int64", "3"),
    ] {
        let all = fixture(repeated(line, last).as_bytes(), Format::Jsonl, &[]).read_all().await;
        assert_eq!(all.columns(), columns);
        assert_eq!(all.rows().last().unwrap(), value, "{last}");
        assert_eq!(all.failures(), []);
    }
}

#[tokio::test]
async fn a_value_of_another_kind_fails_its_row_with_the_column() {
    let reasons = async |text: &str| {
        let all = fixture(text.as_bytes(), Format::Jsonl, &[]).read_all().await;
        let failures = all.failures().into_iter();
        failures
            .map(|failure| format!("row {}: {}", failure.row, failure.reason))
            .collect::<Vec<_>>()
            .join("\n")
    };
    expect![[r#"
        row 1: column `x`: expected int64 as in the first rows with this column, but found "12"
        row 2: column `x`: expected int64 as in the first rows with this column, but found true"#]]
    .assert_eq(&reasons("{\"x\":1}\n{\"x\":\"12\"}\n{\"x\":true}\n").await);
    expect!["row 1: column `x`: expected text as in the first rows with this column, but found 1.0"]
        .assert_eq(&reasons("{\"x\":\"1.0\"}\n{\"x\":1.0}\n").await);
    expect!["row 1: column `x`: int64 does not represent 2.5 exactly"]
        .assert_eq(&reasons("{\"x\":9007199254740993}\n{\"x\":2.5}\n").await);
    expect!["row 1: column `x`: float64 does not represent 9007199254740993 exactly"]
        .assert_eq(&reasons("{\"x\":2.5}\n{\"x\":9007199254740993}\n").await);
    expect!["row 1: column `x`: expected int64 as in the first rows with this column, but found [1]"]
        .assert_eq(&reasons("{\"x\":1}\n{\"x\":[1]}\n").await);
    expect!["row 1: column `x`: expected a boolean as in the first rows with this column, but found 1"]
        .assert_eq(&reasons("{\"x\":true}\n{\"x\":1}\n").await);
}

#[tokio::test]
async fn single_values_become_lists_of_one_value() {
    let lists = fixture(b"{\"a\":[1,null]}\n{\"a\":2}\n{\"a\":null}\n{\"a\":[]}\n", Format::Jsonl, &[]);
    let single = fixture(b"{\"a\":3}\n{\"a\":0.5}\n{}\n", Format::Jsonl, &[]);
    let shards = [lists.index().await.unwrap(), single.index().await.unwrap()];
    let manifest = Manifest::build(shards.to_vec()).unwrap();
    let mut rows = Vec::new();
    for (fixture, shard) in [lists, single].iter().zip(&shards) {
        let read = BlockRead {
            shard: &shard.object,
            block: &shard.index.blocks[0],
            index: None,
            schema: &manifest.schema,
            rows: None,
        };
        let decoded = fixture.dataset.read_block(&read).await.unwrap();
        assert_eq!(decoded.failures, []);
        rows.extend(lines(&decoded.batch));
    }
    assert_eq!(rows, ["[1,null]", "[2]", "null", "[]", "[3]", "[0.5]", "null"]);
}

#[tokio::test]
async fn integers_of_another_shard_are_widened_or_fail_their_row() {
    let large = fixture(b"{\"a\":9007199254740993}\n{\"a\":7}\n", Format::Jsonl, &[]);
    let fractions = fixture(b"{\"a\":0.5}\n", Format::Jsonl, &[]);
    let (a, b) = (large.index().await.unwrap(), fractions.index().await.unwrap());
    let manifest = Manifest::build(vec![a.clone(), b]).unwrap();
    let read = BlockRead {
        shard: &a.object,
        block: &a.index.blocks[0],
        index: None,
        schema: &manifest.schema,
        rows: None,
    };
    let rows = large.dataset.read_block(&read).await.unwrap();
    assert_eq!(lines(&rows.batch), ["null", "7"]);
    assert_eq!(rows.failures[0].reason, "column `a`: float64 does not represent 9007199254740993 exactly");
}

#[tokio::test]
async fn a_named_column_is_found_in_any_row_and_other_columns_are_listed() {
    let text = format!("{}{{\"late\":1}}\n", "{\"a\":1,\"b\":{\"c\":1}}\n".repeat(5_000));
    let late = fixture(text.as_bytes(), Format::Jsonl, &[("x", "late")]);
    let shard = late.index().await.unwrap();
    assert_eq!(shard.index.columns.ignored, ["a", "b"]);
    assert_eq!(late.read_all().await.rows().last().unwrap(), "1");
    // Another shard may contain the column.
    let absent = fixture(b"{\"a\":1}\n", Format::Jsonl, &[("x", "late")]).index().await.unwrap();
    assert!(absent.index.schema.unwrap().fields.is_empty());
}

#[tokio::test]
async fn the_last_of_duplicate_keys_counts() {
    let all = fixture(b"{\"a\":1,\"a\":2}\n", Format::Jsonl, &[]).read_all().await;
    assert_eq!(all.rows(), ["2"]);
    assert!(all.blocks[0].batch.column(0).null_count() == 0);
}

#[tokio::test]
async fn compressed_lines_and_arrays_have_the_columns_of_all_rows() {
    let lines = format!("{}{{\"x\":2.5,\"late\":1}}\n", "{\"x\":1}\n".repeat(5_000));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(lines.as_bytes()).unwrap();
    let array = format!("[{}]", lines.trim_end().replace('\n', ","));
    for bytes in [gzip.finish().unwrap(), array.into_bytes()] {
        let all = fixture(&bytes, Format::Jsonl, &[]).read_all().await;
        assert_eq!(all.columns(), "late: int64, x: float64");
        assert_eq!(all.rows().last().unwrap(), "1|2.5");
        assert_eq!(all.failures(), []);
    }
}
