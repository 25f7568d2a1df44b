//! JSON Lines files: one JSON object per line.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use arrow::json::ReaderBuilder;
use arrow::json::reader::infer_json_schema_from_iterator;
use async_trait::async_trait;
use feedline_data::manifest::ShardIndex;
use feedline_data::schema::ColumnType;

use super::bisect;
use super::lines::{self, LineRule};
use crate::columns::{arrow_field, build_batch, column_type};
use crate::error::SourceError;
use crate::limits::MAX_JSON_DEPTH;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::rows;
use crate::select::{ResolvedColumn, Selection};

/// Number of lines that are sampled to infer the columns.
const SAMPLED_ROWS: u64 = 1000;

/// Reads files with one JSON object per line.
pub(super) struct JsonlReader;

#[async_trait]
impl FormatReader for JsonlReader {
    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let start = lines::first_row_offset(object).await?;
        let (blocks, defects) = lines::index(object, LineRule::Jsonl, start).await?;
        if blocks.is_empty() {
            return Ok(ShardIndex { blocks, schema: None, defects });
        }
        let sample = lines::sample(object, &blocks, SAMPLED_ROWS).await?;
        let found = infer(&sample).map_err(|reason| SourceError::unsupported(object.shard(), reason))?;
        let schema = selection.schema(object.shard(), &found)?;
        Ok(ShardIndex { blocks, schema: Some(schema), defects })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let rows = rows::fetch(object, read, |bytes| lines::split(LineRule::Jsonl, bytes)).await?;
        let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
        let names = selection.data_names(read.schema);
        let mut fields: Vec<Field> = Vec::new();
        for (field, name) in read.schema.fields.iter().zip(&names) {
            if !fields.iter().any(|known| known.name() == name) {
                fields.push(arrow_field(name, &field.column_type));
            }
        }
        let data_schema: SchemaRef = Arc::new(ArrowSchema::new(fields));
        let null_row = null_row(&data_schema);
        let (data, failures) =
            bisect::decode_rows(&rows, &null_row, &|lines| decode(&data_schema, lines)).map_err(corrupt)?;
        let column = |name: &&str| -> ArrayRef {
            data.column_by_name(name).expect("the decoded schema contains every requested name").clone()
        };
        let columns = names.iter().map(column).collect();
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        let held_bytes = batch.get_array_memory_size();
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

/// Infers the columns from the first lines. Skips lines that are not JSON objects. The error is reported when these lines
/// are read.
fn infer(sample: &[u8]) -> Result<Vec<ResolvedColumn>, String> {
    let objects: Vec<serde_json::Value> = sample
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.trim_ascii().is_empty())
        .take(SAMPLED_ROWS as usize)
        .filter_map(|line| serde_json::from_slice(line).ok())
        .filter(serde_json::Value::is_object)
        .collect();
    if objects.is_empty() {
        return Err("none of the first lines is a JSON object: check `source.format`".to_owned());
    }
    let schema = infer_json_schema_from_iterator(objects.iter().map(Ok))
        .map_err(|error| format!("cannot infer the columns from the first lines: {error}"))?;
    Ok(schema.fields().iter().map(|field| (field.name().clone(), json_type(field.data_type()))).collect())
}

fn json_type(data_type: &DataType) -> Result<ColumnType, String> {
    match data_type {
        // Nulls alone do not determine the type. Text can represent every value.
        DataType::Null => Ok(ColumnType::Utf8),
        DataType::List(item) => Ok(ColumnType::List(Box::new(json_type(item.data_type())?))),
        DataType::Struct(_) => Err("nested objects are not supported".to_owned()),
        other => column_type(other),
    }
}

/// A batch of one row of nulls.
pub(crate) fn null_row(schema: &SchemaRef) -> RecordBatch {
    let columns =
        schema.fields().iter().map(|field| arrow::array::new_null_array(field.data_type(), 1)).collect();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .expect("one null per nullable field fits")
}

fn decode(schema: &SchemaRef, lines: &[&[u8]]) -> Result<RecordBatch, String> {
    let text = |error: arrow::error::ArrowError| error.to_string();
    let mut decoder = ReaderBuilder::new(schema.clone())
        .with_batch_size(lines.len() + 1)
        .with_coerce_primitive(true)
        .build_decoder()
        .map_err(text)?;
    for (index, line) in lines.iter().enumerate() {
        if is_nested_too_deep(line) {
            return Err(format!("the values of the line are nested more than {MAX_JSON_DEPTH} deep"));
        }
        // A line break completes values such as numbers.
        for piece in [line, b"\n".as_slice()] {
            if decoder.decode(piece).map_err(text)? != piece.len() {
                return Err("the line contains more than one JSON object".to_owned());
            }
        }
        if decoder.has_partial_record() {
            return Err("the JSON object of the line is incomplete".to_owned());
        }
        if decoder.len() != index + 1 {
            return Err("the line contains more than one JSON object".to_owned());
        }
    }
    match decoder.flush().map_err(text)? {
        Some(batch) if batch.num_rows() == lines.len() => Ok(batch),
        _ => Err("the line is not a JSON object".to_owned()),
    }
}

fn is_nested_too_deep(line: &[u8]) -> bool {
    // Return early for most lines, which have few brackets.
    if memchr::memchr2_iter(b'[', b'{', line).nth(MAX_JSON_DEPTH).is_none() {
        return false;
    }
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    for &byte in line {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = in_text,
            b'"' => in_text = !in_text,
            _ if in_text => {}
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_JSON_DEPTH {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests;
