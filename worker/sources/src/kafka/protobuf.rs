//! Protobuf payloads. Fields are found by their numbers, so that the reader's schema reads payloads of all its versions.

use std::collections::HashMap;

use arrow::array::ArrayRef;
use feedline_contained::contained;
use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};
use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value,
};
use protox::Compiler;
use protox::file::{ChainFileResolver, File, FileResolver, GoogleFileResolver};

use super::decoding::{DecodedColumns, GroupDecoding, failed_group};
use super::registry::RegisteredSchema;
use super::values::{Cell, build_column};
use super::wire;
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
    let mut cells: Vec<Vec<Cell>> = columns.iter().map(|_| Vec::with_capacity(rows.rows.len())).collect();
    let mut failures = Vec::new();
    for (index, row) in rows.rows.iter().enumerate() {
        let decoded = contained(|| decode_row(group, &reader, &writer, rows.bytes(index)), PANIC_ERROR);
        match decoded {
            Ok(message) => {
                for ((name, _), cells) in columns.iter().zip(&mut cells) {
                    cells.push(
                        find_value(&message, name).map_or(Cell::Null, |(field, value)| cell(&field, value)),
                    );
                }
            }
            Err(reason) => {
                cells.iter_mut().for_each(|cells| cells.push(Cell::Null));
                failures.push(RowFailure { row: index as u32, offset: row.offset, reason });
            }
        }
    }
    let build =
        |((_, column_type), cells): (&(&str, &ColumnType), Vec<Cell>)| build_column(column_type, cells);
    let arrays: Result<Vec<ArrayRef>, String> = columns.iter().zip(cells).map(build).collect();
    Ok((arrays?, failures))
}

fn decode_row(
    group: &GroupDecoding<'_>,
    reader: &MessageDescriptor,
    writer: &DescriptorPool,
    body: &[u8],
) -> Result<DynamicMessage, String> {
    let (index, body) = wire::message_index(body).map_err(|reason| group.mismatch(&reason))?;
    let written = message_at(writer, &index).ok_or_else(|| {
        let reason =
            format!("schema {} has no message at the index {index:?} of the payload", group.writer.id);
        group.mismatch(&reason)
    })?;
    if written.full_name() != reader.full_name() {
        let reason = format!("the payload is a `{}`, not a `{}`", written.full_name(), reader.full_name());
        return Err(group.mismatch(&reason));
    }
    DynamicMessage::decode(reader.clone(), body).map_err(|error| group.mismatch(&error.to_string()))
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
        match field.kind() {
            Kind::Message(nested)
                if !field.is_list()
                    && !field.is_map()
                    && depth < MAX_DEPTH
                    && columns.len() < MAX_COLUMNS =>
            {
                add_columns(&format!("{name}."), &nested, columns, depth + 1);
            }
            _ => columns.push((name, field_type(&field))),
        }
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
        Value::Message(_) | Value::Map(_) => Cell::Null,
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
    use arrow::array::Array;
    use bytes::Bytes;

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
