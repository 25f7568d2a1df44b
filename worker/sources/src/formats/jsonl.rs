//! JSON Lines files: one JSON object per line. A file with a JSON array of objects has one row per object.

mod infer;
mod numbers;
mod scan;
mod strict;

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use arrow::error::ArrowError;
use arrow::json::ReaderBuilder;
use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::schema::ColumnType;

use super::bisect;
use super::lines::{self, IndexedLines, LineRule};
use crate::columns::{arrow_field, build_batch};
use crate::content::ContentWindow;
use crate::error::SourceError;
use crate::limits::MAX_JSON_DEPTH;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, RowFailure, SampleMethod, SampleTraits};
use crate::rows::{self, RowSet};
use crate::select::Selection;

use infer::Inference;
use numbers::ExactValues;

/// The bit of the group of a block that marks a JSON array. Other bits state the part of a long run.
const ARRAY_BIT: u32 = 1 << 2;
/// Number of bytes before the first row of an array, and at the end of each row: a bracket or a comma.
const SEPARATOR_BYTES: usize = 1;
/// Number of bytes at the start of a file in which an array begins.
const MAX_ARRAY_START_BYTES: u64 = 4 << 10;

/// Reads files with one JSON object per line.
pub(super) struct JsonlReader;

#[async_trait]
impl FormatReader for JsonlReader {
    fn sample_traits(&self, shard: &ShardRef) -> SampleTraits {
        // An array may be one long line.
        let may_be_array = shard.url.ends_with(".json");
        SampleTraits::of_rows(if may_be_array { SampleMethod::FirstRows } else { SampleMethod::FirstLines })
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let mut window = ContentWindow::open(object).await?;
        let (rule, start) = first_row(&mut window).await?;
        let end_bytes = if rule == LineRule::JsonArray { SEPARATOR_BYTES } else { 0 };
        let mut inference = Inference::new(selection);
        let mut on_row =
            |row: &[u8]| inference.add(&row[..row.len().saturating_sub(end_bytes)], is_json_object);
        let IndexedLines { mut blocks, defects, compression } =
            lines::index(&mut window, rule, start, Some(&mut on_row)).await?;
        if blocks.is_empty() {
            return Ok(ShardIndex { blocks, defects, compression, ..ShardIndex::default() });
        }
        if !inference.has_rows {
            let reason = "none of the lines is a JSON object: check `source.format`";
            return Err(SourceError::unsupported(object.shard(), reason));
        }
        let (found, inferred) = inference.finish();
        let (schema, columns) = selection.resolve_inferred(object.shard(), &found, &inferred)?;
        if rule == LineRule::JsonArray {
            blocks.iter_mut().for_each(|block| block.group |= ARRAY_BIT);
        }
        Ok(ShardIndex {
            blocks,
            schema: Some(schema),
            defects,
            columns,
            compression,
            ..ShardIndex::default()
        })
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        let is_array = read.block.group & ARRAY_BIT != 0;
        let rule = if is_array { LineRule::JsonArray } else { LineRule::Jsonl };
        let mut rows = rows::fetch(object, read, |bytes| lines::split(rule, bytes)).await?;
        if is_array {
            rows.rows.iter_mut().for_each(|row| row.span.len = row.span.len.saturating_sub(SEPARATOR_BYTES));
        }
        let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
        let names = selection.data_names(read.schema);
        let types = read.schema.fields.iter().map(|field| &field.column_type);
        let columns: Vec<(&str, &ColumnType)> = names.into_iter().zip(types).collect();
        let (columns, failures) = decode_columns(&rows, &columns).map_err(corrupt)?;
        let batch = build_batch(read.schema, columns, rows.rows.len()).map_err(corrupt)?;
        let held_bytes = batch.get_array_memory_size();
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

/// Decodes JSON objects to columns, which are given by their keys and types.
pub(crate) fn decode_columns(
    rows: &RowSet,
    columns: &[(&str, &ColumnType)],
) -> Result<(Vec<ArrayRef>, Vec<RowFailure>), String> {
    let mut fields: Vec<Field> = Vec::new();
    for (name, column_type) in columns {
        if !fields.iter().any(|known| known.name() == name) {
            fields.push(decoded_field(arrow_field(name, column_type)));
        }
    }
    let data_schema: SchemaRef = Arc::new(ArrowSchema::new(fields));
    let null_row = null_row(&data_schema);
    let (data, failures) = bisect::decode_rows(rows, &null_row, &|lines| decode(&data_schema, lines))?;
    let column = |(name, _): &(&str, &ColumnType)| -> ArrayRef {
        let column = data.column_by_name(name).expect("the decoded schema contains every requested name");
        match column.as_string_opt::<i64>() {
            Some(text) => Arc::new(StringViewArray::from(text)),
            None => Arc::clone(column),
        }
    };
    Ok((columns.iter().map(column).collect(), failures))
}

/// The field with which a column is decoded. The decoder of arrow-json allocates 16 bytes for each byte of a column of views, so text
/// is decoded with offsets, and the views refer to its bytes.
fn decoded_field(field: Field) -> Field {
    match field.data_type() {
        DataType::Utf8View => field.with_data_type(DataType::LargeUtf8),
        _ => field,
    }
}

/// Returns the rule of the rows, and the offset of the first one. The file is an array if it begins with a bracket and an object.
async fn first_row(window: &mut ContentWindow<'_>) -> Result<(LineRule, u64), SourceError> {
    let start = lines::first_row_offset(window).await?;
    let bytes = window.read_from(start, MAX_ARRAY_START_BYTES).await?;
    let space = |bytes: &[u8]| bytes.len() - bytes.trim_ascii_start().len();
    let bracket = space(bytes);
    let after = bytes.get(bracket + 1..).unwrap_or_default();
    let is_array = bytes.get(bracket) == Some(&b'[') && matches!(after.get(space(after)), Some(b'{' | b']'));
    Ok(if is_array {
        (LineRule::JsonArray, start + bracket as u64 + SEPARATOR_BYTES as u64)
    } else {
        (LineRule::Jsonl, start)
    })
}

/// Infers the columns from JSON objects. Ignores other payloads. `None` if there is no object.
#[cfg(feature = "kafka")]
pub(crate) fn infer_columns(
    payloads: &[&[u8]],
) -> Option<(Vec<crate::select::ResolvedColumn>, crate::select::InferenceNotes)> {
    // The pipeline may name the columns of payloads differently.
    let selection = Selection::default();
    let mut inference = Inference::new(&selection);
    payloads.iter().for_each(|payload| inference.add(payload, is_json_object));
    inference.has_rows.then(|| inference.finish())
}

/// Whether the decoder accepts a line.
fn is_json_object(line: &[u8]) -> bool {
    decode(&Arc::new(ArrowSchema::empty()), &[line]).is_ok()
}

/// A batch of one row of nulls.
pub(crate) fn null_row(schema: &SchemaRef) -> RecordBatch {
    let columns =
        schema.fields().iter().map(|field| arrow::array::new_null_array(field.data_type(), 1)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    RecordBatch::try_new_with_options(schema.clone(), columns, &options)
        .expect("one null per nullable field fits")
}

fn decode(schema: &SchemaRef, lines: &[&[u8]]) -> Result<RecordBatch, String> {
    let mut decoder = ReaderBuilder::new(schema.clone())
        .with_batch_size(lines.len() + 1)
        .with_decoder_factory(Arc::new(ExactValues))
        .build_decoder()
        .map_err(failure_reason)?;
    for (index, line) in lines.iter().enumerate() {
        if is_nested_too_deep(line) {
            return Err(format!("the values of the line are nested more than {MAX_JSON_DEPTH} deep"));
        }
        strict::check(line)?;
        // A line break completes values such as numbers.
        for piece in [line, b"\n".as_slice()] {
            if decoder.decode(piece).map_err(failure_reason)? != piece.len() {
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
    match decoder.flush().map_err(failure_reason)? {
        Some(batch) if batch.num_rows() == lines.len() => Ok(without_spare_memory(batch)),
        _ => Err("the line is not a JSON object".to_owned()),
    }
}

/// Returns the reason why a row cannot be decoded, with the name of the column.
fn failure_reason(error: ArrowError) -> String {
    let ArrowError::JsonError(text) = error else { return error.to_string() };
    let column = text.strip_prefix("whilst decoding field '").and_then(|rest| rest.split_once("': "));
    let Some((column, reason)) = column else { return text };
    let Some((expected, value)) = reason.strip_prefix("expected ").and_then(|rest| rest.split_once(" got "))
    else {
        return format!("column `{column}`: {reason}");
    };
    let expected = match expected {
        "string" => "text",
        "[" => "a list",
        "boolean" => "a boolean",
        other => other,
    };
    format!("column `{column}`: expected {expected} as in the first rows with this column, but found {value}")
}

/// Releases the memory that the decoder has allocated in excess, such as for lists of text.
fn without_spare_memory(batch: RecordBatch) -> RecordBatch {
    let (schema, mut columns, rows) = batch.into_parts();
    columns.iter_mut().filter_map(Arc::get_mut).for_each(|column| column.shrink_to_fit());
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, columns, &options)
        .expect("types and lengths are those of the batch")
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
