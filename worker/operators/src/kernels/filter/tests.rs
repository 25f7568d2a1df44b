//! Tests of filters: results as in SQL, error messages, and equality with a row-by-row evaluation.

use std::sync::Arc;

use arrow::array::{BinaryViewArray, Float64Array, Int64Array, ListArray, StringViewArray, UInt64Array};
use arrow::array::{BooleanArray, StringArray};
use arrow::datatypes::Int32Type;
use feedline_data::schema::{ColumnType, ScalarType, Schema};

use crate::testing::{arrow, build, chunk, pixels, run};
use crate::{Chunk, Column, Image, check_filter};

mod rows;

fn schema() -> Schema {
    let scalar = ColumnType::Scalar;
    Schema::new([
        ("label", scalar(ScalarType::Int64)),
        ("small", scalar(ScalarType::Int64)),
        ("score", scalar(ScalarType::Float64)),
        ("hash", scalar(ScalarType::UInt64)),
        ("flag", scalar(ScalarType::Bool)),
        ("text", ColumnType::Utf8),
        ("blob", ColumnType::Binary),
        ("tokens", ColumnType::List(Box::new(scalar(ScalarType::Int32)))),
        ("fixed", ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![3] }),
        ("grid", ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![2, 2] }),
        ("image", ColumnType::Image),
        ("meta.width", scalar(ScalarType::Int64)),
    ])
}

fn rows() -> Chunk {
    let tokens = [Some(vec![Some(1), Some(2)]), Some(vec![]), None, Some(vec![Some(3); 5])];
    chunk([
        ("label", arrow(Int64Array::from(vec![Some(1), Some(2), None, Some(i64::MAX)]))),
        ("small", arrow(Int64Array::from(vec![3, 0, -2, 7]))),
        ("score", arrow(Float64Array::from(vec![Some(0.5), Some(-0.0), Some(f64::NAN), None]))),
        ("hash", arrow(UInt64Array::from(vec![u64::MAX, 10, 0, 5]))),
        ("flag", arrow(BooleanArray::from(vec![Some(true), Some(false), None, Some(true)]))),
        ("text", arrow(StringViewArray::from(vec![Some("cat"), Some("Größe"), Some(""), None]))),
        (
            "blob",
            arrow(BinaryViewArray::from(vec![Some(b"\x01\x02".as_slice()), Some(b""), None, Some(b"x")])),
        ),
        ("tokens", arrow(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens))),
        ("fixed", pixels(&[3], &[0; 12])),
        ("grid", pixels(&[2, 2], &[0; 16])),
        ("image", Column::Images(vec![Image::default(); 4])),
        ("meta.width", arrow(Int64Array::from(vec![9, 8, 7, 6]))),
    ])
}

/// The ids of the rows that remain.
fn kept(predicate: &str) -> Vec<u64> {
    let operators = build(&schema(), vec![serde_json::json!({"filter": {"where": predicate}})]);
    let mut chunk = rows();
    run(&operators, &mut chunk);
    chunk.row_ids
}

#[track_caller]
fn check(predicate: &str, expected: &[u64]) {
    assert_eq!(kept(predicate), expected, "{predicate}");
}

#[test]
fn comparisons_and_logic_are_as_in_sql() {
    check("label = 1", &[0]);
    check("label <> 1", &[1, 3]);
    check("NOT label = 1", &[1, 3]);
    check("label >= 2 AND flag", &[3]);
    check("label IS NULL OR small = 0", &[1, 2]);
    check("label IS NOT NULL", &[0, 1, 3]);
    check("flag = true", &[0, 3]);
    check("flag IS NOT TRUE", &[1, 2]);
    check("flag IS UNKNOWN", &[2]);
    check("label = NULL", &[]);
    check("label IS NOT DISTINCT FROM NULL", &[2]);
    check("true", &[0, 1, 2, 3]);
    check("NULL", &[]);
    check("1 + 1 = 2 AND small > 0", &[0, 3]);
    check("\"meta.width\" > 7 AND meta.width < 9", &[1]);
}

#[test]
fn lists_ranges_and_patterns_are_as_in_sql() {
    check("label IN (2, 3, 9223372036854775807)", &[1, 3]);
    check("label NOT IN (1)", &[1, 3]);
    check("label NOT IN (1, NULL)", &[]);
    check("small BETWEEN 0 AND 3", &[0, 1]);
    check("small NOT BETWEEN 0 AND 3", &[2, 3]);
    check("text LIKE 'c%'", &[0]);
    check("text NOT LIKE '_at'", &[1, 2]);
    check("text ILIKE 'GR%'", &[1]);
    check("text IN ('cat', '')", &[0, 2]);
    check("small IN (0.0, 3.5)", &[1]);
}

