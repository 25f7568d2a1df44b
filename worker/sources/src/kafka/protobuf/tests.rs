//! Tests of Protobuf payloads: types, changed fields, and errors.

use arrow::array::{Array, AsArray};
use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};
use arrow::util::display::array_value_to_string;
use bytes::Bytes;

use super::super::decoding::testing::{first_column, payloads};
use super::super::registry::SchemaLanguage;
use super::*;
use crate::object::BufferSpan;
use crate::rows::EncodedRow;

fn schema(id: u32, text: &str) -> RegisteredSchema {
    RegisteredSchema {
        protobuf: Default::default(),
        id,
        language: SchemaLanguage::Protobuf,
        text: text.to_owned(),
        references: Vec::new(),
    }
}

/// The reason why a payload of a writer's schema is not decoded.
fn failure(writer: &str, body: &'static [u8]) -> String {
    let reader = schema(4, "syntax = \"proto3\"; message A { int32 n = 1; }");
    let writer = schema(5, writer);
    let group = GroupDecoding { reader: &reader, writer: &writer, message: None };
    let span = BufferSpan { buffer: 0, start: 0, len: body.len() };
    let rows = RowSet { buffers: vec![Bytes::from_static(body)], rows: vec![EncodedRow { span, offset: 7 }] };
    let int32 = ColumnType::Scalar(ScalarType::Int32);
    let (arrays, failures) = decode(&group, &rows, &[("n", &int32)]).unwrap();
    assert!(arrays.len() == 1 && arrays[0].is_null(0), "{arrays:?}");
    assert_eq!((failures.len(), failures[0].offset), (1, 7));
    failures[0].reason.clone()
}

/// Reads a column of payloads of a message with this field. The first payload has the offset 50.
fn read(
    field: &str,
    column: &str,
    wanted: &ColumnType,
    bodies: &[&[u8]],
) -> (ArrayRef, Vec<(u32, u64, String)>) {
    let schema = schema(4, &format!("syntax = \"proto3\"; message A {{ {field} }}"));
    let group = GroupDecoding { reader: &schema, writer: &schema, message: None };
    first_column(decode(&group, &payloads(bodies), &[(column, wanted)]).unwrap())
}

#[test]
fn numbers_have_the_types_of_other_topics() {
    let int64 = ColumnType::Scalar(ScalarType::Int64);
    let (column, failures) = read("uint32 id = 1;", "id", &int64, &[&[0, 8, 7], &[0]]);
    assert_eq!((&column.as_primitive::<Int64Type>().values()[..], failures), (&[7, 0][..], Vec::new()));
    let float64 = ColumnType::Scalar(ScalarType::Float64);
    let (column, failures) = read("int32 id = 1;", "id", &float64, &[&[0, 8, 7]]);
    assert_eq!((column.as_primitive::<Float64Type>().value(0), failures), (7.0, Vec::new()));
    let list = ColumnType::List(Box::new(int64.clone()));
    let (column, failures) = read("int64 id = 1;", "id", &list, &[&[0, 8, 7]]);
    let item = column.as_list::<i32>().value(0);
    assert_eq!((&item.as_primitive::<Int64Type>().values()[..], failures), (&[7][..], Vec::new()));
    let (column, failures) = read("optional uint32 id = 1;", "id", &int64, &[&[0]]);
    assert!(column.is_null(0) && failures.is_empty(), "{failures:?}");
}

