//! Entry points of the fuzzers: payloads with schemas, and answers of a schema registry.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use feedline_data::schema::ColumnType;

use super::registry::{RegisteredSchema, SchemaLanguage, read_answer};
use super::schemas::{self, BlockSchemas};
use crate::object::BufferSpan;
use crate::rows::{EncodedRow, RowSet};

/// Separates the schemas and the payloads of an input.
const SEPARATOR: u8 = 0xff;

/// Decodes payloads. The first byte of the input selects the language. The schema of the reader, the schema of the writer and the
/// payloads follow, with a separator after each.
pub fn decode_payloads(input: &[u8]) {
    let Some((kind, rest)) = input.split_first() else { return };
    let language = match kind % 3 {
        0 => SchemaLanguage::Avro,
        1 => SchemaLanguage::Protobuf,
        _ => SchemaLanguage::Json,
    };
    let mut parts = rest.split(|byte| *byte == SEPARATOR);
    let mut schema = |id| {
        let text = String::from_utf8(parts.next()?.to_vec()).ok()?;
        Some(Arc::new(RegisteredSchema {
            id,
            language,
            text,
            references: Vec::new(),
            protobuf: OnceLock::new(),
        }))
    };
    let (Some(reader), Some(writer)) = (schema(1), schema(2)) else { return };
    let mut data = Vec::new();
    let mut rows = Vec::new();
    for (number, body) in (0..).zip(parts) {
        let start = data.len();
        data.extend_from_slice(&[0, 0, 0, 0, 2]);
        data.extend_from_slice(body);
        rows.push(EncodedRow {
            span: BufferSpan { buffer: 0, start, len: data.len() - start },
            offset: number,
        });
    }
    let rows = RowSet { buffers: vec![Bytes::from(data)], rows };
    let Ok(columns) = schemas::columns(&reader, None) else { return };
    let columns: Vec<(String, ColumnType)> =
        columns.into_iter().filter_map(|(name, column)| Some((name, column.ok()?))).collect();
    let columns: Vec<(&str, &ColumnType)> =
        columns.iter().map(|(name, column)| (name.as_str(), column)).collect();
    let schemas = BlockSchemas { reader, writers: [(2, Some(writer))].into() };
    if let Ok((arrays, failures)) = schemas.decode(&rows, &columns, None) {
        assert!(arrays.iter().all(|array| array.len() == rows.rows.len()));
        assert!(failures.iter().all(|failure| (failure.row as usize) < rows.rows.len()));
    }
}

/// Reads an answer of a schema registry.
pub fn read_registry_answer(bytes: &[u8]) {
    read_answer(bytes);
}
