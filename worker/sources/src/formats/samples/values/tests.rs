//! Tests of values of samples.

use arrow::array::RecordBatch;

use super::*;
use crate::testing::lines;

/// The rows of a column, and those with values that its type does not represent.
fn finished(column: ArrayColumn) -> (Vec<String>, Vec<usize>) {
    let (array, inexact) = column.finish().unwrap();
    let rows = lines(&RecordBatch::try_from_iter([("a", array)]).unwrap());
    (rows, inexact.into_iter().map(|found| found.row).collect())
}

fn shown(column: ArrayColumn) -> Vec<String> {
    let (rows, inexact) = finished(column);
    assert!(inexact.is_empty(), "{inexact:?}");
    rows
}

fn array<'a>(scalar: ScalarType, shape: &[u64], elements: &'a [u8]) -> Array<'a> {
    Array { scalar, shape: shape.to_vec(), elements }
}

fn list_of(item: ColumnType) -> ColumnType {
    ColumnType::List(Box::new(item))
}

#[test]
fn nested_lists_and_nulls_are_kept() {
    let mut column = ArrayColumn::new(&list_of(list_of(ColumnType::Scalar(ScalarType::Bool))));
    let array = |shape: &[u64], elements| Array { scalar: ScalarType::Bool, shape: shape.to_vec(), elements };
    column.append(&array(&[2, 1], &[1, 0])).unwrap();
    column.append_null();
    assert!(column.append(&array(&[2], &[1, 0])).unwrap_err().contains("2 axes"));
    let other = Array { scalar: ScalarType::Int8, shape: vec![1, 1], elements: &[1] };
    assert!(column.append(&other).unwrap_err().contains("int8"));
    column.append(&array(&[0, 3], &[])).unwrap();
    column.append(&array(&[1, 3], &[1, 1, 0])).unwrap();
    assert_eq!(shown(column), ["[[true],[false]]", "null", "[]", "[[true,true,false]]"]);
}

#[test]
fn null_rows_of_tensors_are_filled() {
    let tensor = ColumnType::Tensor { scalar: ScalarType::Bool, shape: vec![2] };
    let mut column = ArrayColumn::new(&tensor);
    column.append_null();
    column.append(&Array { scalar: ScalarType::Bool, shape: vec![2], elements: &[1, 0] }).unwrap();
    assert!(column.append(&Array { scalar: ScalarType::Bool, shape: vec![1], elements: &[1] }).is_err());
    assert_eq!(shown(column), ["null", "[true,false]"]);
    let column = ArrayColumn::new(&tensor);
    assert_eq!(shown(column), [""; 0]);
}

#[test]
fn values_of_other_dtypes_are_widened_or_rejected() {
    let mut column = ArrayColumn::new(&list_of(ColumnType::Scalar(ScalarType::Int32)));
    // The first value of a block may have another dtype than the column.
    let error = column.append(&array(ScalarType::Float64, &[1], &2.5_f64.to_le_bytes())).unwrap_err();
    assert_eq!(error, "the value has the dtype float64, but the column is list of int32");
    column.append_null();
    column.append(&array(ScalarType::Int16, &[1], &(-7_i16).to_le_bytes())).unwrap();
    column.append(&array(ScalarType::Int32, &[1], &8_i32.to_le_bytes())).unwrap();
    assert!(column.append(&array(ScalarType::UInt32, &[1], &9_u32.to_le_bytes())).is_err());
    assert!(column.append(&array(ScalarType::Int64, &[1], &9_i64.to_le_bytes())).is_err());
    column.append_null();
    column.append(&array(ScalarType::UInt8, &[1], &[255])).unwrap();
    assert_eq!(shown(column), ["null", "[-7]", "[8]", "null", "[255]"]);

    let mut column = ArrayColumn::new(&list_of(ColumnType::Scalar(ScalarType::Float32)));
    assert!(column.append(&array(ScalarType::Float64, &[1], &0.1_f64.to_le_bytes())).is_err());
    assert!(column.append(&array(ScalarType::Bool, &[1], &[1])).is_err());
    let mut column = ArrayColumn::new(&list_of(ColumnType::Utf8));
    assert!(column.append(&array(ScalarType::Int32, &[1], &8_i32.to_le_bytes())).is_err());
    column.append_null();
    assert_eq!(shown(column), ["null"]);
}

#[test]
fn integers_that_the_dtype_of_the_column_does_not_represent_are_listed() {
    const LARGE: i64 = (1 << 53) + 1;
    let mut column = ArrayColumn::new(&ColumnType::Scalar(ScalarType::Float64));
    column.append(&array(ScalarType::Float32, &[], &0.5_f32.to_le_bytes())).unwrap();
    column.append(&array(ScalarType::Int64, &[], &3_i64.to_le_bytes())).unwrap();
    column.append(&array(ScalarType::Int64, &[], &LARGE.to_le_bytes())).unwrap();
    column.append(&array(ScalarType::Float64, &[], &2.5_f64.to_le_bytes())).unwrap();
    let rows = ["0.5", "3", "null", "2.5"].map(str::to_owned);
    assert_eq!(finished(column), (rows.to_vec(), vec![2]));

    let mut column = ArrayColumn::new(&ColumnType::Tensor { scalar: ScalarType::Float64, shape: vec![2] });
    for numbers in [[1, 2], [LARGE, 4]] {
        let elements = numbers.map(i64::to_le_bytes).concat();
        column.append(&array(ScalarType::Int64, &[2], &elements)).unwrap();
    }
    let elements = [0.5_f32, 6.0].map(f32::to_le_bytes).concat();
    column.append(&array(ScalarType::Float32, &[2], &elements)).unwrap();
    let rows = ["[1,2]", "null", "[0.5,6]"].map(str::to_owned);
    assert_eq!(finished(column), (rows.to_vec(), vec![1]));
}

#[test]
fn single_values_in_a_column_of_lists_are_lists_of_one_value() {
    let numbers = [1_i16, 2].map(i16::to_le_bytes).concat();
    let mut column = ArrayColumn::new(&list_of(ColumnType::Scalar(ScalarType::Int64)));
    column.append(&array(ScalarType::Int16, &[2], &numbers)).unwrap();
    column.append(&array(ScalarType::Int16, &[], &numbers[2..])).unwrap();
    let error = column.append(&array(ScalarType::Int16, &[], &numbers[..3])).unwrap_err();
    assert_eq!(error, "the value has 3 bytes of int16, but its type is list of int64");
    column.append_null();
    assert_eq!(shown(column), ["[1,2]", "[2]", "null"]);
    let mut column = ArrayColumn::new(&list_of(list_of(ColumnType::Scalar(ScalarType::Int16))));
    column.append(&array(ScalarType::Int16, &[], &numbers[2..])).unwrap();
    let error = column.append(&array(ScalarType::Int16, &[2], &numbers)).unwrap_err();
    assert_eq!(error, "the value has the shape [2], but the column has 2 axes");
    assert_eq!(shown(column), ["[[2]]"]);
}
