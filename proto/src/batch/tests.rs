//! Tests of round trips of random batches, and of malformed layouts.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeListArray, Float32Array,
    Int64Array, LargeStringArray, ListArray, ListBuilder, NullArray, RecordBatch, RecordBatchOptions,
    StringArray, StringViewArray, StringViewBuilder, StructArray, UInt8Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef, UInt8Type, UInt32Type};
use bytes::{Bytes, BytesMut};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use proptest::prelude::*;

use super::*;

/// A row of a random batch. All values may be null.
#[derive(Debug, Clone)]
struct Row {
    number: Option<i64>,
    truth: Option<bool>,
    text: Option<String>,
    bytes: Option<Vec<u8>>,
    list: Option<Vec<Option<String>>>,
}

fn row() -> impl Strategy<Value = Row> {
    let text = || proptest::option::of("[a-zé]{0,20}");
    let list = proptest::option::of(proptest::collection::vec(text(), 0..4));
    let bytes = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..30));
    (any::<Option<i64>>(), any::<Option<bool>>(), text(), bytes, list)
        .prop_map(|(number, truth, text, bytes, list)| Row { number, truth, text, bytes, list })
}

fn batch_of(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    RecordBatch::try_new(Arc::new(ArrowSchema::new(fields)), arrays).unwrap()
}

/// Lists of vectors with two booleans. Lists, vectors and booleans may be null.
fn vector_lists(rows: &[Row]) -> ListArray {
    let vectors = || rows.iter().flat_map(|row| row.list.iter().flatten().map(move |text| (text, row.truth)));
    let values: BooleanArray =
        vectors().flat_map(|(text, truth)| [text.as_ref().map(|text| text.len() > 5), truth]).collect();
    let item = Arc::new(Field::new("item", DataType::Boolean, true));
    let nulls: NullBuffer = vectors().map(|(text, _)| text.is_some()).collect();
    let vectors = FixedSizeListArray::new(item, 2, Arc::new(values), Some(nulls));
    let item = Arc::new(Field::new("item", vectors.data_type().clone(), true));
    let lengths = rows.iter().map(|row| row.list.as_ref().map_or(0, Vec::len));
    let nulls: NullBuffer = rows.iter().map(|row| row.list.is_some()).collect();
    ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(vectors), Some(nulls))
}

fn random_batch(rows: &[Row]) -> RecordBatch {
    let numbers: Int64Array = rows.iter().map(|row| row.number).collect();
    let texts: StringArray = rows.iter().map(|row| row.text.clone()).collect();
    let large: LargeStringArray = rows.iter().map(|row| row.text.clone()).collect();
    let views: StringViewArray = rows.iter().map(|row| row.text.clone()).collect();
    let bytes: BinaryArray = rows.iter().map(|row| row.bytes.as_deref()).collect();
    let byte_views: BinaryViewArray = rows.iter().map(|row| row.bytes.as_deref()).collect();
    let truths: BooleanArray = rows.iter().map(|row| row.truth).collect();
    let mut lists = ListBuilder::new(StringViewBuilder::new());
    for row in rows {
        lists.append_option(row.list.clone());
    }
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let nulls: NullBuffer = rows.iter().map(|row| row.truth.is_some()).collect();
    let pairs: Int64Array = rows.iter().flat_map(|row| [row.number, Some(7)]).collect();
    let fixed = FixedSizeListArray::new(item, 2, Arc::new(pairs), Some(nulls.clone()));
    let group = StructArray::new(
        vec![Field::new("a", DataType::Utf8View, true), Field::new("b", DataType::Boolean, true)].into(),
        vec![Arc::new(views.clone()), Arc::new(truths.clone())],
        Some(nulls),
    );
    batch_of(vec![
        ("numbers", Arc::new(numbers)),
        ("texts", Arc::new(texts)),
        ("large", Arc::new(large)),
        ("views", Arc::new(views)),
        ("bytes", Arc::new(bytes)),
        ("byte_views", Arc::new(byte_views)),
        ("truths", Arc::new(truths)),
        ("lists", Arc::new(lists.finish())),
        ("fixed", Arc::new(fixed)),
        ("group", Arc::new(group)),
        ("vectors", Arc::new(vector_lists(rows))),
        ("nothing", Arc::new(NullArray::new(rows.len()))),
    ])
}

