//! Avro payloads. The writer's data is read as the reader's schema by the rules of Avro.

use std::collections::HashMap;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{cast, is_null, nullif};
use arrow::datatypes::{DataType, Schema as ArrowSchema};
use arrow_avro::reader::{Decoder, ReaderBuilder};
use arrow_avro::schema::{AvroSchema, Fingerprint, FingerprintAlgorithm, SchemaStore};
use feedline_contained::contained;
use feedline_data::schema::{ColumnType, MAX_COLUMNS, ScalarType};
use serde_json::Value;

use super::decoding::{DecodedColumns, GroupDecoding, convert_column, failed_group};
use super::registry::RegisteredSchema;
use crate::columns::{arrow_type, column_type, null_column};
use crate::exact_cast::{InexactRow, merge_failures, row_failures};
use crate::formats::{bisect, jsonl};
use crate::rows::RowSet;
use crate::select::ResolvedColumn;

const PANIC_ERROR: &str = "the Avro decoder failed on this payload or schema";

/// Returns the columns: the fields of the record. Fields of nested records have names such as `user.name`.
pub(super) fn columns(reader: &RegisteredSchema) -> Result<Vec<ResolvedColumn>, String> {
    let build = || Ok(decoder(reader, reader, 1)?.schema());
    let schema = contained(build, PANIC_ERROR)
        .map_err(|reason| format!("schema {} is not supported: {reason}", reader.id))?;
    let mut columns = Vec::new();
    add_columns("", &schema, &mut columns);
    Ok(columns)
}

/// Decodes payloads of one writer's schema.
pub(super) fn decode(
    group: &GroupDecoding<'_>,
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    let build = |rows| decoder(group.reader, group.writer, rows);
    let schema = match contained(|| Ok(build(1)?.schema()), PANIC_ERROR) {
        Ok(schema) => schema,
        Err(reason) => return Ok(failed_group(rows, columns, &group.mismatch(&reason))),
    };
    let decode_rows = |bodies: &[&[u8]]| {
        contained(|| decode_bodies(build(bodies.len())?, group.writer.id, bodies), PANIC_ERROR)
            .map_err(|reason| group.mismatch(&reason))
    };
    let null_row = jsonl::null_row(&std::sync::Arc::new(nullable(&schema)));
    let (batch, mut failures) = bisect::decode_rows(rows, &null_row, &decode_rows)?;
    match build_columns(&batch, rows, columns) {
        Ok((arrays, inexact)) => {
            failures.extend(inexact);
            merge_failures(&mut failures);
            Ok((arrays, failures))
        }
        Err(reason) => Ok(failed_group(rows, columns, &group.mismatch(&reason))),
    }
}

