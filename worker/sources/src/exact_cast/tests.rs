//! Tests of casts: every value is exact, or its row is listed.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, Float64Array, Int32Array, Int64Array, ListArray,
    UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Field, Float64Type};
use proptest::prelude::*;

use super::*;

fn rows_of(inexact: &[InexactRow]) -> Vec<usize> {
    inexact.iter().map(|inexact| inexact.row).collect()
}

fn list_of(data_type: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", data_type, true)))
}

fn integers() -> impl Strategy<Value = Option<i64>> {
    let edge = 1_i64 << 53;
    prop_oneof![
        Just(None),
        (-3..3_i64).prop_map(Some),
        (edge - 3..edge + 3).prop_map(Some),
        any::<i64>().prop_map(Some)
    ]
}

proptest! {
    #[test]
    fn every_value_is_exact_or_its_row_is_listed(
        values in prop::collection::vec(integers(), 0..20), start in 0usize..4, lengths in prop::collection::vec(0usize..4, 0..8),
    ) {
        let column: ArrayRef = Arc::new(Int64Array::from(values.clone()));
        let (cast, inexact) = cast_exact(&column, &DataType::Float64).unwrap();
        let cast = cast.as_primitive::<Float64Type>();
        for (row, value) in values.iter().enumerate() {
            let is_listed = rows_of(&inexact).contains(&row);
            match value {
                Some(value) if *value as f64 as i128 == i128::from(*value) => {
                    prop_assert_eq!((cast.value(row) as i64, is_listed), (*value, false));
                }
                Some(_) => prop_assert!(cast.is_null(row) && is_listed),
                None => prop_assert!(cast.is_null(row) && !is_listed),
            }
        }
        // Lists of these values, also sliced.
        let mut lengths = lengths;
        while lengths.iter().sum::<usize>() > values.len() {
            lengths.pop();
        }
        let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
        let item = Arc::new(Field::new("item", DataType::Int64, true));
        let list = ListArray::new(item, offsets.clone(), column, None);
        let start = start.min(list.len());
        let sliced: ArrayRef = Arc::new(list.slice(start, list.len() - start));
        let (cast, inexact) = cast_exact(&sliced, &list_of(DataType::Float64)).unwrap();
        let expected: Vec<usize> = (start..list.len()).filter(|&row| {
            let of_row = &values[offsets[row] as usize..offsets[row + 1] as usize];
            of_row.iter().flatten().any(|value| *value as f64 as i128 != i128::from(*value))
        }).map(|row| row - start).collect();
        prop_assert_eq!(rows_of(&inexact), expected.clone());
        for row in 0..cast.len() {
            prop_assert_eq!(cast.is_null(row), expected.contains(&row));
        }
    }
}

#[test]
fn negative_integers_do_not_become_unsigned() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(-1), None]));
    let (cast, inexact) = cast_exact(&column, &DataType::UInt64).unwrap();
    assert_eq!(cast.as_primitive::<UInt64Type>(), &UInt64Array::from(vec![Some(1), None, None]));
    assert_eq!(inexact, [InexactRow { row: 1, reason: "uint64 does not represent -1 exactly".to_owned() }]);
}

#[test]
fn the_rows_of_vectors_and_of_single_values_in_lists_are_listed() {
    let values: ArrayRef = Arc::new(UInt64Array::from(vec![1, 2, u64::MAX, 4, 5, 6]));
    let item = Arc::new(Field::new("item", DataType::UInt64, true));
    let vectors: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, values.clone(), None));
    let wanted = DataType::FixedSizeList(Arc::new(Field::new("item", DataType::Float64, true)), 2);
    let (cast, inexact) = cast_exact(&vectors, &wanted).unwrap();
    assert_eq!(rows_of(&inexact), [1]);
    assert_eq!((0..3).map(|row| cast.is_null(row)).collect::<Vec<_>>(), [false, true, false]);
    let sliced = vectors.slice(1, 2);
    assert_eq!(rows_of(&cast_exact(&sliced, &wanted).unwrap().1), [0]);
    let (lists, inexact) = cast_exact(&values, &list_of(DataType::Float64)).unwrap();
    assert_eq!(rows_of(&inexact), [2]);
    assert_eq!(lists.as_list::<i32>().value(5).as_primitive::<Float64Type>(), &Float64Array::from(vec![6.0]));
}

#[test]
fn missing_single_values_become_missing_lists() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let (lists, inexact) = cast_exact(&column, &list_of(DataType::Int64)).unwrap();
    assert!(inexact.is_empty() && lists.is_valid(0) && lists.is_null(1));
}

#[test]
fn dictionaries_in_lists_are_exact() {
    let keys = Int32Array::from(vec![0, 1]);
    let values = Arc::new(Int64Array::from(vec![1, (1 << 53) + 1]));
    let dictionary = Arc::new(DictionaryArray::new(keys, values));
    let item = Arc::new(Field::new("item", dictionary.data_type().clone(), true));
    let lists: ArrayRef =
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([1, 1]), dictionary, None));
    let (_, inexact) = cast_exact(&lists, &list_of(DataType::Float64)).unwrap();
    assert_eq!(rows_of(&inexact), [1]);
}
