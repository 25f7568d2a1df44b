//! Tests of casts of scalars, text, lists and tensors, and of values out of range.

use arrow::array::{Float64Array, Int64Array, ListArray, StringArray, StringViewArray};
use arrow::datatypes::{Float16Type, Float32Type, Float64Type, Int32Type, Int64Type, UInt8Type};
use feedline_data::schema::{ColumnType, Schema};
use serde_json::json;

use super::*;
use crate::testing::{array, arrow, build, chunk, run, tensor};

fn cast(column_type: ColumnType, column: Column, dtype: &str) -> Chunk {
    let schema = Schema::new([("x", column_type)]);
    let operators = build(&schema, vec![json!({"cast": {"column": "x", "dtype": dtype}})]);
    let mut chunk = chunk([("x", column)]);
    run(&operators, &mut chunk);
    chunk
}

#[test]
fn scalars_change_type_and_values_out_of_range_fail_their_row() {
    let numbers = Int64Array::from(vec![Some(1), Some(300), None, Some(255)]);
    let chunk = cast(ColumnType::Scalar(ScalarType::Int64), arrow(numbers), "uint8");
    let out = array(&chunk, "x").as_primitive::<UInt8Type>();
    assert_eq!(out.iter().collect::<Vec<_>>(), [Some(1), None, None, Some(255)]);
    assert_eq!(chunk.failures, [(1, "column `x`: cannot cast 300 to uint8".to_owned())]);
    let floats = Float64Array::from(vec![2.9, -2.9, f64::NAN]);
    let chunk = cast(ColumnType::Scalar(ScalarType::Float64), arrow(floats), "int32");
    assert_eq!(array(&chunk, "x").as_primitive::<Int32Type>().values()[..2], [2, -2]);
    assert_eq!(chunk.failures, [(2, "column `x`: cannot cast NaN to int32".to_owned())]);
}

#[test]
fn text_becomes_numbers_and_invalid_text_fails_its_row() {
    for column in [
        arrow(StringViewArray::from(vec!["12", "cat", "-3"])),
        arrow(StringArray::from(vec!["12", "cat", "-3"])),
    ] {
        let chunk = cast(ColumnType::Utf8, column, "int64");
        assert_eq!(
            array(&chunk, "x").as_primitive::<Int64Type>().iter().collect::<Vec<_>>(),
            [Some(12), None, Some(-3)]
        );
        assert_eq!(chunk.failures, [(1, "column `x`: cannot cast \"cat\" to int64".to_owned())]);
    }
    for dtype in ["float16", "float32", "float64", "bool", "uint8"] {
        let chunk = cast(ColumnType::Utf8, arrow(StringViewArray::from(vec!["1"])), dtype);
        assert!(chunk.failures.is_empty() && array(&chunk, "x").is_valid(0), "{dtype}");
    }
}

#[test]
fn numbers_that_would_become_infinite_fail_their_row() {
    let failures =
        |column_type: ColumnType, column: Column, dtype: &str| cast(column_type, column, dtype).failures;
    let failure =
        |row: u32, value: &str, dtype: &str| (row, format!("column `x`: cannot cast {value} to {dtype}"));
    let floats = || arrow(Float64Array::from(vec![1e300, f64::INFINITY, 2.5, -1e39]));
    let float64 = ColumnType::Scalar(ScalarType::Float64);
    assert_eq!(
        failures(float64.clone(), floats(), "float32"),
        [failure(0, "1e300", "float32"), failure(3, "-1e39", "float32")]
    );
    assert_eq!(failures(float64, floats(), "float64"), []);
    let integers = arrow(Int64Array::from(vec![70_000, 65_504]));
    let int64 = ColumnType::Scalar(ScalarType::Int64);
    assert_eq!(failures(int64, integers, "float16"), [failure(0, "70000", "float16")]);
    let texts = arrow(StringViewArray::from(vec!["1e400", "inf", "1e30"]));
    assert_eq!(failures(ColumnType::Utf8, texts, "float64"), [failure(0, "\"1e400\"", "float64")]);
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([
        Some(vec![Some(1.0), Some(f64::INFINITY)]),
        Some(vec![Some(1e300)]),
    ]);
    let list_type = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Float64)));
    assert_eq!(failures(list_type, arrow(lists), "float32"), [failure(1, "an element", "float32")]);
    let rows = [1e300_f64, f64::INFINITY, 2.5].map(f64::to_ne_bytes);
    let tensor = tensor_of(ScalarType::Float64, 3, &rows);
    let tensor_type = ColumnType::Tensor { scalar: ScalarType::Float64, shape: vec![1] };
    assert_eq!(
        failures(tensor_type, Column::Tensor(tensor), "float32"),
        [(0, "column `x`: a value is out of range for float32".to_owned())]
    );
}