#[test]
fn a_value_that_the_type_of_other_topics_does_not_represent_fails_its_row() {
    // 2^53 + 1, and a field that ends early.
    let inexact: &[u8] = &[0, 8, 0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x10];
    let float64 = ColumnType::Scalar(ScalarType::Float64);
    let (column, failures) = read("int64 id = 1;", "id", &float64, &[&[0, 8, 1], inexact, &[0, 8]]);
    let numbers = column.as_primitive::<Float64Type>();
    assert_eq!((numbers.value(0), numbers.is_null(1), numbers.is_null(2)), (1.0, true, true));
    let reason = "column `id`: float64 does not represent 9007199254740993 exactly";
    assert_eq!(failures[0], (1, 51, reason.to_owned()));
    assert_eq!((failures.len(), failures[1].0), (2, 2));
    let negative: &[u8] = &[0, 8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
    let uint64 = ColumnType::Scalar(ScalarType::UInt64);
    let (column, failures) = read("int64 id = 1;", "id", &uint64, &[negative, &[0, 8, 1]]);
    let numbers = column.as_primitive::<UInt64Type>();
    assert_eq!((numbers.is_null(0), numbers.value(1)), (true, 1));
    assert_eq!(failures, [(0, 50, "column `id`: uint64 does not represent -1 exactly".to_owned())]);
}

#[test]
fn a_column_of_another_kind_fails_its_rows() {
    let int64 = ColumnType::Scalar(ScalarType::Int64);
    let (column, failures) = read("string id = 1;", "id", &int64, &[&[0, 10, 1, b'5']]);
    assert!(column.is_null(0));
    let reason = "column `id`: the type is text in the schema, but int64 in the dataset";
    assert_eq!(failures, [(0, 50, reason.to_owned())]);
    let (_, failures) = read("map<int32, int32> id = 1;", "id", &int64, &[&[0]]);
    assert_eq!(failures, [(0, 50, "column `id`: maps are not supported".to_owned())]);
    let nested = "message B { int64 x = 1; } B id = 1;";
    let (column, failures) = read(nested, "id", &int64, &[&[0, 10, 2, 8, 7]]);
    assert!(column.is_null(0) && failures.is_empty(), "a message is not a column: {failures:?}");
    let (column, failures) = read(nested, "id.x", &int64, &[&[0, 10, 2, 8, 7]]);
    assert_eq!((column.as_primitive::<Int64Type>().value(0), failures), (7, Vec::new()));
}

/// Reads the column `n` of a payload whose writer and reader have these declarations.
fn read_as(
    written: &str,
    read: &str,
    wanted: ScalarType,
    body: &[u8],
) -> (ArrayRef, Vec<(u32, u64, String)>) {
    let schema_of = |id, field: &str| schema(id, &format!("syntax = \"proto3\"; message A {{ {field} }}"));
    let (writer, reader) = (schema_of(5, written), schema_of(4, read));
    let group = GroupDecoding { reader: &reader, writer: &writer, message: None };
    let wanted = ColumnType::Scalar(wanted);
    first_column(decode(&group, &payloads(&[body]), &[("n", &wanted)]).unwrap())
}

#[test]
fn a_field_whose_type_changed_keeps_its_value_or_fails() {
    let (int32, int64) = (ScalarType::Int32, ScalarType::Int64);
    let (column, failures) = read_as("int32 n = 1;", "int64 n = 1;", int64, &[0, 8, 7]);
    assert_eq!((column.as_primitive::<Int64Type>().value(0), failures), (7, Vec::new()));
    let (column, failures) = read_as("int32 m = 1;", "int64 n = 1;", int64, &[0, 8, 7]);
    assert_eq!((column.as_primitive::<Int64Type>().value(0), failures), (7, Vec::new()), "it was renamed");
    // 2^40, and -1 as zigzag.
    let large: &[u8] = &[0, 8, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];
    for (written, read, wanted, body) in [
        ("int64 n = 1;", "int32 n = 1;", int32, large),
        ("sint32 n = 1;", "int32 n = 1;", int32, &[0, 8, 1]),
        ("repeated int32 n = 1;", "int32 n = 1;", int32, &[0, 10, 2, 1, 2]),
        ("fixed32 n = 1;", "float n = 1;", ScalarType::Float32, &[0, 13, 1, 0, 0, 0]),
    ] {
        let (column, failures) = read_as(written, read, wanted, body);
        assert!(column.is_null(0), "{written}");
        let (written, read) = (written.trim_end_matches(';'), read.trim_end_matches(';'));
        let reason = format!(
            "schema 5 of the writer cannot be read as schema 4 of the reader: column `n`: the payload has `{written}`, and the schema of \
             the reader has `{read}`"
        );
        assert_eq!(failures, [(0, 50, reason)]);
    }
    let (column, failures) = read_as("int64 m = 2;", "int32 n = 1;", int32, &[0, 16, 7]);
    assert_eq!((column.len(), failures), (1, Vec::new()), "the writer does not know the field");
}

/// Reads a column of one payload, whose writer's and reader's message `A` have these declarations.
fn read_text(written: &str, read: &str, column: &str, body: &[u8]) -> Result<Option<String>, String> {
    let schema_of = |id, fields: &str| schema(id, &format!("syntax = \"proto3\"; message A {{ {fields} }}"));
    let (writer, reader) = (schema_of(5, written), schema_of(4, read));
    let group = GroupDecoding { reader: &reader, writer: &writer, message: None };
    let own_type = columns(&reader, None).unwrap().into_iter().find(|(name, _)| name == column);
    let wanted = own_type.map_or(ColumnType::Utf8, |(_, own_type)| own_type.unwrap());
    let (column, failures) = first_column(decode(&group, &payloads(&[body]), &[(column, &wanted)]).unwrap());
    match failures.into_iter().next() {
        Some((_, _, reason)) => Err(reason),
        None => Ok((!column.is_null(0)).then(|| array_value_to_string(&column, 0).unwrap())),
    }
}

#[test]
fn messages_are_not_merged() {
    let user = "message U { int64 id = 1; string name = 2; }";
    // Two messages, whose fields a single message would merge.
    let two: &[u8] = &[0, 10, 2, 8, 1, 10, 2, 8, 2];
    let single = format!("{user} U user = 1;");
    let error = read_text(&format!("{user} repeated U user = 1;"), &single, "user.id", two).unwrap_err();
    assert!(error.contains("column `user.id`: the payload has `repeated A.U user = 1`"), "{error}");
    let map: &[u8] = &[0, 10, 2, 8, 1, 10, 2, 8, 2];
    let error = read_text("map<int64, int64> user = 1;", &single, "user.id", map).unwrap_err();
    assert!(error.contains("column `user.id`: the payload has "), "{error}");
    let error = read_text("bytes user = 1;", &single, "user.id", &[0, 10, 2, 8, 1]).unwrap_err();
    assert!(error.contains("the payload has `bytes user = 1`"), "{error}");
    assert_eq!(read_text(&single, &single, "user.id", &[0, 10, 2, 8, 7]), Ok(Some("7".to_owned())));
    let column_of_another_topic =
        read_text("bytes user = 1;", "string user = 1;", "user.name", &[0, 10, 1, 65]);
    assert_eq!(column_of_another_topic, Ok(None));
}

#[test]
fn enums_have_the_names_of_both_schemas() {
    let read = |written: &str, reader: &str, number: u8| {
        let declared = |values: &str| format!("enum E {{ {values} }} E e = 1;");
        read_text(&declared(written), &declared(reader), "e", &[0, 8, number])
    };
    let text = |value: &str| Ok(Some(value.to_owned()));
    assert_eq!(read("A = 0; B = 1; C = 2;", "A = 0; B = 1;", 2), text("C"), "the reader has no name for it");
    assert_eq!(read("A = 0; B = 1;", "A = 0; B = 1;", 9), text("9"));
    assert_eq!(read("A = 0; B = 1;", "A = 0; BETTER = 1;", 1), text("BETTER"), "it was renamed");
    let error = read("A = 0; B = 1;", "A = 0; C = 1; B = 2;", 1).unwrap_err();
    assert!(error.contains("column `e`: the payload has `A.E e = 1`"), "{error}");
}

#[test]
fn a_zero_that_is_not_written_remains_a_zero() {
    let text = |value: &str| Ok(Some(value.to_owned()));
    let empty: &[u8] = &[0];
    for (field, zero) in [("int32 n", "0"), ("bool n", "false"), ("string n", "")] {
        let (written, read) = (format!("{field} = 1;"), format!("optional {field} = 1;"));
        assert_eq!(read_text(&written, &read, "n", empty), text(zero));
        assert_eq!(read_text(&read, &read, "n", empty), Ok(None));
    }
    let choice = "enum E { A = 0; B = 1; }";
    let (written, read) = (format!("{choice} E n = 1;"), format!("{choice} optional E n = 1;"));
    assert_eq!(read_text(&written, &read, "n", empty), text("A"));
    let error = read_text("int32 n = 1;", "repeated int32 n = 1;", "n", &[0, 8, 7]).unwrap_err();
    assert!(error.contains("column `n`"), "a zero would be an empty list: {error}");
    assert_eq!(read_text("optional int32 n = 1;", "repeated int32 n = 1;", "n", &[0, 8, 7]), text("[7]"));
}

#[test]
fn errors_name_the_schemas_of_the_writer_and_the_reader() {
    let schemas = "schema 5 of the writer cannot be read as schema 4 of the reader: ";
    let invalid = failure("no schema", &[0]);
    assert!(invalid.starts_with(&format!("{schemas}schema 5 is not valid Protobuf: ")), "{invalid}");
    let valid = "syntax = \"proto3\"; message A { int32 n = 1; }";
    assert_eq!(
        failure(valid, &[2, 40]),
        format!("{schemas}schema 5 has no message at the index [20] of the payload")
    );
    assert_eq!(failure(valid, &[2]), format!("{schemas}the payload ends within the index of the message"));
    let other = failure("syntax = \"proto3\"; message B { int32 n = 1; }", &[0]);
    assert_eq!(other, format!("{schemas}the payload is a `B`, not a `A`"));
}