/// The expected batch after a round trip: views become plain.
fn plain(batch: &RecordBatch) -> RecordBatch {
    let schema = plain_schema(&batch.schema());
    let columns = batch.columns().iter().zip(schema.fields());
    let columns =
        columns.map(|(array, field)| arrow::compute::cast(array, field.data_type()).unwrap()).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    RecordBatch::try_new_with_options(schema, columns, &options).unwrap()
}

fn round_trip(batch: &RecordBatch) {
    let (layout, data) = encode_batch(batch).unwrap();
    assert_eq!(layout.total_bytes, data.len() as u64);
    assert!(layout.buffers.iter().all(|(offset, _)| offset % ALIGNMENT_BYTES as u64 == 0));
    let decoded = decode_batch(&plain_schema(&batch.schema()), &layout, &data).unwrap();
    assert_eq!(decoded, plain(batch));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_decoded_batch_equals_the_encoded_batch(rows in proptest::collection::vec(row(), 0..40)) {
        round_trip(&random_batch(&rows));
    }

    #[test]
    fn a_decoded_slice_equals_the_encoded_slice(rows in proptest::collection::vec(row(), 1..40), cut in any::<(u8, u8)>()) {
        let start = usize::from(cut.0) % rows.len();
        let len = usize::from(cut.1) % (rows.len() - start + 1);
        round_trip(&random_batch(&rows).slice(start, len));
    }

    #[test]
    fn a_wrong_layout_is_an_error_or_a_batch(
        rows in proptest::collection::vec(row(), 0..10),
        place in any::<prop::sample::Index>(),
        value in prop_oneof![0..100_u64, Just(u64::MAX), Just(1 << 39), any::<u64>()],
        what in 0..6,
    ) {
        let batch = random_batch(&rows);
        let (mut layout, data) = encode_batch(&batch).unwrap();
        let node = place.index(layout.nodes.len());
        let buffer = place.index(layout.buffers.len());
        match what {
            0 => layout.nodes[node].0 = value,
            1 => layout.nodes[node].1 = value,
            2 => layout.buffers[buffer].0 = value,
            3 => layout.buffers[buffer].1 = value,
            4 => layout.buffers.truncate(buffer),
            _ => layout.nodes.truncate(node),
        }
        // A changed value may be valid by chance, but decoding must not panic.
        let decoded = decode_batch(&plain_schema(&batch.schema()), &layout, &data);
        prop_assert!(what < 4 || decoded.is_err());
    }

    #[test]
    fn corrupt_bytes_are_an_error_or_a_batch(
        rows in proptest::collection::vec(row(), 1..10),
        place in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let batch = random_batch(&rows);
        let (layout, data) = encode_batch(&batch).unwrap();
        let mut corrupt = data.to_vec();
        let place = place.index(corrupt.len());
        corrupt[place] = byte;
        // Corrupted values may form a valid batch of the same shape, but decoding must not panic.
        if let Ok(decoded) = decode_batch(&plain_schema(&batch.schema()), &layout, &corrupt.into()) {
            prop_assert_eq!(decoded.num_rows(), batch.num_rows());
        }
    }
}

#[test]
fn a_batch_without_rows_or_columns_is_encoded_and_decoded() {
    round_trip(&random_batch(&[]));
    let empty = RecordBatch::new_empty(Arc::new(ArrowSchema::empty()));
    round_trip(&empty);
}

