//! Protobuf payloads. Fields are found by their numbers, so that the reader's schema reads payloads of all its versions.

mod compatible;

use std::collections::HashMap;

use arrow::array::ArrayRef;
use feedline_contained::contained;
use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use super::decoding::{DecodedColumns, GroupDecoding, convert_column, failed_group};
use super::registry::RegisteredSchema;
use super::values::{Cell, build_column};
use super::wire;
use crate::columns::null_column;
use crate::exact_cast::{InexactRow, merge_failures, row_failures};
use crate::reader::RowFailure;
use crate::rows::RowSet;
use crate::select::ResolvedColumn;

/// The name of the schema's own file.
const ROOT_FILE: &str = "schema.proto";
const PANIC_ERROR: &str = "the Protobuf library failed on this payload or schema";
/// Maximum nesting depth of messages whose fields are columns.
const MAX_DEPTH: usize = 8;

/// The files of a schema.
struct SchemaFiles {
    files: HashMap<String, String>,
}

impl FileResolver for SchemaFiles {
    fn open_file(&self, name: &str) -> Result<File, protox::Error> {
        match self.files.get(name) {
            Some(text) => File::from_source(name, text),
            None => Err(protox::Error::file_not_found(name)),
        }
    }
}

/// Returns the columns: the fields of the message. Fields of nested messages have names such as `user.name`.
pub(super) fn columns(
    reader: &RegisteredSchema,
    message: Option<&str>,
) -> Result<Vec<ResolvedColumn>, String> {
    let message = reader_message(&compile(reader)?, reader, message)?;
    let mut columns = Vec::new();
    add_columns("", &message, &mut columns, 0);
    Ok(columns)
}

/// Decodes payloads of one writer's schema.
pub(super) fn decode(
    group: &GroupDecoding<'_>,
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    let reader = compile(group.reader).and_then(|pool| reader_message(&pool, group.reader, group.message))?;
    let writer = match compile(group.writer) {
        Ok(pool) => pool,
        Err(reason) => return Ok(failed_group(rows, columns, &group.mismatch(&reason))),
    };
    let decoded = decode_rows(group, &reader, &writer, rows, columns);
    Ok(decoded.unwrap_or_else(|reason| failed_group(rows, columns, &reason)))
}

/// Decodes payloads to columns with the types that they have in the dataset.
///
/// # Errors
/// Returns a message that names the first column that cannot be converted.
fn decode_rows(
    group: &GroupDecoding<'_>,
    reader: &MessageDescriptor,
    writer: &DescriptorPool,
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    let in_column = |name: &str, reason: String| format!("column `{name}`: {reason}");
    let mut targets = Vec::with_capacity(columns.len());
    for &(name, wanted) in columns {
        let own_type = column_type(reader, name, 0).transpose();
        let own_type = own_type.map_err(|reason| in_column(name, reason))?;
        targets.push(ColumnCells { name, own_type, wanted, cells: Vec::with_capacity(rows.rows.len()) });
    }
    let mut failures = Vec::new();
    let mut messages = WriterMessages { group, reader, writer, columns, checked: HashMap::new() };
    for (index, row) in rows.rows.iter().enumerate() {
        let decoded = contained(|| messages.decode(rows.bytes(index)), PANIC_ERROR);
        targets.iter_mut().for_each(|target| target.push(decoded.as_ref().ok()));
        if let Err(reason) = decoded {
            failures.push(RowFailure { row: index as u32, offset: row.offset, reason });
        }
    }
    let mut arrays = Vec::with_capacity(targets.len());
    for target in targets {
        let name = target.name;
        let (array, inexact) = target.finish().map_err(|reason| in_column(name, reason))?;
        failures.extend(row_failures(name, inexact, |row| rows.rows[row].offset));
        arrays.push(array);
    }
    merge_failures(&mut failures);
    Ok((arrays, failures))
}

/// The values of a requested column.
struct ColumnCells<'a> {
    name: &'a str,
    /// The type in the reader's schema. `None` if the schema does not have the column.
    own_type: Option<ColumnType>,
    /// The type in the dataset.
    wanted: &'a ColumnType,
    cells: Vec<Cell>,
}