#[test]
fn numbers_are_converted_and_values_out_of_range_are_null() {
    check("label + 1 > 1", &[0, 1]);
    check("small * 2 = 6", &[0]);
    check("7 / small = 2", &[0]);
    check("7 % small = 1", &[0, 2]);
    check("small / 2 = -1", &[2]);
    check("small / 2.0 = 1.5", &[0]);
    check("-small > 0", &[2]);
    check("abs(small) = 2", &[2]);
    check("score = 0", &[1]);
    check("score > 1e300", &[2]);
    check("hash = 18446744073709551615", &[0]);
    check("hash % 10 = 0", &[1, 2]);
    check("hash > -1", &[0, 1, 2, 3]);
    check("hash = small", &[]);
    check("label = 9223372036854775807", &[3]);
    check("small > -9223372036854775808", &[0, 1, 2, 3]);
    check("CASE WHEN small > 5 THEN small ELSE 0.5 END = 7", &[3]);
    check("CASE WHEN flag THEN 1 END IS NULL", &[1, 2]);
}

#[test]
fn numbers_of_different_types_are_compared_exactly() {
    let scalar = ColumnType::Scalar;
    let schema = Schema::new([
        ("a", scalar(ScalarType::Int64)),
        ("b", scalar(ScalarType::UInt64)),
        ("c", scalar(ScalarType::Float64)),
    ]);
    let (large, min, max) = (1_u64 << 53, i64::MIN, i64::MAX);
    let rows = [
        (Some(large as i64 + 1), large, large as f64),
        (Some(large as i64), large + 1, large as f64),
        (Some(-1), u64::MAX, -0.5),
        (Some(max), max as u64 + 1, 2_f64.powi(63)),
        (None, 5, f64::NAN),
        (Some(min), 0, f64::NEG_INFINITY),
        (Some(7), 7, 7.0),
        (Some(0), 0, -0.0),
        (Some(max), u64::MAX, 2_f64.powi(64)),
    ];
    let check = |predicate: &str, expected: &[u64]| {
        let operators = build(&schema, vec![serde_json::json!({"filter": {"where": predicate}})]);
        let mut chunk = chunk([
            ("a", arrow(Int64Array::from_iter(rows.iter().map(|row| row.0)))),
            ("b", arrow(UInt64Array::from_iter_values(rows.iter().map(|row| row.1)))),
            ("c", arrow(Float64Array::from_iter_values(rows.iter().map(|row| row.2)))),
        ]);
        run(&operators, &mut chunk);
        assert_eq!(chunk.row_ids, expected, "{predicate}");
    };
    check("a <> b", &[0, 1, 2, 3, 5, 8]);
    check("a = b", &[6, 7]);
    check("a < b", &[1, 2, 3, 5, 8]);
    check("b <= a", &[0, 6, 7]);
    check("a IS DISTINCT FROM b", &[0, 1, 2, 3, 4, 5, 8]);
    check("a IS NOT DISTINCT FROM b", &[6, 7]);
    check("a = c", &[1, 6, 7]);
    check("c < a", &[0, 5]);
    check("b = c", &[0, 3, 6, 7]);
    check("c > b", &[4, 8]);
    check("c BETWEEN a AND b", &[1, 2, 3, 6, 7]);
    check("a < 9223372036854775808", &[0, 1, 2, 3, 5, 6, 7, 8]);
    check("a >= 9223372036854775809", &[]);
    check("a = 9223372036854775808.0", &[]);
    check("a < -0.5", &[2, 5]);
    check("c = 9007199254740993", &[]);
    check("c > 9007199254740991", &[0, 1, 3, 4, 8]);
    check("a IN (9223372036854775808, 9007199254740993)", &[0]);
    check("b IN (a, c)", &[0, 3, 6, 7]);
    check("b NOT IN (-1, 9007199254740992)", &[1, 2, 3, 4, 5, 6, 7, 8]);
    check("5 IN (c, b)", &[4]);
    check("-1 IN (b, a)", &[2]);
    check("NULL IN (NULL, a, b, c)", &[]);
}

#[test]
fn functions_count_characters_bytes_and_elements() {
    check("length(text) = 5", &[1]);
    check("char_length(text) = 3", &[0]);
    check("octet_length(text) = 7", &[1]);
    check("length(blob) = 2", &[0]);
    check("length(tokens) <= 2", &[0, 1]);
    check("length(tokens) IS NULL", &[2]);
    check("tokens IS NOT NULL", &[0, 1, 3]);
    check("length(fixed) = 3", &[0, 1, 2, 3]);
    check("grid IS NOT NULL", &[0, 1, 2, 3]);
    check("upper(text) = 'CAT' OR lower(text) = 'größe'", &[0, 1]);
    check("coalesce(label, small) < 0", &[2]);
    check("coalesce(text, 'none') = 'none'", &[3]);
    check("blob = X'0102'", &[0]);
}

