//! Tests of features. Other tests compare whole datasets with what the library `datasets` reads.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{
    Array, AsArray, BinaryArray, FixedSizeListBuilder, Float32Builder, Int32Builder, Int64Array,
    Int64Builder, LargeListBuilder, ListBuilder, StringArray, StructArray,
};
use arrow::datatypes::Int32Type;
use feedline_data::pipeline::Source;
use proptest::prelude::*;

use super::*;
use crate::exact_cast::InexactRow;

fn schema(fields: Vec<Field>, features: &str) -> ArrowSchema {
    let json = format!("{{\"info\": {{\"features\": {features}}}}}");
    ArrowSchema::new_with_metadata(fields, HashMap::from([(METADATA_KEY.to_owned(), json)]))
}

fn media() -> Field {
    let inner = [Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)];
    Field::new("image", DataType::Struct(inner.into_iter().collect()), true)
}

fn names(columns: &[ResolvedColumn]) -> Vec<&str> {
    columns.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn files_without_features_have_the_columns_of_their_types() {
    let plain = ArrowSchema::new(vec![media()]);
    let columns = FileColumns::new(&plain).unwrap();
    assert_eq!(names(&columns.resolved(&Selection::default())), ["image.bytes", "image.path"]);
    let with = schema(vec![media()], "{\"image\": {\"_type\": \"Image\"}}");
    let columns = FileColumns::new(&with).unwrap();
    assert_eq!(names(&columns.resolved(&Selection::default())), ["image", "image.path"]);
    assert_eq!(columns.fields(&["image", "x"]), ["image.bytes", "image.path"], "the file has no `x`");
}

/// The names of the columns that a selection reads from these fields, or the error.
fn selected(fields: Vec<Field>, features: &[(&str, &str)], json: &str) -> Result<Vec<String>, String> {
    let file = schema(fields, json);
    let features = features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned()));
    let source = Source { features: features.collect(), ..Source::parquet("") };
    let selection = Selection::new(&source);
    let columns = FileColumns::new(&file).unwrap();
    let schema = columns.shard_schema(&ShardRef::default(), file_columns(file.fields()), &selection);
    let (schema, _) = schema.map_err(|error| error.to_string())?;
    Ok(schema.fields.iter().map(|field| format!("{}: {}", field.name, field.column_type)).collect())
}

#[test]
fn columns_with_the_names_of_fields_of_media_are_errors_if_they_are_read() {
    let json = "{\"image\": {\"_type\": \"Image\"}}";
    for (other, name) in [("image.path", "columns 2 and 3"), ("image.bytes", "columns 1 and 3")] {
        let fields = || {
            let plain = |name: &str| Field::new(name, DataType::Int64, true);
            vec![media(), plain(other), plain("id")]
        };
        let expected = format!("{name} have the same name `{other}`");
        for features in [&[][..], &[("x", "image")], &[("x", other)]] {
            let error = selected(fields(), features, json).unwrap_err();
            assert!(error.contains(&expected), "{features:?}: {error}");
        }
        assert_eq!(selected(fields(), &[("x", "id")], json).unwrap(), ["x: int64"]);
    }
    let twice = vec![media(), Field::new("image", DataType::Binary, true)];
    assert!(selected(twice, &[], json).unwrap_err().contains("have the same name `image`"));
}

#[test]
fn columns_that_the_file_does_not_contain_are_not_ignored_columns() {
    let fields = vec![media(), Field::new("id", DataType::Int64, true)];
    let file = schema(fields, "{\"image\": {\"_type\": \"Image\"}}");
    let source = Source { features: [("x".to_owned(), "image".to_owned())].into(), ..Source::parquet("") };
    let columns = FileColumns::new(&file).unwrap();
    let resolved =
        columns.shard_schema(&ShardRef::default(), file_columns(file.fields()), &Selection::new(&source));
    assert_eq!(resolved.unwrap().1.ignored, ["image.path", "id"]);
}

