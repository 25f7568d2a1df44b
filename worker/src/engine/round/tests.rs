//! Columns of coordinated batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DataType, Field, Int32Type};

use super::columns::{ColumnPadding, ListFiller, list_lengths, packed_columns, rows_with_nulls};

fn lists(rows: &[&[i32]]) -> ListArray {
    ListArray::from_iter_primitive::<Int32Type, _, _>(
        rows.iter().map(|row| Some(row.iter().map(|&number| Some(number)))),
    )
}

/// The padding of a single column.
fn padding(value: i64, nullable: bool) -> ColumnPadding {
    let element = Arc::new(Field::new("item", DataType::Int32, nullable));
    ColumnPadding { element, value, column: 0, columns: 1 }
}

fn ints(array: &dyn Array) -> Vec<i32> {
    array.as_primitive::<Int32Type>().values().to_vec()
}

#[test]
fn lists_of_a_batch_are_padded_to_one_length() {
    let list = lists(&[&[1, 2, 3], &[4], &[], &[5, 6]]);
    let columns = vec![("tokens".to_owned(), Arc::new(list.clone()) as ArrayRef)];
    let lengths = list_lengths(&columns, &["tokens".to_owned()]).expect("the column contains lists");
    assert_eq!(lengths, [3, 1, 0, 2]);
    let filler = ListFiller::new(&list, &lengths, padding(-7, true)).expect("the elements are numbers");
    let padded = filler.lists(&[3, 0, 2], Some(4)).expect("the elements fit");
    assert_eq!(ints(padded.values()), [5, 6, -7, -7, 1, 2, 3, -7, -7, -7, -7, -7]);
    assert_eq!(padded.value_offsets(), [0, 4, 8, 12]);
    let plain = filler.lists(&[3, 1], None).expect("the lists keep their lengths");
    assert_eq!((ints(plain.values()), plain.value_offsets()), (vec![5, 6, 4], &[0, 2, 3][..]));
}

#[test]
fn a_slice_of_lists_is_read_at_its_offset_and_rows_with_nulls_are_found() {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![None]),
        None,
        Some(vec![Some(1), Some(2)]),
        Some(vec![Some(1), None]),
    ])
    .slice(1, 3);
    let columns = vec![("t".to_owned(), Arc::new(list.clone()) as ArrayRef)];
    let names = ["t".to_owned()];
    let found = rows_with_nulls(&columns, &names).expect("the column contains lists");
    let wanted = [(0, "column `t` is null"), (2, "column `t` contains a null element")];
    assert_eq!(found, wanted.map(|(row, reason)| (row, reason.to_owned())));
    let lengths = list_lengths(&columns, &names).expect("the column contains lists");
    assert_eq!(lengths, [0, 2, 2]);
    let filler = ListFiller::new(&list, &lengths, padding(0, true)).expect("the elements are numbers");
    let padded = filler.lists(&[1, 0], Some(3)).expect("the elements fit");
    assert_eq!(ints(padded.values()), [1, 2, 0, 0, 0, 0]);
}

#[test]
fn packed_rows_contain_the_input_row_and_the_index_of_each_element() {
    let list = lists(&[&[11, 12], &[21, 22, 23], &[31]]);
    // The second row is truncated to two elements.
    let filler = ListFiller::new(&list, &[2, 2, 1], padding(0, false)).expect("the elements are numbers");
    let packed = packed_columns(&[filler], &[vec![0, 2], vec![1]], 4).expect("the elements fit");
    let values = |column: usize| ints(packed[column].as_fixed_size_list().values());
    assert_eq!(values(0), [11, 12, 31, 0, 21, 22, 0, 0]);
    assert_eq!(values(1), [1, 1, 2, 0, 1, 1, 0, 0]);
    assert_eq!(values(2), [0, 1, 0, 0, 0, 1, 0, 0]);
}