#[test]
fn arrow_strings_without_views_and_narrow_numbers_are_read() {
    let schema = Schema::new([("t", ColumnType::Utf8), ("n", ColumnType::Scalar(ScalarType::UInt8))]);
    let operators = build(&schema, vec![serde_json::json!({"filter": {"where": "t LIKE 'a%' AND n > 3"}})]);
    let mut chunk = chunk([
        ("t", arrow(StringArray::from(vec!["ab", "ac", "b"]))),
        ("n", arrow(arrow::array::UInt8Array::from(vec![3, 4, 5]))),
    ]);
    run(&operators, &mut chunk);
    assert_eq!(chunk.row_ids, [1]);
}

#[test]
fn a_removed_row_that_failed_is_still_reported() {
    let mut chunk = rows();
    chunk.fail(2, "broken");
    run(&build(&schema(), vec![serde_json::json!({"filter": {"where": "label > 0"}})]), &mut chunk);
    assert_eq!((chunk.origins, chunk.failures), (vec![0, 1, 3], vec![(2, "broken".to_owned())]));
}

#[test]
fn errors_name_the_problem() {
    let refused = |predicate: &str| check_filter(predicate, &schema()).unwrap_err().message;
    assert_eq!(refused("lable = 1"), "where: there is no column `lable`; did you mean `label`?");
    assert!(refused("zzz = 1").starts_with("where: there is no column `zzz`; the columns are label, small,"));
    assert_eq!(refused("text = 1"), "where: `text` is text, but `1` is a number: they cannot be compared");
    assert_eq!(
        refused("label + 1"),
        "where: `label + 1` is a number, but must be a boolean; write a comparison, such as `label < 10`"
    );
    assert_eq!(refused("label AND flag"), "where: AND requires a boolean, but `label` is a number");
    assert_eq!(
        refused("tokens = 3"),
        "where: `tokens` is a list, which cannot be compared; use length(tokens)"
    );
    assert_eq!(refused("text + 1 = 2"), "where: arithmetic requires a number, but `text` is text");
    assert_eq!(
        refused("length(label) = 1"),
        "where: length requires text, bytes or a list, but `label` is a number"
    );
    assert_eq!(
        refused("size(text) = 1"),
        "where: unknown function `size`; the functions are length, char_length, octet_length, lower, upper, abs, coalesce"
    );
    assert_eq!(refused("abs(label, 1) = 1"), "where: abs requires one argument, but `abs(label, 1)` has 2");
    assert_eq!(
        refused("grid = 3"),
        "where: `grid` is a tensor, which cannot be compared; use only `grid IS NULL`"
    );
    assert!(refused("length(grid) = 3").contains("but `grid` is a tensor"));
    assert!(refused("coalesce(grid, NULL) IS NULL").contains("`grid` is a tensor"));
    assert_eq!(
        refused("image IS NULL"),
        "where: column `image` has type image, which a filter cannot read; move the filter before the operator that creates the column"
    );
    assert!(refused("label = ").starts_with("where: invalid expression `label = `: "));
    assert!(refused("label = 1; DROP").contains("after the end"));
    assert!(refused("label IN (SELECT 1)").contains("is not supported in a filter"));
    assert!(refused("count(*) > 1").contains("not supported"));
    assert!(
        refused(&format!("{}label{} = 1", "(".repeat(5000), ")".repeat(5000))).contains("invalid expression")
    );
    assert!(check_filter("length(tokens) <= 64 AND label <> 3", &schema()).is_ok());
}

#[test]
fn chains_up_to_the_maximum_depth_are_evaluated() {
    let chain = |terms: usize| vec!["small > 0"; terms].join(" AND ");
    check(&chain(200), &[0, 3]);
    let refused = |predicate: &str| check_filter(predicate, &schema()).unwrap_err().message;
    assert!(refused(&chain(1000)).contains("nested too deeply"));
    assert!(refused(&chain(100_000)).contains("16384 bytes"));
    let ids: Vec<String> = (3..1500).map(|id| id.to_string()).collect();
    check(&format!("small IN ({})", ids.join(",")), &[0, 3]);
}

#[test]
fn the_predicate_is_shared_between_threads() {
    let operators = Arc::new(build(&schema(), vec![serde_json::json!({"filter": {"where": "small > 0"}})]));
    let work = |operators: Arc<Vec<crate::BuiltOperator>>| {
        let mut chunk = rows();
        run(&operators, &mut chunk);
        chunk.row_ids
    };
    let other = operators.clone();
    let found = std::thread::spawn(move || work(other)).join().unwrap();
    assert_eq!((found, work(operators)), (vec![0, 3], vec![0, 3]));
}