#[test]
fn a_column_has_precedence_over_the_names_of_classes() {
    let json = "{\"label\": {\"_type\": \"ClassLabel\", \"names\": [\"a\", \"b\"]}}";
    let label = || Field::new("label", DataType::Int64, true);
    let fields = || vec![label(), Field::new("label.name", DataType::Float64, true)];
    assert_eq!(selected(fields(), &[], json).unwrap(), ["label: int64", "label.name: float64"]);
    assert_eq!(selected(fields(), &[("x", "label.name")], json).unwrap(), ["x: float64"]);
    assert_eq!(selected(vec![label()], &[("x", "label.name")], json).unwrap(), ["x: text"]);
}

#[test]
fn unknown_features_and_invalid_metadata_are_errors() {
    let with = schema(vec![media()], "{\"image\": {\"_type\": \"Video\"}}");
    let columns = FileColumns::new(&with).unwrap();
    let (_, column) = &columns.resolved(&Selection::default())[0];
    assert!(column.as_ref().unwrap_err().contains("the feature `Video` of Hugging Face is not supported"));
    for json in ["{", "{\"info\": {\"features\": 3}}"] {
        let metadata = HashMap::from([(METADATA_KEY.to_owned(), json.to_owned())]);
        let error =
            FileColumns::new(&ArrowSchema::new_with_metadata(Vec::<Field>::new(), metadata)).unwrap_err();
        assert!(error.contains("the metadata `huggingface` of the schema is invalid"), "{error}");
    }
}

#[test]
fn paths_without_bytes_are_failures() {
    let bytes = Arc::new(BinaryArray::from_opt_vec(vec![Some(&b"x"[..]), None, None])) as ArrayRef;
    let paths = Arc::new(StringArray::from(vec![Some("a"), Some("b.png"), None])) as ArrayRef;
    let failures = convert::rows_without_bytes(&bytes, Some(&paths));
    assert_eq!(failures.len(), 1);
    assert!(failures[0].0 == 1 && failures[0].1.contains("only the path `b.png`"), "{failures:?}");
    assert!(convert::rows_without_bytes(&bytes, None).is_empty());
    let field = media();
    let DataType::Struct(inner) = field.data_type().clone() else { unreachable!() };
    let column = StructArray::try_new(inner, vec![bytes, paths], None).unwrap();
    assert_eq!(column.len(), 3);
}

#[test]
fn class_names_are_looked_up() {
    let column = Arc::new(Int64Array::from(vec![Some(1), Some(-1), None, Some(0)])) as ArrayRef;
    let (found, unnamed) = convert::class_names(&column, &["a".to_owned(), "b".to_owned()]).unwrap();
    assert_eq!(unnamed, []);
    let found: Vec<Option<&str>> = found.as_string_view().iter().collect();
    assert_eq!(found, [Some("b"), None, None, Some("a")]);
    let (found, unnamed) = convert::class_names(&column, &["a".to_owned()]).unwrap();
    let reason = "the class 1 has no name: the feature has 1 names".to_owned();
    assert_eq!(unnamed, [InexactRow { row: 0, reason: reason.clone() }]);
    assert_eq!(found.as_string_view().iter().collect::<Vec<_>>(), [None, None, None, Some("a")]);
    let mut lists = ListBuilder::new(Int64Builder::new());
    for row in [Some(vec![0]), None, Some(vec![]), Some(vec![0, 1, 1])] {
        lists.append_option(row.map(|row| row.into_iter().map(Some)));
    }
    let lists = Arc::new(lists.finish()) as ArrayRef;
    let (_, unnamed) = convert::class_names(&lists, &["a".to_owned()]).unwrap();
    assert_eq!(unnamed, [InexactRow { row: 3, reason }]);
}

