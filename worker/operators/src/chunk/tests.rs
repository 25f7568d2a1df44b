//! Tests of removing rows from a chunk, and of failed rows.

use arrow::array::{AsArray, Int64Array, ListArray, StringViewArray};
use arrow::datatypes::{Int32Type, Int64Type};

use super::*;
use crate::testing::{array, arrow, chunk, pixels, tensor};

fn mixed() -> Chunk {
    let lists = [Some(vec![Some(1)]), None, Some(vec![Some(2), Some(3)]), Some(vec![])];
    let images = (0..4)
        .map(|row| Image { width: row, height: 1, data: vec![row as u8; row as usize * 3].into() })
        .collect();
    chunk([
        ("number", arrow(Int64Array::from(vec![Some(10), None, Some(12), Some(13)]))),
        ("text", arrow(StringViewArray::from(vec!["a", "bb", "a text of more than twelve bytes", "d"]))),
        ("list", arrow(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))),
        ("image", Column::Images(images)),
        ("tensor", pixels(&[2], &[0, 1, 10, 11, 20, 21, 30, 31])),
    ])
}

#[test]
fn retain_compacts_every_kind_of_column() {
    let mut chunk = mixed();
    chunk.passes = vec![5, 6, 7, 8];
    let storage = tensor(&chunk, "tensor").data.as_ptr();
    chunk.retain(&[false, true, true, false]);
    assert_eq!(
        (chunk.rows(), &chunk.row_ids[..], &chunk.passes[..], &chunk.origins[..]),
        (2, &[1, 2][..], &[6, 7][..], &[1, 2][..])
    );
    assert_eq!(array(&chunk, "number").as_primitive::<Int64Type>(), &Int64Array::from(vec![None, Some(12)]));
    assert_eq!(array(&chunk, "text").as_string_view().value(1), "a text of more than twelve bytes");
    assert!(array(&chunk, "list").is_null(0));
    assert_eq!(array(&chunk, "list").as_list::<i32>().value_length(1), 2);
    let Some(Column::Images(images)) = chunk.column("image") else { panic!("images stay images") };
    assert_eq!(images.iter().map(|image| image.width).collect::<Vec<_>>(), [1, 2]);
    let tensor = tensor(&chunk, "tensor");
    assert_eq!((tensor.rows, tensor.row(0), tensor.row(1)), (2, &[10, 11][..], &[20, 21][..]));
    assert_eq!((tensor.data.len(), tensor.data.as_ptr()), (8, storage), "the storage is unchanged");
    chunk.retain(&[false, true]);
    assert_eq!((chunk.rows(), &chunk.origins[..]), (1, &[2][..]));
}

#[test]
fn retain_can_keep_all_rows_or_none() {
    let mut chunk = mixed();
    chunk.retain(&[true; 4]);
    assert_eq!(chunk.rows(), 4);
    chunk.retain(&[false; 4]);
    assert_eq!(chunk.rows(), 0);
    assert!(chunk.columns.iter().all(|(_, column)| column.rows() == 0));
    chunk.retain(&[]);
}

#[test]
fn a_row_fails_once_and_is_identified_by_its_origin() {
    let mut chunk = mixed();
    chunk.retain(&[false, true, true, true]);
    chunk.fail(1, "first");
    chunk.fail(1, "second");
    assert_eq!(chunk.failures, [(2, "first".to_owned())]);
    let failed = chunk.failed_rows();
    assert_eq!([0, 1, 2].map(|row| failed.contains(row)), [false, true, false]);
}