#[test]
fn lists_of_lists_come_back() {
    let inner = ListArray::new(
        Arc::new(Field::new("item", DataType::Float32, false)),
        OffsetBuffer::new(vec![0, 2, 2, 3].into()),
        Arc::new(Float32Array::from(vec![1.0, 2.0, 3.0])),
        None,
    );
    let outer = ListArray::new(
        Arc::new(Field::new("item", inner.data_type().clone(), true)),
        OffsetBuffer::new(vec![0, 1, 3].into()),
        Arc::new(inner),
        None,
    );
    let batch = batch_of(vec![("nested", Arc::new(outer) as ArrayRef)]);
    round_trip(&batch);
    round_trip(&batch.slice(1, 1));
}

fn image_schema() -> SchemaRef {
    let image = ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![2, 2, 3] };
    let labels = ColumnType::Scalar(ScalarType::Int64);
    output_schema(&Schema::new([("image", image), ("label", labels), ("path", ColumnType::Utf8)]))
}

#[test]
fn in_place_and_appended_columns_form_one_batch() {
    let pixels: Vec<u8> = (0..36).collect();
    let mut out = BytesMut::from(pixels.as_slice());
    let mut encoder = BatchEncoder::new(3);
    encoder.push_in_place(0, 36, 12);
    encoder.push_array(&(Arc::new(Int64Array::from(vec![5, 6, 7])) as ArrayRef), &mut out).unwrap();
    encoder.push_array(&(Arc::new(StringArray::from(vec!["a", "b", "c"])) as ArrayRef), &mut out).unwrap();
    let layout = encoder.finish(&mut out);
    assert_eq!(layout.nodes, [(3, 0), (36, 0), (3, 0), (3, 0)]);
    let data = out.freeze();
    let batch = decode_batch(&image_schema(), &layout, &data).unwrap();
    let images = batch.column(0).as_any().downcast_ref::<FixedSizeListArray>().unwrap();
    let values = images.values().as_any().downcast_ref::<UInt8Array>().unwrap();
    assert_eq!(values.values().as_ref(), pixels.as_slice());
    assert_eq!(values.values().inner().as_ptr(), data.as_ptr(), "the pixels must not be copied");
    assert_eq!(batch.column(2).as_ref(), &StringArray::from(vec!["a", "b", "c"]) as &dyn Array);
}