/// Returns the columns of a decoded batch with the types that they have in the dataset, and the rows with values that these types do
/// not represent.
///
/// # Errors
/// Returns a message that names the first column that cannot be converted.
fn build_columns(
    batch: &RecordBatch,
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<DecodedColumns, String> {
    let mut arrays = Vec::with_capacity(columns.len());
    let mut failures = Vec::new();
    for &(name, wanted) in columns {
        // The fields of a nested record are columns, but not the record.
        let is_column = |column: &ArrayRef| !matches!(column.data_type(), DataType::Struct(_));
        let Some(column) = find_column(batch, name).filter(is_column) else {
            arrays.push(null_column(wanted, batch.num_rows()));
            continue;
        };
        let converted = convert(&column, wanted);
        let (array, inexact) = converted.map_err(|reason| format!("column `{name}`: {reason}"))?;
        failures.extend(row_failures(name, inexact, |row| rows.rows[row].offset));
        arrays.push(array);
    }
    Ok((arrays, failures))
}

/// Creates a decoder of payloads in Confluent's wire format.
fn decoder(reader: &RegisteredSchema, writer: &RegisteredSchema, rows: usize) -> Result<Decoder, String> {
    let text = |error: arrow::error::ArrowError| error.to_string();
    let fingerprint = Fingerprint::Id(writer.id);
    let mut store = SchemaStore::new_with_type(FingerprintAlgorithm::Id);
    store.set(fingerprint, AvroSchema::new(with_references(writer)?)).map_err(text)?;
    ReaderBuilder::new()
        .with_batch_size(rows.max(1))
        .with_utf8_view(true)
        .with_reader_schema(AvroSchema::new(with_references(reader)?))
        .with_writer_schema_store(store)
        .with_active_fingerprint(fingerprint)
        .build_decoder()
        .map_err(text)
}

fn decode_bodies(mut decoder: Decoder, writer: u32, bodies: &[&[u8]]) -> Result<RecordBatch, String> {
    let mut framed = Vec::new();
    for body in bodies {
        framed.clear();
        framed.push(0);
        framed.extend_from_slice(&writer.to_be_bytes());
        framed.extend_from_slice(body);
        let used = decoder.decode(&framed).map_err(|error| error.to_string())?;
        if used != framed.len() {
            return Err(format!("the payload has {} bytes, but its schema describes {used}", framed.len()));
        }
    }
    match decoder.flush().map_err(|error| error.to_string())? {
        Some(batch) if batch.num_rows() == bodies.len() => {
            let schema = std::sync::Arc::new(nullable(&batch.schema()));
            RecordBatch::try_new(schema, batch.columns().to_vec()).map_err(|error| error.to_string())
        }
        _ => Err("the payload is incomplete".to_owned()),
    }
}

/// The schema with fields that may be null, because failed rows have placeholders.
fn nullable(schema: &ArrowSchema) -> ArrowSchema {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    ArrowSchema::new(fields.collect::<Vec<_>>())
}

/// Returns the text of a schema in which the first use of each referenced type is its definition.
fn with_references(schema: &RegisteredSchema) -> Result<String, String> {
    if schema.references.is_empty() {
        return Ok(schema.text.clone());
    }
    let parse = |text: &str| {
        serde_json::from_str::<Value>(text)
            .map_err(|error| format!("schema {} is not JSON: {error}", schema.id))
    };
    let mut definitions = HashMap::new();
    for (name, text) in &schema.references {
        definitions.insert(name.clone(), parse(text)?);
    }
    let mut root = parse(&schema.text)?;
    insert_definitions(&mut root, &mut definitions, "");
    Ok(root.to_string())
}

/// Replaces the names of types by their definitions. Each definition is used once, as Avro requires.
fn insert_definitions(value: &mut Value, definitions: &mut HashMap<String, Value>, namespace: &str) {
    match value {
        Value::String(name) => {
            let full = if name.contains('.') || namespace.is_empty() {
                name.clone()
            } else {
                format!("{namespace}.{name}")
            };
            if let Some(mut definition) =
                definitions.remove(&full).or_else(|| definitions.remove(name.as_str()))
            {
                // A definition does not inherit the namespace of the schema that refers to it.
                insert_definitions(&mut definition, definitions, "");
                *value = definition;
            }
        }
        Value::Array(branches) => {
            branches.iter_mut().for_each(|branch| insert_definitions(branch, definitions, namespace))
        }
        Value::Object(object) => {
            let of_name = object.get("name").and_then(Value::as_str).and_then(|name| name.rsplit_once('.'));
            let own = match of_name {
                Some((own, _)) => own.to_owned(),
                None => object.get("namespace").and_then(Value::as_str).unwrap_or(namespace).to_owned(),
            };
            for key in ["type", "items", "values"] {
                if let Some(inner) = object.get_mut(key) {
                    insert_definitions(inner, definitions, &own);
                }
            }
            for field in object.get_mut("fields").and_then(Value::as_array_mut).into_iter().flatten() {
                insert_definitions(field, definitions, &own);
            }
        }
        _ => {}
    }
}

fn add_columns(prefix: &str, schema: &ArrowSchema, columns: &mut Vec<ResolvedColumn>) {
    for field in schema.fields() {
        let name = format!("{prefix}{}", field.name());
        match field.data_type() {
            DataType::Struct(fields) if columns.len() < MAX_COLUMNS => {
                add_columns(&format!("{name}."), &ArrowSchema::new(fields.clone()), columns);
            }
            data_type => columns.push((name, avro_type(data_type))),
        }
    }
}

/// The column type of a field. Times are numbers in the unit of the schema, and decimals are text.
fn avro_type(data_type: &DataType) -> Result<ColumnType, String> {
    match data_type {
        DataType::Date32 | DataType::Time32(_) => Ok(ColumnType::Scalar(ScalarType::Int32)),
        DataType::Timestamp(..) | DataType::Time64(_) => Ok(ColumnType::Scalar(ScalarType::Int64)),
        DataType::Decimal32(..)
        | DataType::Decimal64(..)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..)
        | DataType::Null => Ok(ColumnType::Utf8),
        DataType::Dictionary(_, values) => avro_type(values),
        DataType::List(item) => Ok(ColumnType::List(Box::new(avro_type(item.data_type())?))),
        DataType::Map(..) => Err("maps are not supported".to_owned()),
        DataType::Union(..) => Err("unions of several types are not supported".to_owned()),
        other => column_type(other),
    }
}

