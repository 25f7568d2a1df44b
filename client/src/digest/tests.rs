//! Digests depend only on values.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, LargeBinaryArray, ListArray,
    StringArray, StructArray, UInt8Array, UInt32Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat_batches;
use arrow::datatypes::{Field, Float32Type, Int32Type};

use super::*;

/// Columns of every kind; rows 3 and 5 of some are null.
fn batch() -> RecordBatch {
    let pixels = UInt8Array::from_iter_values((0..8 * 6).map(|value| (value * 7) as u8));
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let tensor = FixedSizeListArray::new(item, 6, Arc::new(pixels), None);
    let texts = ["a", "", "bcd", "x", "ef", "x", "g", "hij"];
    let text: StringArray =
        texts.iter().enumerate().map(|(row, text)| (row != 3 && row != 5).then_some(*text)).collect();
    let bytes: LargeBinaryArray = texts.iter().map(|text| Some(text.as_bytes())).collect();
    let truth: BooleanArray = (0..8).map(|row| (row != 5).then_some(row % 3 == 0)).collect();
    let list: ListArray = ListArray::from_iter_primitive::<Int32Type, _, _>(
        (0..8).map(|row| (row != 3).then(|| (0..row).map(Some).collect::<Vec<_>>())),
    );
    let number = Int64Array::from_iter_values(0..8);
    let float: Float32Array = (0..8).map(|row| (row != 5).then_some(row as f32)).collect::<Float32Array>();
    let inner = StructArray::from(vec![(
        Arc::new(Field::new("f", DataType::Float32, true)),
        Arc::new(float) as ArrayRef,
    )]);
    let columns: [(&str, ArrayRef); 7] = [
        ("tensor", Arc::new(tensor)),
        ("text", Arc::new(text)),
        ("bytes", Arc::new(bytes)),
        ("truth", Arc::new(truth)),
        ("list", Arc::new(list)),
        ("number", Arc::new(number)),
        ("inner", Arc::new(inner)),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn stream_of(batch: &RecordBatch) -> String {
    let mut digest = StreamDigest::default();
    digest.add(batch);
    digest.to_hex()
}

fn content_of<'a>(batches: impl IntoIterator<Item = &'a RecordBatch>) -> String {
    let mut digest = ContentDigest::default();
    batches.into_iter().for_each(|batch| digest.add(batch));
    digest.to_hex()
}

#[test]
fn a_slice_and_its_copy_have_the_same_digest() {
    let whole = batch();
    for start in 0..8 {
        for len in 0..=8 - start {
            let slice = whole.slice(start, len);
            let copy = concat_batches(
                &slice.schema(),
                [&slice.slice(0, len / 2), &slice.slice(len / 2, len - len / 2)],
            );
            assert_eq!(stream_of(&slice), stream_of(&copy.unwrap()), "{start}, {len}");
        }
    }
}

#[test]
fn every_row_and_column_changes_the_digest() {
    let whole = batch();
    let mut seen = std::collections::BTreeSet::new();
    for row in 0..8 {
        let rest = [whole.slice(0, row), whole.slice(row + 1, 7 - row)];
        assert!(seen.insert(stream_of(&concat_batches(&whole.schema(), &rest).unwrap())));
    }
    for column in 0..whole.num_columns() {
        let mut fewer = whole.clone();
        fewer.remove_column(column);
        assert!(seen.insert(stream_of(&fewer)));
    }
}

#[test]
fn only_the_stream_digest_depends_on_order_and_batches() {
    let whole = batch();
    let (first, second) = (whole.slice(0, 3), whole.slice(3, 5));
    let chain = |batches: [&RecordBatch; 2]| {
        let mut digest = StreamDigest::default();
        batches.into_iter().for_each(|batch| digest.add(batch));
        digest.to_hex()
    };
    assert_ne!(chain([&first, &second]), chain([&second, &first]));
    assert_ne!(chain([&first, &second]), stream_of(&whole));
    assert_eq!(content_of([&second, &first]), content_of([&whole]));
    assert_ne!(content_of([&whole, &first]), content_of([&whole]), "a repeated row counts twice");
}

#[test]
fn digests_resume_from_their_text_form() {
    let (whole, part) = (batch(), batch().slice(2, 3));
    let mut stream = StreamDigest::default();
    stream.add(&whole);
    let mut restored = StreamDigest::from_hex(&stream.to_hex()).unwrap();
    stream.add(&part);
    restored.add(&part);
    assert_eq!(stream, restored);
    assert_ne!(combine([&stream, &StreamDigest::default()]), combine([&StreamDigest::default(), &stream]));
    let mut content = ContentDigest::default();
    content.add(&whole);
    let mut other = ContentDigest::default();
    other.add(&part);
    let mut merged = ContentDigest::from_hex(&content.to_hex()).unwrap();
    merged.merge(&other);
    content.add(&part);
    assert_eq!((merged.rows(), &merged), (11, &content));
    for text in ["", "xyz", "0123456789abcdef"] {
        StreamDigest::from_hex(text).unwrap_err();
        ContentDigest::from_hex(text).unwrap_err();
    }
}

#[test]
fn values_under_nulls_do_not_count() {
    let field = |values: Vec<f32>| {
        let nulls = arrow::buffer::NullBuffer::from(vec![true, false, true]);
        let column = arrow::array::PrimitiveArray::<Float32Type>::new(values.into(), Some(nulls));
        RecordBatch::try_from_iter_with_nullable([("x", Arc::new(column) as ArrayRef, true)]).unwrap()
    };
    assert_eq!(stream_of(&field(vec![1.0, 2.0, 3.0])), stream_of(&field(vec![1.0, 9.0, 3.0])));
    assert_ne!(stream_of(&field(vec![1.0, 2.0, 3.0])), stream_of(&field(vec![1.0, 2.0, 4.0])));
}

/// A sampled graph as one row of lists: node ids, and a feature with two numbers per node.
fn graph(ids: &[u32], values: &[u8], nodes_of_first: usize) -> RecordBatch {
    let item = |data_type| Arc::new(Field::new("item", data_type, false));
    let offsets = OffsetBuffer::from_lengths([nodes_of_first, ids.len() - nodes_of_first]);
    let ids = ListArray::new(
        item(DataType::UInt32),
        offsets.clone(),
        Arc::new(UInt32Array::from(ids.to_vec())),
        None,
    );
    let rows =
        FixedSizeListArray::new(item(DataType::UInt8), 2, Arc::new(UInt8Array::from(values.to_vec())), None);
    let features = ListArray::new(item(rows.data_type().clone()), offsets, Arc::new(rows), None);
    let columns: [(&str, ArrayRef); 2] = [("n_id", Arc::new(ids)), ("x", Arc::new(features))];
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn every_value_of_a_sampled_graph_changes_the_digest() {
    let (ids, values) = ([7, 3, 9], [1, 2, 3, 4, 5, 6]);
    let whole = graph(&ids, &values, 3).slice(0, 1);
    assert_eq!(stream_of(&graph(&[1, 7, 3, 9], &[0, 0, 1, 2, 3, 4, 5, 6], 1).slice(1, 1)), stream_of(&whole));
    let mut seen = std::collections::BTreeSet::from([stream_of(&whole)]);
    for index in 0..3 {
        let mut other = ids;
        other[index] += 1;
        assert!(seen.insert(stream_of(&graph(&other, &values, 3).slice(0, 1))));
    }
    for index in 0..6 {
        let mut other = values;
        other[index] += 10;
        assert!(seen.insert(stream_of(&graph(&ids, &other, 3).slice(0, 1))));
    }
    assert!(seen.insert(stream_of(&graph(&ids[..2], &values[..4], 2).slice(0, 1))));
    assert_ne!(content_of([&whole]), content_of([&graph(&ids, &values, 2).slice(0, 1)]));
}