impl ColumnCells<'_> {
    /// Appends the value of a message, or null for a payload that cannot be decoded.
    fn push(&mut self, message: Option<&DynamicMessage>) {
        let message = message.filter(|_| self.own_type.is_some());
        let value = message.and_then(|message| find_value(message, self.name));
        self.cells.push(value.map_or(Cell::Null, |(field, value)| cell(&field, value)));
    }

    /// Builds the column. Rows with values that the type in the dataset does not represent are null in the result, and listed.
    fn finish(self) -> Result<(ArrayRef, Vec<InexactRow>), String> {
        let Some(own_type) = self.own_type else {
            return Ok((null_column(self.wanted, self.cells.len()), Vec::new()));
        };
        let (column, mut inexact) = build_column(&own_type, self.cells)?;
        let (column, of_conversion) = convert_column(&column, &own_type, self.wanted)?;
        inexact.extend(of_conversion);
        Ok((column, inexact))
    }
}

/// The messages of a writer's schema.
struct WriterMessages<'a> {
    group: &'a GroupDecoding<'a>,
    reader: &'a MessageDescriptor,
    writer: &'a DescriptorPool,
    columns: &'a [(&'a str, &'a ColumnType)],
    /// Whether the reader's schema reads the message at an index.
    checked: HashMap<Vec<usize>, Result<(), String>>,
}

impl WriterMessages<'_> {
    fn decode(&mut self, body: &[u8]) -> Result<DynamicMessage, String> {
        let (index, body) = wire::message_index(body).map_err(|reason| self.group.mismatch(&reason))?;
        let checked = match self.checked.get(&index) {
            Some(checked) => checked.clone(),
            None => {
                let checked = self.check(&index);
                self.checked.insert(index, checked.clone());
                checked
            }
        };
        checked.map_err(|reason| self.group.mismatch(&reason))?;
        DynamicMessage::decode(self.reader.clone(), body)
            .map_err(|error| self.group.mismatch(&error.to_string()))
    }

    fn check(&self, index: &[usize]) -> Result<(), String> {
        let written = message_at(self.writer, index).ok_or_else(|| {
            format!("schema {} has no message at the index {index:?} of the payload", self.group.writer.id)
        })?;
        if written.full_name() != self.reader.full_name() {
            return Err(format!(
                "the payload is a `{}`, not a `{}`",
                written.full_name(),
                self.reader.full_name()
            ));
        }
        compatible::check_columns(&written, self.reader, self.columns.iter().map(|(name, _)| *name))
    }
}

/// Returns the compiled schema. Each schema is compiled once.
fn compile(schema: &RegisteredSchema) -> Result<DescriptorPool, String> {
    schema.protobuf.get_or_init(|| compile_files(schema)).clone()
}

fn compile_files(schema: &RegisteredSchema) -> Result<DescriptorPool, String> {
    let mut files: HashMap<String, String> = schema.references.iter().cloned().collect();
    files.insert(ROOT_FILE.to_owned(), schema.text.clone());
    let compile = || {
        let mut resolver = ChainFileResolver::new();
        resolver.add(SchemaFiles { files });
        resolver.add(GoogleFileResolver::new());
        let mut compiler = Compiler::with_file_resolver(resolver);
        compiler.include_imports(true);
        compiler.open_file(ROOT_FILE).map_err(|error| error.to_string())?;
        Ok(compiler.descriptor_pool())
    };
    contained(compile, PANIC_ERROR).map_err(|reason| {
        format!("schema {} is not valid Protobuf: {}", schema.id, reason.replace('\n', " "))
    })
}

fn reader_message(
    pool: &DescriptorPool,
    reader: &RegisteredSchema,
    name: Option<&str>,
) -> Result<MessageDescriptor, String> {
    match name {
        Some(name) => pool.get_message_by_name(name).ok_or_else(|| {
            format!("schema {} has no message `{name}`: correct `message` of the payload", reader.id)
        }),
        None => message_at(pool, &[0]).ok_or_else(|| format!("schema {} has no message", reader.id)),
    }
}

/// Returns the message at an index: of the file, and then of the messages that contain it.
fn message_at(pool: &DescriptorPool, index: &[usize]) -> Option<MessageDescriptor> {
    let file = pool.get_file_by_name(ROOT_FILE)?;
    let (first, nested) = index.split_first()?;
    let mut message = file.messages().nth(*first)?;
    for place in nested {
        let child = message.child_messages().nth(*place)?;
        message = child;
    }
    Some(message)
}

fn add_columns(prefix: &str, message: &MessageDescriptor, columns: &mut Vec<ResolvedColumn>, depth: usize) {
    for field in message.fields() {
        let name = format!("{prefix}{}", field.name());
        match nested_message(&field, depth) {
            Some(nested) if columns.len() < MAX_COLUMNS => {
                add_columns(&format!("{name}."), &nested, columns, depth + 1);
            }
            _ => columns.push((name, field_type(&field))),
        }
    }
}

