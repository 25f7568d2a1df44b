//! Tests of runs, list views, and items that take no bytes.

use arrow::array::{
    FixedSizeBinaryArray, Int32Array, Int64Array, ListArray, ListViewArray, NullArray, RunArray, StringArray,
};
use arrow::buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::Int32Type;
use arrow::ipc::writer::FileWriter;
use feedline_data::pipeline::Format;

use super::*;
use crate::testing::{All, fixture};

fn batch(array: impl Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(vec![("m", Arc::new(array) as ArrayRef, true)]).unwrap()
}

fn file(batch: &RecordBatch) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    bytes
}

async fn read(array: impl Array + 'static) -> All {
    fixture(&file(&batch(array)), Format::Arrow, &[]).read_all().await
}

fn runs(ends: &[i32], values: &dyn Array) -> RunArray<Int32Type> {
    RunArray::try_new(&Int32Array::from(ends.to_vec()), values).unwrap()
}

fn lists(values: ArrayRef, lengths: &[usize]) -> ListArray {
    let offsets = OffsetBuffer::from_lengths(lengths.iter().copied());
    ListArray::try_new(item_field(&values), offsets, values, None).unwrap()
}

fn numbers(count: i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(0..count))
}

/// Structs with a column of runs and a column of numbers. The second and the fourth struct are null, and the last name.
fn structs() -> StructArray {
    let names = runs(&[2, 4, 5], &StringArray::from(vec![Some("a"), Some("b"), None]));
    let columns: Vec<ArrayRef> = vec![Arc::new(names), numbers(5)];
    let fields = ["name", "number"].iter().zip(&columns);
    let fields: Fields =
        fields.map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let nulls = NullBuffer::from(vec![true, false, true, false, true]);
    StructArray::try_new(fields, columns, Some(nulls)).unwrap()
}

#[tokio::test]
async fn the_nulls_of_a_struct_apply_to_its_runs() {
    let all = read(structs()).await;
    assert_eq!(all.columns(), "m.name: text, m.number: int64");
    assert_eq!(all.rows(), ["a|0", "null|null", "b|2", "null|null", "null|4"]);
    let inner = Field::new("inner", structs().data_type().clone(), true);
    let nulls = NullBuffer::from(vec![true, true, false, true, true]);
    let nested = StructArray::try_new(vec![inner].into(), vec![Arc::new(structs())], Some(nulls)).unwrap();
    let all = read(nested).await;
    assert_eq!(all.columns(), "m.inner.name: text, m.inner.number: int64");
    assert_eq!(all.rows(), ["a|0", "null|null", "null|null", "null|null", "null|4"]);
    let all = read(lists(Arc::new(structs()), &[2, 3])).await;
    assert_eq!(all.rows(), ["[a,null]|[0,null]", "[b,null,null]|[2,null,4]"]);
}

#[tokio::test]
async fn runs_without_structs_are_expanded() {
    let all = read(runs(&[2, 3], &StringArray::from(vec![Some("a"), None]))).await;
    assert_eq!((all.columns().as_str(), all.rows().join(" ").as_str()), ("m: text", "a a null"));
    let all = read(lists(Arc::new(runs(&[2, 4], &numbers(2))), &[3, 1])).await;
    assert_eq!(all.rows(), ["[0,0,1]", "[1]"]);
    let all = read(runs(&[1, 3], &lists(numbers(3), &[2, 1]))).await;
    assert_eq!(all.rows(), ["[0,1]", "[2]", "[2]"]);
}

#[tokio::test]
async fn long_values_of_runs_are_not_copied() {
    let text = "x".repeat(1 << 20);
    let all = read(runs(&[10_000], &StringArray::from(vec![text.as_str()]))).await;
    let block = &all.blocks[0];
    assert_eq!(block.batch.column(0).as_string_view().value(9_999), text);
    assert!(block.held_bytes < 4 << 20, "{}", block.held_bytes);
}

#[test]
fn items_that_take_no_bytes_are_counted() {
    let nulls: ArrayRef = Arc::new(NullArray::new(300));
    let no_bytes = Buffer::from_vec(Vec::<u8>::new());
    let empty = FixedSizeBinaryArray::try_new_with_len(0, no_bytes, None, 300).unwrap();
    // The views have 13 items of an array with 5 items.
    let (offsets, sizes) = (ScalarBuffer::from(vec![0, 0, 2]), ScalarBuffer::from(vec![5, 5, 3]));
    let views = ListViewArray::try_new(item_field(&numbers(5)), offsets, sizes, numbers(5), None).unwrap();
    let arrays: [(ArrayRef, u64); 9] = [
        (nulls.clone(), 300),
        (Arc::new(empty), 300),
        (Arc::new(lists(nulls.clone(), &[100, 200])), 300),
        (Arc::new(lists(Arc::new(lists(nulls, &[300])), &[1])), 300),
        (Arc::new(lists(numbers(300), &[100, 200])), 0),
        (Arc::new(views), 8),
        (Arc::new(runs(&[100, 300], &numbers(2))), 300),
        (Arc::new(runs(&[100, 300], &lists(numbers(5), &[2, 3]))), 900),
        (Arc::new(structs()), 5),
    ];
    for (array, items) in arrays {
        assert_eq!(virtual_items(&array), items, "{}", array.data_type());
    }
}

#[tokio::test]
async fn too_many_items_that_take_no_bytes_are_an_error() {
    let count = MAX_VIRTUAL_ITEMS as usize + 1;
    let long_run = runs(&[count as i32], &StringArray::from(vec!["a"]));
    for batch in [batch(NullArray::new(count)), batch(long_run)] {
        let fixture = fixture(&file(&batch), Format::Arrow, &[]);
        let indexed = fixture.index().await.unwrap();
        let error = fixture.read(&indexed, 0, None).await.unwrap_err().to_string();
        let expected =
            "a record batch has 16777217 items that take no bytes in the file, most of them in column `m`";
        assert!(error.contains("/shard`") && error.contains(expected), "{error}");
    }
}
