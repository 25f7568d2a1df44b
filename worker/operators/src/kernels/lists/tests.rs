//! Tests of truncated and padded lists.

use arrow::array::{BooleanArray, BooleanBuilder, LargeListArray, ListBuilder};
use arrow::datatypes::{Float32Type, Int32Type, Int64Type};
use feedline_data::schema::{ColumnType, Schema};
use serde_json::json;

use super::*;
use crate::testing::{array, arrow, build, chunk, run, tensor};

fn lists() -> ListArray {
    ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(1), Some(2), Some(3)]),
        Some(vec![]),
        None,
        Some(vec![Some(4)]),
    ])
}

fn list_of(scalar: ScalarType) -> Schema {
    Schema::new([("x", ColumnType::List(Box::new(ColumnType::Scalar(scalar))))])
}

fn values(array: &ArrayRef) -> Vec<Option<Vec<i32>>> {
    let list = |list: ArrayRef| list.as_primitive::<Int32Type>().values().to_vec();
    array.as_list::<i32>().iter().map(|row| row.map(list)).collect()
}

#[test]
fn truncate_removes_the_end_of_longer_lists() {
    let operators =
        build(&list_of(ScalarType::Int32), vec![json!({"truncate": {"column": "x", "length": 2}})]);
    let mut cut = chunk([("x", arrow(lists()))]);
    run(&operators, &mut cut);
    assert_eq!(values(array(&cut, "x")), [Some(vec![1, 2]), Some(vec![]), None, Some(vec![4])]);
    let mut sliced = chunk([("x", arrow(lists().slice(0, 2)))]);
    run(&operators, &mut sliced);
    assert_eq!(values(array(&sliced, "x")), [Some(vec![1, 2]), Some(vec![])]);
    let large = LargeListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(7); 5])]);
    let mut large = chunk([("x", arrow(large))]);
    run(&operators, &mut large);
    assert_eq!(values(array(&large, "x")), [Some(vec![7, 7])]);
}

#[test]
fn pad_fills_to_the_length_and_fails_longer_lists() {
    let operators =
        build(&list_of(ScalarType::Int32), vec![json!({"pad": {"column": "x", "length": 2, "value": -1}})]);
    assert_eq!(operators[0].written_column.as_deref(), Some("x"));
    let mut padded = chunk([("x", arrow(lists()))]);
    run(&operators, &mut padded);
    let out = tensor(&padded, "x");
    assert_eq!((out.scalar, &out.shape[..]), (ScalarType::Int32, &[2][..]));
    let row = |row: usize| {
        out.row(row).as_chunks::<4>().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect::<Vec<_>>()
    };
    assert_eq!([row(0), row(1), row(2), row(3)], [[0, 0], [-1, -1], [0, 0], [4, -1]]);
    assert_eq!(
        padded.failures,
        [
            (
                0,
                "column `x` has 3 elements, more than the padded length of 2: add `truncate` or `filter` before `pad`"
                    .to_owned()
            ),
            (2, "column `x` is null".to_owned()),
        ]
    );
}

#[test]
fn pad_reads_slices_and_every_element_type() {
    let floats = ListArray::from_iter_primitive::<Float32Type, _, _>([
        Some(vec![Some(9.0)]),
        Some(vec![Some(1.5), Some(2.5)]),
    ]);
    let operators =
        build(&list_of(ScalarType::Float32), vec![json!({"pad": {"column": "x", "length": 3, "value": 7}})]);
    let mut padded = chunk([("x", arrow(floats.slice(1, 1)))]);
    run(&operators, &mut padded);
    assert_eq!(tensor(&padded, "x").row(0), [1.5f32, 2.5, 7.0].map(f32::to_ne_bytes).as_flattened());
    let mut truths = ListBuilder::new(BooleanBuilder::new());
    truths.values().append_array(&BooleanArray::from(vec![true, false, true]));
    truths.append(true);
    let operators = build(&list_of(ScalarType::Bool), vec![json!({"pad": {"column": "x", "length": 4}})]);
    let mut padded = chunk([("x", arrow(truths.finish()))]);
    run(&operators, &mut padded);
    assert_eq!(tensor(&padded, "x").row(0), [1, 0, 1, 0]);
}

#[test]
fn a_null_among_the_elements_fails_its_row() {
    let holes = ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1)]), Some(vec![None])]);
    let operators = build(&list_of(ScalarType::Int64), vec![json!({"pad": {"column": "x", "length": 1}})]);
    let mut padded = chunk([("x", arrow(holes))]);
    run(&operators, &mut padded);
    assert_eq!(padded.failures, [(1, "column `x` contains a null element".to_owned())]);
    assert_eq!(tensor(&padded, "x").row(0), 1i64.to_ne_bytes());
}
