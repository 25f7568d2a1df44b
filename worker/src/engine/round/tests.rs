//! Columns of steps.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray};
use arrow::datatypes::{DataType, Field, Int32Type};

use super::columns::{Filler, lengths, packed_columns};

fn lists(rows: &[&[i32]]) -> ListArray {
    ListArray::from_iter_primitive::<Int32Type, _, _>(
        rows.iter().map(|row| Some(row.iter().map(|&number| Some(number)))),
    )
}

fn item(nullable: bool) -> Arc<Field> {
    Arc::new(Field::new("item", DataType::Int32, nullable))
}

fn ints(array: &dyn Array) -> Vec<i32> {
    array.as_primitive::<Int32Type>().values().to_vec()
}

#[test]
fn lists_of_a_batch_are_filled_to_one_length() {
    let list = lists(&[&[1, 2, 3], &[4], &[], &[5, 6]]);
    let columns = vec![("tokens".to_owned(), Arc::new(list.clone()) as ArrayRef)];
    let lengths = lengths(&columns, &["tokens".to_owned()]).expect("it holds lists");
    assert_eq!(lengths, [3, 1, 0, 2]);
    let filler = Filler::new(&list, &lengths, (0, 1), (-7, &item(true))).expect("numbers");
    let filled = filler.lists(&[3, 0, 2], Some(4)).expect("they fit");
    assert_eq!(ints(filled.values()), [5, 6, -7, -7, 1, 2, 3, -7, -7, -7, -7, -7]);
    assert_eq!(filled.value_offsets(), [0, 4, 8, 12]);
    let plain = filler.lists(&[3, 1], None).expect("as they are");
    assert_eq!((ints(plain.values()), plain.value_offsets()), (vec![5, 6, 4], &[0, 2, 3][..]));
}

#[test]
fn a_slice_of_lists_is_read_where_it_lies_and_null_rows_are_empty() {
    let list = ListArray::from_iter_primitive::<Int32Type, _, _>([
        Some(vec![Some(9)]),
        None,
        Some(vec![Some(1), None]),
    ])
    .slice(1, 2);
    let columns = vec![("t".to_owned(), Arc::new(list.clone()) as ArrayRef)];
    let lengths = lengths(&columns, &["t".to_owned()]).expect("it holds lists");
    let filler = Filler::new(&list, &lengths, (0, 1), (0, &item(true))).expect("numbers");
    let filled = filler.lists(&[1, 0], Some(2)).expect("they fit");
    assert_eq!(ints(filled.values()), [1, 0, 0, 0]);
    assert_eq!(filled.values().null_count(), 0);
}

#[test]
fn packed_rows_say_which_row_each_element_belongs_to_and_its_place() {
    let list = lists(&[&[11, 12], &[21, 22, 23], &[31]]);
    // The second row is cut to two elements.
    let filler = Filler::new(&list, &[2, 2, 1], (0, 1), (0, &item(false))).expect("numbers");
    let packed = packed_columns(&[filler], &[vec![0, 2], vec![1]], 4).expect("they fit");
    let values = |place: usize| ints(packed[place].as_fixed_size_list().values());
    assert_eq!(values(0), [11, 12, 31, 0, 21, 22, 0, 0]);
    assert_eq!(values(1), [1, 1, 2, 0, 1, 1, 0, 0]);
    assert_eq!(values(2), [0, 1, 0, 0, 0, 1, 0, 0]);
}