/// Returns a field of the record, or of a nested record.
fn find_column(batch: &RecordBatch, path: &str) -> Option<ArrayRef> {
    if let Some(column) = batch.column_by_name(path) {
        return Some(column.clone());
    }
    let mut parts = path.split('.');
    let mut column = batch.column_by_name(parts.next()?)?.clone();
    for part in parts {
        let parent = column.as_struct_opt()?;
        let child = parent.column_by_name(part)?.clone();
        // A field of a record that is null is null.
        column = if parent.null_count() == 0 {
            child
        } else {
            nullif(child.as_ref(), &is_null(parent).ok()?).ok()?
        };
    }
    Some(column)
}

/// Converts a column to its type in the dataset. Rows with values that this type does not represent are null in the result, and
/// listed.
fn convert(column: &ArrayRef, wanted: &ColumnType) -> Result<(ArrayRef, Vec<InexactRow>), String> {
    let own_type = avro_type(column.data_type())?;
    convert_column(&cast_to_own_type(column, &own_type)?, &own_type, wanted)
}

/// Converts a column to the column type of its schema, which represents all of its values.
fn cast_to_own_type(column: &ArrayRef, column_type: &ColumnType) -> Result<ArrayRef, String> {
    let target = arrow_type(column_type);
    let text = |error: arrow::error::ArrowError| error.to_string();
    if *column_type == ColumnType::Utf8 && !matches!(column.data_type(), DataType::Utf8View) {
        let plain = cast(column.as_ref(), &DataType::Utf8).map_err(text)?;
        return cast(plain.as_ref(), &target).map_err(text);
    }
    if matches!(column.data_type(), DataType::FixedSizeBinary(_)) {
        let plain = cast(column.as_ref(), &DataType::Binary).map_err(text)?;
        return cast(plain.as_ref(), &target).map_err(text);
    }
    cast(column.as_ref(), &target).map_err(text)
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{Float64Type, Int64Type};

    use super::super::decoding::testing::{first_column, payloads};
    use super::super::registry::SchemaLanguage;
    use super::*;

    /// Reads a column of payloads whose schema has these fields. The first payload has the offset 50.
    fn read(
        fields: &str,
        column: &str,
        wanted: &ColumnType,
        bodies: &[&[u8]],
    ) -> (ArrayRef, Vec<(u32, u64, String)>) {
        let schema = RegisteredSchema {
            protobuf: Default::default(),
            id: 1,
            language: SchemaLanguage::Avro,
            text: format!(r#"{{"type":"record","name":"R","fields":{fields}}}"#),
            references: Vec::new(),
        };
        let group = GroupDecoding { reader: &schema, writer: &schema, message: None };
        first_column(decode(&group, &payloads(bodies), &[(column, wanted)]).unwrap())
    }

    /// The encoding of 2^53 + 1.
    const INEXACT: &[u8] = &[0x82, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20];

    #[test]
    fn a_long_that_the_double_of_another_topic_does_not_represent_fails_its_row() {
        let fields = r#"[{"name":"id","type":"long"}]"#;
        let float64 = ColumnType::Scalar(ScalarType::Float64);
        let (column, failures) = read(fields, "id", &float64, &[&[2], INEXACT, &[], &[6]]);
        let numbers = column.as_primitive::<Float64Type>();
        assert_eq!((numbers.value(0), numbers.is_null(1), numbers.value(3)), (1.0, true, 3.0));
        let reason = "column `id`: float64 does not represent 9007199254740993 exactly";
        assert_eq!(failures[0], (1, 51, reason.to_owned()));
        assert_eq!((failures.len(), failures[1].0), (2, 2), "the third payload is incomplete");
    }

    #[test]
    fn numbers_and_dates_have_the_types_of_other_topics() {
        let int64 = ColumnType::Scalar(ScalarType::Int64);
        let date = r#"[{"name":"day","type":{"type":"int","logicalType":"date"}}]"#;
        let (column, failures) = read(date, "day", &int64, &[&[10]]);
        assert_eq!((column.as_primitive::<Int64Type>().value(0), failures), (5, Vec::new()));
        let nested =
            r#"[{"name":"a","type":{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}}]"#;
        let list = ColumnType::List(Box::new(int64));
        let (column, failures) = read(nested, "a.x", &list, &[&[10]]);
        let item = column.as_list::<i32>().value(0);
        assert_eq!((&item.as_primitive::<Int64Type>().values()[..], failures), (&[5][..], Vec::new()));
    }

    #[test]
    fn a_column_of_another_kind_fails_its_rows() {
        let int64 = ColumnType::Scalar(ScalarType::Int64);
        let (column, failures) = read(r#"[{"name":"id","type":"string"}]"#, "id", &int64, &[&[2, b'5']]);
        assert!(column.is_null(0) && failures.len() == 1, "{failures:?}");
        let reason = "column `id`: the type is text in the schema, but int64 in the dataset";
        assert!(failures[0].2.ends_with(reason), "{failures:?}");
        let nested =
            r#"[{"name":"a","type":{"type":"record","name":"A","fields":[{"name":"x","type":"int"}]}}]"#;
        let (column, failures) = read(nested, "a", &int64, &[&[10]]);
        assert!(column.is_null(0) && failures.is_empty(), "a record is not a column: {failures:?}");
    }

    #[test]
    fn a_dotted_name_has_a_namespace() {
        let schema = RegisteredSchema {
            protobuf: Default::default(),
            id: 1,
            language: super::super::registry::SchemaLanguage::Avro,
            text: r#"{"type":"record","name":"com.acme.Order","fields":[{"name":"i","type":"Item"}]}"#.to_owned(),
            references: vec![(
                "com.acme.Item".to_owned(),
                r#"{"type":"record","name":"Item","namespace":"com.acme","fields":[{"name":"x","type":"int"}]}"#.to_owned(),
            )],
        };
        let names: Vec<String> = columns(&schema).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["i.x"]);
    }

    #[test]
    fn referenced_types_are_inserted_once() {
        let schema = RegisteredSchema {
            protobuf: Default::default(),
            id: 1,
            language: super::super::registry::SchemaLanguage::Avro,
            text: r#"{"type":"record","name":"R","namespace":"n","fields":[{"name":"a","type":"P"},{"name":"b","type":["null","n.P"]}]}"#.to_owned(),
            references: vec![("n.P".to_owned(), r#"{"type":"record","name":"P","namespace":"n","fields":[{"name":"x","type":"int"}]}"#.to_owned())],
        };
        let merged: Value = serde_json::from_str(&with_references(&schema).unwrap()).unwrap();
        assert_eq!(merged["fields"][0]["type"]["name"], "P");
        assert_eq!(merged["fields"][1]["type"][1], "n.P");
        let names: Vec<String> = columns(&schema).unwrap().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["a.x", "b.x"]);
    }
}