/// Returns the type of a column; `None` if the message does not have it.
fn column_type(message: &MessageDescriptor, path: &str, depth: usize) -> Option<Result<ColumnType, String>> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.get_field_by_name(name)?;
    match (nested_message(&field, depth), rest) {
        (Some(nested), Some(rest)) => column_type(&nested, rest, depth + 1),
        (None, None) => Some(field_type(&field)),
        // A nested message is not a column, and other fields have no columns within them.
        _ => None,
    }
}

/// Returns the message of a field, if the fields of the message are columns.
fn nested_message(field: &FieldDescriptor, depth: usize) -> Option<MessageDescriptor> {
    match field.kind() {
        Kind::Message(nested) if !field.is_list() && !field.is_map() && depth < MAX_DEPTH => Some(nested),
        _ => None,
    }
}

fn field_type(field: &FieldDescriptor) -> Result<ColumnType, String> {
    if field.is_map() {
        return Err("maps are not supported".to_owned());
    }
    let single = match field.kind() {
        Kind::Double => ColumnType::Scalar(ScalarType::Float64),
        Kind::Float => ColumnType::Scalar(ScalarType::Float32),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => ColumnType::Scalar(ScalarType::Int32),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => ColumnType::Scalar(ScalarType::Int64),
        Kind::Uint32 | Kind::Fixed32 => ColumnType::Scalar(ScalarType::UInt32),
        Kind::Uint64 | Kind::Fixed64 => ColumnType::Scalar(ScalarType::UInt64),
        Kind::Bool => ColumnType::Scalar(ScalarType::Bool),
        Kind::String | Kind::Enum(_) => ColumnType::Utf8,
        Kind::Bytes => ColumnType::Binary,
        Kind::Message(_) if field.is_list() => {
            return Err("repeated messages are not supported".to_owned());
        }
        Kind::Message(_) => {
            return Err(format!("messages that are nested deeper than {MAX_DEPTH} are not supported"));
        }
    };
    Ok(if field.is_list() { ColumnType::List(Box::new(single)) } else { single })
}

/// Returns a field of the message, or of a nested message; `None` if a message or an optional field is not set.
fn find_value(message: &DynamicMessage, path: &str) -> Option<(FieldDescriptor, Value)> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.descriptor().get_field_by_name(name)?;
    if field.supports_presence() && !message.has_field(&field) {
        return None;
    }
    let value = message.get_field(&field);
    match rest {
        None => Some((field, value.into_owned())),
        Some(rest) => find_value(value.as_message()?, rest),
    }
}

fn cell(field: &FieldDescriptor, value: Value) -> Cell {
    match value {
        Value::Bool(value) => Cell::Bool(value),
        Value::I32(value) => Cell::Int(value.into()),
        Value::I64(value) => Cell::Int(value),
        Value::U32(value) => Cell::UInt(value.into()),
        Value::U64(value) => Cell::UInt(value),
        Value::F32(value) => Cell::Float(value.into()),
        Value::F64(value) => Cell::Float(value),
        Value::String(value) => Cell::Text(value),
        Value::Bytes(value) => Cell::Bytes(value.to_vec()),
        Value::EnumNumber(number) => Cell::Text(enum_name(field, number)),
        Value::List(values) => Cell::List(values.into_iter().map(|value| cell(field, value)).collect()),
        Value::Message(_) | Value::Map(_) => Cell::Message,
    }
}

/// The name of a value of an enum, or its number if the schema has no name for it.
fn enum_name(field: &FieldDescriptor, number: i32) -> String {
    match field.kind() {
        Kind::Enum(kind) => {
            kind.get_value(number).map_or_else(|| number.to_string(), |value| value.name().to_owned())
        }
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::{Float64Type, Int64Type, UInt64Type};
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
        let rows =
            RowSet { buffers: vec![Bytes::from_static(body)], rows: vec![EncodedRow { span, offset: 7 }] };
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
        let schema_of =
            |id, field: &str| schema(id, &format!("syntax = \"proto3\"; message A {{ {field} }}"));
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
        assert_eq!(
            (column.as_primitive::<Int64Type>().value(0), failures),
            (7, Vec::new()),
            "it was renamed"
        );
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
        assert_eq!(
            failure(valid, &[2]),
            format!("{schemas}the payload ends within the index of the message")
        );
        let other = failure("syntax = \"proto3\"; message B { int32 n = 1; }", &[0]);
        assert_eq!(other, format!("{schemas}the payload is a `B`, not a `A`"));
    }
}