#[test]
fn a_misaligned_buffer_is_copied_into_place() {
    let batch = batch_of(vec![("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
    let (layout, data) = encode_batch(&batch).unwrap();
    let shifted = Bytes::from([vec![0], data.to_vec()].concat()).slice(1..);
    assert_eq!(decode_batch(&batch.schema(), &layout, &shifted).unwrap(), batch);
}

#[test]
fn unsupported_columns_are_named_in_the_error() {
    let keys: arrow::array::DictionaryArray<arrow::datatypes::Int32Type> = ["a", "b"].into_iter().collect();
    let batch = batch_of(vec![("word", Arc::new(keys) as ArrayRef)]);
    let message = encode_batch(&batch).unwrap_err();
    assert!(message.starts_with("column `word`: unsupported type Dictionary"), "{message}");
}

#[test]
fn the_error_names_a_truncated_buffer() {
    let batch = batch_of(vec![("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as ArrayRef)]);
    let (mut layout, data) = encode_batch(&batch).unwrap();
    let message = decode_batch(&batch.schema(), &layout, &data.slice(..32)).unwrap_err();
    assert_eq!(
        message,
        "the batch is corrupt: the buffer is 32 bytes long, but the layout requires 64 bytes"
    );
    layout.buffers[1] = (0, 16);
    let message = decode_batch(&batch.schema(), &layout, &data).unwrap_err();
    assert!(message.starts_with("the batch is corrupt: column `x`: "), "{message}");
}

#[test]
fn the_output_schema_describes_tensors() {
    let schema = image_schema();
    let image = schema.field(0);
    assert_eq!(image.data_type().to_string(), "FixedSizeList(12 x non-null UInt8)");
    assert_eq!(image.metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    assert_eq!(image.metadata()["ARROW:extension:metadata"], r#"{"shape":[2,2,3]}"#);
    assert!(!image.is_nullable() && schema.field(1).is_nullable());
    let mask = ColumnType::Tensor { scalar: ScalarType::Bool, shape: vec![4] };
    let list = ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int32)));
    let schema = output_schema(&Schema::new([("mask", mask), ("ids", list)]));
    assert_eq!(schema.field(0).metadata()[BOOL_TENSOR_KEY], "true");
    assert_eq!(schema.field(0).data_type().to_string(), "FixedSizeList(4 x non-null UInt8)");
    assert_eq!(schema.field(1).data_type().to_string(), "List(Int32)");
}

#[test]
fn lists_of_a_batch_with_one_row_are_encoded_in_place() {
    let schema = Schema::new([
        ("n_id", ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::UInt32)))),
        ("x", ColumnType::List(Box::new(ColumnType::Tensor { scalar: ScalarType::UInt8, shape: vec![2] }))),
        ("empty", ColumnType::List(Box::new(ColumnType::Scalar(ScalarType::Int64)))),
    ]);
    let mut out: Vec<u8> = Vec::new();
    let mut place = |bytes: &[u8]| {
        out.pad_to(out.len().next_multiple_of(ALIGNMENT_BYTES));
        out.extend_from_slice(bytes);
        (out.len() - bytes.len()) as u64
    };
    let offsets = |values: i32| [0_i32.to_le_bytes(), values.to_le_bytes()].concat();
    let list = |offsets_at, values_at, values_bytes, values, elements_per_value| ListInPlace {
        offsets_at,
        values_at,
        values_bytes,
        values,
        elements_per_value,
    };
    let ids: Vec<u8> = [7_u32, 9, 11].iter().flat_map(|id| id.to_le_bytes()).collect();
    let (three, none) = (place(&offsets(3)), place(&offsets(0)));
    let lists = [
        list(three, place(&ids), 12, 3, None),
        list(three, place(&[1, 2, 3, 4, 5, 6]), 6, 3, Some(2)),
        list(none, none, 0, 0, None),
    ];
    let mut encoder = BatchEncoder::new(1);
    lists.into_iter().for_each(|list| encoder.push_list_in_place(list));
    let layout = encoder.finish(&mut out);
    let arrow = output_schema(&schema);
    let decoded = decode_batch(&arrow, &layout, &Bytes::from(out)).unwrap();
    let columns: Vec<ArrayRef> = decoded.columns().to_vec();
    let values = |column: usize| columns[column].as_list::<i32>().value(0);
    assert_eq!(values(0).as_primitive::<UInt32Type>().values()[..], [7, 9, 11]);
    let tensors = values(1);
    let tensors = tensors.as_fixed_size_list();
    assert_eq!((tensors.len(), tensors.value_length()), (3, 2));
    assert_eq!(tensors.values().as_primitive::<UInt8Type>().values()[..], [1, 2, 3, 4, 5, 6]);
    assert_eq!((values(2).len(), decoded.num_rows()), (0, 1));
}

#[test]
fn tensors_in_lists_may_be_null() {
    let row = |list| Row { number: None, truth: None, text: None, bytes: None, list };
    let vectors = vector_lists(&[
        row(Some(vec![Some("long enough".to_owned()), None])),
        row(None),
        row(Some(vec![Some(String::new())])),
    ]);
    let tensor = ColumnType::Tensor { scalar: ScalarType::Bool, shape: vec![1, 2] };
    let schema = output_schema(&Schema::new([("vectors", ColumnType::List(Box::new(tensor)))]));
    let batch = batch_of(vec![("vectors", Arc::new(vectors))]);
    let (layout, data) = encode_batch(&batch.slice(0, 2)).unwrap();
    let decoded = decode_batch(&schema, &layout, &data).unwrap();
    let DataType::List(item) = decoded.schema().field(0).data_type().clone() else { panic!("no lists") };
    assert_eq!(item.metadata()["ARROW:extension:metadata"], r#"{"shape":[1,2]}"#);
    let decoded = arrow::compute::cast(decoded.column(0), batch.schema().field(0).data_type()).unwrap();
    assert_eq!(&decoded, &batch.column(0).slice(0, 2));
}