#[test]
fn a_row_with_another_shape_fails_and_the_others_are_tensors() {
    let row = |value| Some(vec![vec![value; 3], vec![value; 3]]);
    let column = nested(&[row(1), Some(vec![vec![1, 2, 3], vec![4, 5]]), None, row(2)]);
    let (tensors, inexact) = convert::tensors(&column, &[2, 3]).unwrap();
    let tensors = tensors.as_fixed_size_list();
    let nulls: Vec<bool> = (0..4).map(|row| tensors.is_null(row)).collect();
    assert_eq!(nulls, [false, true, true, false]);
    assert_eq!(tensors.value(3).as_primitive::<Int32Type>().values().to_vec(), [2; 6]);
    let [InexactRow { row: 1, reason }] = inexact.as_slice() else { panic!("{inexact:?}") };
    assert!(reason.contains("shape [2, 3]"), "{reason}");
    let nulls = nested(&vec![None; 1 << 14]);
    assert!(convert::tensors(&nulls, &[1 << 13, 2]).unwrap_err().contains("too much memory"));
}

/// Lists of images: the first row has one with its bytes, the second one with only a path.
fn lists_of_media() -> ArrayRef {
    let bytes = Arc::new(BinaryArray::from_opt_vec(vec![Some(&b"x"[..]), None])) as ArrayRef;
    let paths = Arc::new(StringArray::from(vec![None, Some("b.png")])) as ArrayRef;
    let DataType::Struct(inner) = media().data_type().clone() else { unreachable!() };
    let items = Arc::new(StructArray::try_new(inner, vec![bytes, paths], None).unwrap()) as ArrayRef;
    let item = Arc::new(Field::new("item", items.data_type().clone(), true));
    let offsets = arrow::buffer::OffsetBuffer::new(vec![0, 1, 2, 2].into());
    Arc::new(arrow::array::ListArray::try_new(item, offsets, items, None).unwrap())
}

#[test]
fn features_in_lists_are_lists() {
    let images = lists_of_media();
    let labels = Field::new_list("label", Field::new("item", DataType::Int64, true), true);
    let labels_of = |rows: Vec<Option<Vec<Option<i64>>>>| {
        Arc::new(arrow::array::ListArray::from_iter_primitive::<arrow::datatypes::Int64Type, _, _>(rows))
    };
    let label_rows = labels_of(vec![Some(vec![Some(1), Some(-1)]), None, Some(vec![])]);
    let file = schema(
        vec![Field::new("images", images.data_type().clone(), true), labels],
        "{\"images\": {\"_type\": \"List\", \"feature\": {\"_type\": \"Image\"}}, \
          \"label\": {\"_type\": \"Sequence\", \"feature\": {\"_type\": \"ClassLabel\", \"names\": [\"a\", \"b\"]}}}",
    );
    let columns = FileColumns::new(&file).unwrap();
    let found: Vec<String> = columns
        .resolved(&Selection::default())
        .into_iter()
        .map(|(name, column_type)| format!("{name}: {}", column_type.unwrap()))
        .collect();
    assert_eq!(found, ["images: list of bytes", "images.path: list of text", "label: list of int64"]);
    let data = RecordBatch::try_new(Arc::new(file), vec![images, label_rows]).unwrap();
    let mut read_schema = Schema::default();
    let of_bytes = ColumnType::List(Box::new(ColumnType::Binary));
    read_schema.set("images", of_bytes);
    read_schema.set("label.name", ColumnType::List(Box::new(ColumnType::Utf8)));
    let shard = ShardRef::default();
    let block =
        feedline_data::manifest::Block { rows: 3, offset: 0, bytes: 9, group: 0, row_bytes: Vec::new() };
    let read = BlockRead { shard: &shard, block: &block, index: None, schema: &read_schema, rows: None };
    let (found, failures) = columns.columns(&data, &read, &["images", "label.name"]).unwrap();
    assert_eq!(failures.iter().map(|failure| failure.row).collect::<Vec<_>>(), [1]);
    assert!(failures[0].reason.contains("only the path `b.png`"), "{failures:?}");
    let plain = |column: &ArrayRef, data_type| {
        arrow::compute::cast(&column.as_list::<i32>().value(0), &data_type).unwrap()
    };
    assert_eq!(plain(&found[0], DataType::Binary).as_binary::<i32>().value(0), b"x");
    let names = plain(&found[1], DataType::Utf8);
    let names: Vec<Option<&str>> = names.as_string::<i32>().iter().collect();
    assert_eq!(names, [Some("b"), None]);
    assert!(found[1].is_null(1) && found[1].as_list::<i32>().value(2).is_empty());
}

