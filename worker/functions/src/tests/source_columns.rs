//! Functions receive the columns of a source, also with nulls: tensors, lists of tensors, and slices of them.

use arrow::array::{BooleanArray, FixedSizeListArray, Float32Array, UInt8Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::Field as ArrowField;

use super::*;

/// Tensors with two elements.
fn tensors(values: ArrayRef, nulls: Option<Vec<bool>>) -> ArrayRef {
    let item = Arc::new(ArrowField::new_list_field(values.data_type().clone(), true));
    Arc::new(FixedSizeListArray::new(item, 2, values, nulls.map(NullBuffer::from)))
}

/// Lists with these lengths.
fn lists(values: ArrayRef, lengths: &[usize], nulls: Option<Vec<bool>>) -> ArrayRef {
    let item = Arc::new(ArrowField::new_list_field(values.data_type().clone(), true));
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    Arc::new(ListArray::new(item, offsets, values, nulls.map(NullBuffer::from)))
}

fn tensor_type(scalar: ScalarType) -> ColumnType {
    ColumnType::Tensor { scalar, shape: vec![2] }
}

/// What the function receives for each row, and the failed rows.
fn seen(scene: &Scene, column_type: ColumnType, values: ArrayRef) -> (Vec<String>, Vec<(u32, String)>) {
    let rows = values.len() as u64;
    let chunk = Chunk::new(
        vec![("x".to_owned(), Column::Arrow(values))],
        (0..rows).collect(),
        vec![0; rows as usize],
    );
    let mut function = scene.function("describe");
    function.outputs = [("seen".to_owned(), FunctionOutput::element(ElementType::Text))].into();
    let inputs = [Field { name: "x".to_owned(), column_type }];
    let chunk = scene.run(function, &inputs, chunk).unwrap().chunk;
    let texts = array(&chunk, "seen").as_string_view().iter().flatten().map(str::to_owned).collect();
    (texts, chunk.failures)
}

#[test]
fn tensors_of_a_source_arrive_with_nan_or_fail_their_row() {
    let Some(scene) = Scene::new() else { return };
    let floats = Float32Array::from(vec![
        Some(9.0),
        None,
        Some(1.0),
        Some(2.0),
        Some(3.0),
        None,
        Some(8.0),
        Some(8.0),
    ]);
    let floats = tensors(Arc::new(floats), Some(vec![true, true, true, false])).slice(1, 3);
    let (texts, failures) = seen(&scene, tensor_type(ScalarType::Float32), floats);
    assert_eq!(texts, ["x=[1.0, 2.0]", "x=[3.0, nan]", "x=[nan, nan]"]);
    assert_eq!(failures, []);

    let truths = BooleanArray::from(vec![Some(true), Some(true), Some(false), Some(true), None, Some(true)]);
    let truths = tensors(Arc::new(truths), None).slice(1, 2);
    let (texts, failures) = seen(&scene, tensor_type(ScalarType::Bool), truths);
    assert_eq!(texts, ["x=[False, True]", ""]);
    let reason = "column `x` is null, which bool cannot represent; remove these rows with a filter or `on_error: skip`";
    assert_eq!(failures, [(1, reason.to_owned())]);
}

#[test]
fn lists_of_a_source_arrive_with_their_nulls() {
    let Some(scene) = Scene::new() else { return };
    let list = |inner| ColumnType::List(Box::new(inner));
    let vectors = tensors(Arc::new(UInt8Array::from_iter_values(0..8)), None);
    let (texts, failures) =
        seen(&scene, list(tensor_type(ScalarType::UInt8)), lists(vectors, &[0, 1, 2, 1], None).slice(1, 2));
    assert_eq!(texts, ["x=[[0, 1]]", "x=[[2, 3], [4, 5]]"]);
    assert_eq!(failures, []);

    let vectors = tensors(Arc::new(UInt8Array::from_iter_values(0..6)), Some(vec![true, false, false]));
    let (texts, failures) = seen(
        &scene,
        list(tensor_type(ScalarType::UInt8)),
        lists(vectors, &[1, 1, 1], Some(vec![true, true, false])),
    );
    assert_eq!(texts, ["x=[[0, 1]]", "", "x=None"], "the elements of a null list do not count");
    assert!(matches!(&failures[..], [(1, reason)] if reason.contains("column `x` is null")), "{failures:?}");
}
