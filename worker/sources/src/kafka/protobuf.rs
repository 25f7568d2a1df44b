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

use self::compatible::WrittenFields;
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
    let mut messages = WriterMessages { group, reader, writer, columns, fields: HashMap::new() };
    for (index, row) in rows.rows.iter().enumerate() {
        let decoded = contained(|| messages.decode(rows.bytes(index)), PANIC_ERROR);
        for (column, target) in targets.iter_mut().enumerate() {
            target.push(decoded.as_ref().ok().map(|(message, written)| (message, written[column].as_ref())));
        }
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
    /// Appends the value of a message and its field in the writer's schema, or null for a payload that cannot be decoded.
    fn push(&mut self, message: Option<(&DynamicMessage, Option<&FieldDescriptor>)>) {
        let value = message.filter(|_| self.own_type.is_some()).and_then(|(message, written)| {
            let (field, value) = find_value(message, self.name, written)?;
            Some(cell(&field, written, value))
        });
        self.cells.push(value.unwrap_or(Cell::Null));
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
    /// The fields of the columns in the writer's message at an index, or the reason why the reader's schema cannot read it.
    fields: HashMap<Vec<usize>, Result<WrittenFields, String>>,
}

impl WriterMessages<'_> {
    fn decode(&mut self, body: &[u8]) -> Result<(DynamicMessage, WrittenFields), String> {
        let (index, body) = wire::message_index(body).map_err(|reason| self.group.mismatch(&reason))?;
        let fields = match self.fields.get(&index) {
            Some(fields) => fields.clone(),
            None => {
                let fields = self.written_fields(&index);
                self.fields.insert(index, fields.clone());
                fields
            }
        };
        let fields = fields.map_err(|reason| self.group.mismatch(&reason))?;
        let message = DynamicMessage::decode(self.reader.clone(), body)
            .map_err(|error| self.group.mismatch(&error.to_string()))?;
        Ok((message, fields))
    }

    fn written_fields(&self, index: &[usize]) -> Result<WrittenFields, String> {
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
        compatible::written_fields(&written, self.reader, self.columns.iter().map(|(name, _)| *name))
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

/// Returns a field of the message, or of a nested message; `None` if a message or an optional field is not set. `written` is the
/// field in the writer's schema.
fn find_value(
    message: &DynamicMessage,
    path: &str,
    written: Option<&FieldDescriptor>,
) -> Option<(FieldDescriptor, Value)> {
    let (name, rest) = path.split_once('.').map_or((path, None), |(name, rest)| (name, Some(rest)));
    let field = message.descriptor().get_field_by_name(name)?;
    if field.supports_presence() && !message.has_field(&field) {
        // A field that is not optional is not written if it is zero.
        let is_zero = rest.is_none() && written.is_some_and(|written| !written.supports_presence());
        let zero = || match field.kind() {
            Kind::Enum(_) => Value::EnumNumber(0),
            kind => Value::default_value(&kind),
        };
        return is_zero.then(|| (field.clone(), zero()));
    }
    let value = message.get_field(&field);
    match rest {
        None => Some((field, value.into_owned())),
        Some(rest) => find_value(value.as_message()?, rest, written),
    }
}

fn cell(field: &FieldDescriptor, written: Option<&FieldDescriptor>, value: Value) -> Cell {
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
        Value::EnumNumber(number) => Cell::Text(enum_name(field, written, number)),
        Value::List(values) => {
            Cell::List(values.into_iter().map(|value| cell(field, written, value)).collect())
        }
        Value::Message(_) | Value::Map(_) => Cell::Message,
    }
}

/// The name of a value of an enum in the reader's schema, or else in the writer's. The number if neither has a name for it.
fn enum_name(field: &FieldDescriptor, written: Option<&FieldDescriptor>, number: i32) -> String {
    let kinds = [Some(field), written].into_iter().flatten().map(FieldDescriptor::kind);
    let name = |kind: Kind| Some(kind.as_enum()?.get_value(number)?.name().to_owned());
    kinds.filter_map(name).next().unwrap_or_else(|| number.to_string())
}

#[cfg(test)]
mod tests;
