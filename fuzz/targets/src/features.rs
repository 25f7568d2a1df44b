//! The target of the features of Hugging Face datasets, which are JSON in the metadata of an Arrow schema.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::ipc::writer::StreamWriter;
use feedline_data::pipeline::Format;

use crate::shards::read_shard;

/// Reads an Arrow stream whose schema has these features.
pub fn features(bytes: &[u8]) {
    let Ok(features) = std::str::from_utf8(bytes) else { return };
    let stream = arrow_stream(features);
    read_shard(&stream, Format::Arrow, &[]);
    read_shard(&stream, Format::Arrow, &[("x", "b.name"), ("y", "a"), ("z", "c")]);
}

/// Returns a stream with a column of images, one of integers and one of lists.
fn arrow_stream(features: &str) -> Vec<u8> {
    let metadata = HashMap::from([("huggingface".to_owned(), features.to_owned())]);
    let image = StructArray::from(vec![
        (
            Arc::new(Field::new("bytes", DataType::Binary, true)),
            Arc::new(BinaryArray::from_opt_vec(vec![Some(&b"x"[..]), None])) as ArrayRef,
        ),
        (Arc::new(Field::new("path", DataType::Utf8, true)), Arc::new(StringArray::from(vec!["a", "b"]))),
    ]);
    let lists = ListArray::from_iter_primitive::<Int32Type, _, _>(vec![Some(vec![Some(1), None]), None]);
    let columns: Vec<(&str, ArrayRef)> =
        vec![("a", Arc::new(image)), ("b", Arc::new(Int64Array::from(vec![0, -1]))), ("c", Arc::new(lists))];
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let arrays = columns.into_iter().map(|(_, column)| column).collect();
    let batch =
        RecordBatch::try_new(Arc::clone(&schema), arrays).expect("the columns have the types of the schema");
    let mut bytes = Vec::new();
    let mut writer = StreamWriter::try_new(&mut bytes, &schema).expect("the schema can be written");
    writer.write(&batch).and_then(|()| writer.finish()).expect("memory can be written");
    drop(writer);
    bytes
}