#[test]
fn each_element_of_a_list_is_cast() {
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>([
        Some(vec![Some(1), Some(2)]),
        None,
        Some(vec![Some(1 << 40)]),
    ]);
    let list_type = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int64)));
    let chunk = cast(list_type.clone(), arrow(lists.clone()), "int32");
    let out = array(&chunk, "x").as_list::<i32>();
    assert_eq!(out.value(0).as_primitive::<Int32Type>().values()[..], [1, 2]);
    assert_eq!(chunk.failures, [(2, "column `x`: cannot cast an element to int32".to_owned())]);
    let chunk = cast(list_type, arrow(lists), "float32");
    assert_eq!(
        array(&chunk, "x").as_list::<i32>().value(2).as_primitive::<Float32Type>().value(0),
        (1u64 << 40) as f32
    );
}

fn tensor_of<const N: usize>(scalar: ScalarType, rows: usize, elements: &[[u8; N]]) -> Tensor {
    let shape = vec![(elements.len() / rows) as u32];
    Tensor { scalar, shape, data: elements.as_flattened().into(), rows }
}

#[test]
fn tensors_are_cast_to_new_storage_and_values_out_of_range_fail_their_row() {
    let elements = [1.0f32, -1.5, 255.9, 300.0].map(f32::to_ne_bytes);
    let floats = tensor_of(ScalarType::Float32, 2, &elements);
    let of_type = ColumnType::Tensor { scalar: ScalarType::Float32, shape: vec![2] };
    let chunk = cast(of_type.clone(), Column::Tensor(floats.clone()), "int8");
    assert_eq!(tensor(&chunk, "x").row(0), [1, 255], "-1 as one byte");
    assert_eq!(tensor(&chunk, "x").row(1), [0, 0]);
    assert_eq!(chunk.failures, [(1, "column `x`: a value is out of range for int8".to_owned())]);
    let schema = Schema::new([("x", of_type)]);
    let built = build(&schema, vec![json!({"cast": {"column": "x", "dtype": "float64"}})]);
    assert_eq!(built[0].written_column.as_deref(), Some("x"));
}

#[test]
fn every_pair_of_element_types_preserves_small_numbers() {
    for from in ScalarType::ALL {
        for to in ScalarType::ALL {
            let mut source = vec![0; 2 * from.width_bytes()];
            assert!(convert(ScalarType::UInt8, from, &[0, 1], &mut source));
            let mut out = vec![0; 2 * to.width_bytes()];
            assert!(convert(from, to, &source, &mut out));
            let mut back = vec![9; 2];
            assert!(convert(to, ScalarType::UInt8, &out, &mut back));
            assert_eq!(back, [0, 1], "{from:?} -> {to:?}");
        }
    }
}

#[test]
fn float16_is_rounded_once() {
    let value = 1.0 + 2.0_f64.powi(-11) + 2.0_f64.powi(-30);
    let chunk =
        cast(ColumnType::Scalar(ScalarType::Float64), arrow(Float64Array::from(vec![value, 1e5])), "float16");
    let out = array(&chunk, "x").as_primitive::<Float16Type>();
    assert_eq!(out.value(0).to_f64(), 1.0 + 2.0_f64.powi(-10));
    assert_eq!(chunk.failures, [(1, "column `x`: cannot cast 100000.0 to float16".to_owned())]);
    let lists = ListArray::from_iter_primitive::<Float64Type, _, _>([Some([Some(value), None])]);
    let lists_of_doubles = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Float64)));
    let chunk = cast(lists_of_doubles, arrow(lists), "float16");
    let out = array(&chunk, "x").as_list::<i32>().values().clone();
    assert_eq!(out.as_primitive::<Float16Type>().value(0).to_f64(), 1.0 + 2.0_f64.powi(-10));
}