#[test]
fn an_unknown_feature_in_a_list_is_an_error() {
    let item = Field::new("item", media().data_type().clone(), true);
    let json = "{\"clips\": {\"_type\": \"List\", \"feature\": {\"_type\": \"Video\"}}}";
    let file = schema(vec![Field::new_list("clips", item, true)], json);
    let columns = FileColumns::new(&file).unwrap();
    let (name, column) = &columns.resolved(&Selection::default())[0];
    assert_eq!(name, "clips");
    assert!(column.as_ref().unwrap_err().contains("the feature `Video`"));
}

fn nested(rows: &[Option<Vec<Vec<i32>>>]) -> ArrayRef {
    let mut builder = LargeListBuilder::new(ListBuilder::new(Int32Builder::new()));
    for row in rows {
        for inner in row.iter().flatten() {
            builder.values().append_value(inner.iter().copied().map(Some));
        }
        builder.append(row.is_some());
    }
    Arc::new(builder.finish())
}

proptest! {
    #[test]
    fn tensors_are_the_flattened_lists(
        rows in prop::collection::vec(prop::option::of(prop::collection::vec(prop::collection::vec(any::<i32>(), 3), 2)), 0..9),
        start in 0usize..4,
    ) {
        let start = start.min(rows.len());
        let column = nested(&rows).slice(start, rows.len() - start);
        let tensor = convert::tensor(&column, &[2, 3]).unwrap();
        let tensor = tensor.as_fixed_size_list();
        prop_assert_eq!(tensor.len(), rows.len() - start);
        for (at, row) in rows[start..].iter().enumerate() {
            prop_assert_eq!(tensor.is_null(at), row.is_none());
            if let Some(row) = row {
                let values = tensor.value(at);
                let expected: Vec<i32> = row.iter().flatten().copied().collect();
                prop_assert_eq!(values.as_primitive::<Int32Type>().values().to_vec(), expected);
            }
        }
    }
}

#[test]
fn lists_of_another_shape_are_rejected() {
    let column = nested(&[Some(vec![vec![1, 2, 3], vec![4, 5]])]);
    assert!(convert::tensor(&column, &[2, 3]).unwrap_err().contains("shape [2, 3]"));
    assert!(convert::tensor(&column, &[3, 3]).is_err() && convert::tensor(&column, &[2, 3, 1]).is_err());
    let mut inner_null = ListBuilder::new(ListBuilder::new(Float32Builder::new()));
    inner_null.values().append(false);
    inner_null.append(true);
    let column = Arc::new(inner_null.finish()) as ArrayRef;
    assert!(convert::tensor(&column, &[1, 1]).unwrap_err().contains("an inner list of an array is null"));
    let mut fixed = FixedSizeListBuilder::new(Int32Builder::new(), 2);
    for value in 0..4 {
        fixed.values().append_value(value);
    }
    fixed.append(true);
    fixed.append(true);
    let fixed = Arc::new(fixed.finish()) as ArrayRef;
    assert_eq!(convert::tensor(&fixed, &[2]).unwrap().len(), 2);
    assert!(convert::tensor(&fixed, &[3]).is_err());
    let nulls = nested(&vec![None; 1 << 14]);
    assert!(convert::tensor(&nulls, &[1 << 13, 2]).unwrap_err().contains("too much memory"));
}
