//! CSV files with a header line.

use std::io::Read;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, ArrowPrimitiveType, AsArray, RecordBatch};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Float16Type, Float64Type, Schema as ArrowSchema, SchemaRef};
use arrow::error::ArrowError;
use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::schema::ColumnType;

use super::bisect;
use super::jsonl::null_row;
use super::lines::{self, IndexedLines, LineRule};
use crate::cache::{CachedSize, ShardCache, ShardCacheMemory};
use crate::columns::{arrow_type, build_batch, column_type, null_column};
use crate::content::{Content, ContentWindow};
use crate::error::SourceError;
use crate::exact_cast::{cast_values, has_leading_zero, is_exact, parse_64_bits};
use crate::limits::{MAX_CSV_COLUMNS, MAX_HEADER_BYTES};
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows;
use crate::select::{InferenceNotes, ResolvedColumn, Selection};

/// Number of rows that are sampled to infer the column types.
const SAMPLED_ROWS: u64 = 1000;
/// Size of the first read, which contains most header lines.
const FIRST_HEADER_READ_BYTES: u64 = 64 << 10;

/// The header line of a shard.
pub(crate) struct CsvHeader {
    names: Vec<String>,
    line: Vec<u8>,
    /// The byte offset after the header line.
    end: u64,
}

impl CachedSize for CsvHeader {
    fn held_bytes(&self) -> usize {
        self.line.len() + self.names.iter().map(|name| size_of::<String>() + name.len()).sum::<usize>()
    }
}

/// Reads CSV files.
pub(super) struct CsvReader {
    headers: ShardCache<CsvHeader>,
}

impl CsvReader {
    pub(super) fn new(memory: &ShardCacheMemory) -> Self {
        Self { headers: ShardCache::new(memory) }
    }
}

#[async_trait]
impl FormatReader for CsvReader {
    fn sample_traits(&self, _: &ShardRef) -> SampleTraits {
        SampleTraits::of_rows(SampleMethod::FirstLines)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        let mut window = ContentWindow::open(object).await?;
        let header = self.headers.get(object, || read_first_header(&mut window)).await?;
        let IndexedLines { blocks, defects, compression } =
            lines::index(&mut window, LineRule::Csv, header.end, None).await?;
        if blocks.is_empty() {
            return Ok(ShardIndex { blocks, defects, compression, ..ShardIndex::default() });
        }
        let _memory = window.into_memory();
        let content = Content::indexed(object, compression.as_ref());
        let sample = lines::sample(&content, &blocks, SAMPLED_ROWS).await?;
        let (found, notes) =
            infer(&header, &sample).map_err(|reason| SourceError::unsupported(object.shard(), reason))?;
        let (schema, columns) = selection.resolve_fixed(object.shard(), &found, &notes)?;
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
        let content = Content::of_block(object, read);
        let header = self.headers.get(object, || read_header(&content)).await?;
        let rows = rows::fetch(object, read, |bytes| lines::split(LineRule::Csv, bytes)).await?;
        let corrupt = |reason| SourceError::corrupt(read.shard, read.block.offset, reason);
        let positions: Vec<Option<usize>> = selection
            .data_names(read.schema)
            .into_iter()
            .map(|name| header.names.iter().position(|known| known == name))
            .collect();
        let mut types = vec![DataType::Utf8View; header.names.len()];
        for (field, position) in read.schema.fields.iter().zip(&positions) {
            if let Some(position) = position {
                // Other datasets of a mix contain lists. Values become lists of one value.
                let single = match &field.column_type {
                    ColumnType::List(item) => item,
                    other => other,
                };
                types[*position] = arrow_type(single);
            }
        }
        let mut projection: Vec<usize> = positions.iter().flatten().copied().collect();
        projection.sort_unstable();
        projection.dedup();
        let fields: Vec<Field> = header
            .names
            .iter()
            .zip(types)
            .map(|(name, data_type)| Field::new(name, data_type, true))
            .collect();
        let decoder = RowDecoder { schema: Arc::new(ArrowSchema::new(fields)), projection };
        let null_row = null_row(&decoder.projected());
        let (data, failures) =
            bisect::decode_rows(&rows, &null_row, &|lines| decoder.decode(lines)).map_err(corrupt)?;
        let column = |(field, position): (&feedline_data::schema::Field, &Option<usize>)| {
            let at =
                position.and_then(|position| decoder.projection.iter().position(|&known| known == position));
            match at {
                None => Ok(null_column(&field.column_type, data.num_rows())),
                Some(at) => cast_values(data.column(at), &arrow_type(&field.column_type)),
            }
        };
        let columns: Result<Vec<ArrayRef>, ArrowError> =
            read.schema.fields.iter().zip(&positions).map(column).collect();
        let columns = columns.map_err(|error| corrupt(error.to_string()))?;
        let batch = build_batch(read.schema, columns, data.num_rows()).map_err(corrupt)?;
        let held_bytes = batch.get_array_memory_size();
        Ok(DecodedBlock { batch, failures, held_bytes })
    }
}

async fn read_header(content: &Content<'_>) -> Result<CsvHeader, SourceError> {
    let shard = content.object().shard();
    let mut read_bytes = FIRST_HEADER_READ_BYTES;
    loop {
        let bytes = content.read_start(read_bytes).await?;
        let is_whole = (bytes.len() as u64) < read_bytes;
        if let Some(header) = parse_header(shard, &bytes, is_whole)? {
            return Ok(header);
        }
        read_bytes = (read_bytes * 8).min(MAX_HEADER_BYTES);
    }
}

/// Reads the header of a shard that is indexed. The file may be damaged after it.
async fn read_first_header(window: &mut ContentWindow<'_>) -> Result<CsvHeader, SourceError> {
    let shard = window.content().object().shard();
    let mut read_bytes = FIRST_HEADER_READ_BYTES;
    loop {
        window.fill(0, read_bytes).await?;
        let bytes = window.bytes(0);
        let has_all = (bytes.len() as u64) < read_bytes;
        let damage = window.error().filter(|_| has_all);
        if let Some(header) = parse_header(shard, bytes, has_all && damage.is_none())? {
            return Ok(header);
        }
        if let Some(reason) = damage {
            return Err(SourceError::corrupt(shard, 0, reason));
        }
        read_bytes = (read_bytes * 8).min(MAX_HEADER_BYTES);
    }
}

/// Parses the header at the start of a shard. `None` if its end is not in `bytes`, which are the whole shard if `is_whole`.
fn parse_header(shard: &ShardRef, bytes: &[u8], is_whole: bool) -> Result<Option<CsvHeader>, SourceError> {
    let start = lines::byte_order_mark_bytes(bytes);
    let rows = &bytes[start..];
    let mut end = None;
    // Return an error to stop at the end of the first row.
    let _ = lines::Splitter::new(LineRule::Csv).feed(rows, |row_end| {
        end = Some(row_end);
        Err(())
    });
    let end = match end {
        Some(end) => end,
        None if is_whole => rows.len(),
        None if bytes.len() as u64 >= MAX_HEADER_BYTES => {
            let reason = format!(
                "the header line is longer than {MAX_HEADER_BYTES} bytes: check the format, and the quotes in the header"
            );
            return Err(SourceError::corrupt(shard, start as u64, reason));
        }
        None => return Ok(None),
    };
    let mut line = rows[..end].to_vec();
    if let Some(at) = lone_carriage_return(&line) {
        let reason = "the header line contains a carriage return without a line feed: write the file with line feeds as line ends";
        return Err(SourceError::corrupt(shard, (start + at) as u64, reason.to_owned()));
    }
    if !line.ends_with(b"\n") {
        line.push(b'\n');
    }
    let names = field_names(&line).map_err(|reason| SourceError::corrupt(shard, start as u64, reason))?;
    Ok(Some(CsvHeader { names, line, end: (start + end) as u64 }))
}

/// Returns the offset of the first carriage return outside of quotes that no line feed follows.
fn lone_carriage_return(line: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    line.iter().enumerate().position(|(at, byte)| {
        is_quoted ^= *byte == b'"';
        *byte == b'\r' && !is_quoted && line.get(at + 1) != Some(&b'\n')
    })
}

fn field_names(line: &[u8]) -> Result<Vec<String>, String> {
    let commas = memchr::memchr_iter(b',', line).count();
    if commas >= MAX_CSV_COLUMNS {
        return Err(format!(
            "the header line has {} columns, more than the limit of {MAX_CSV_COLUMNS}: write fewer columns",
            commas + 1
        ));
    }
    let (schema, _) = Format::default()
        .with_header(true)
        .infer_schema(line, Some(0))
        .map_err(|error| format!("the header line cannot be read: {error}"))?;
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}

/// Infers the column types from the first rows. Skips rows that do not match the header. The error is reported when these
/// rows are read.
fn infer(header: &CsvHeader, sample: &[u8]) -> Result<(Vec<ResolvedColumn>, InferenceNotes), String> {
    let infer = |rows: &[u8]| {
        Format::default()
            .with_header(true)
            .infer_schema(header.line.as_slice().chain(rows), Some(SAMPLED_ROWS as usize))
    };
    let spans = lines::split(LineRule::Csv, sample).map_err(|bad| bad.reason)?;
    let mut rows: Vec<&[u8]> =
        spans.into_iter().take(SAMPLED_ROWS as usize).map(|span| &sample[span]).collect();
    let sampled = rows.len();
    rows.retain(|row| !has_text_after_quote(row));
    let inferred = if rows.len() < sampled { infer(&rows.concat()) } else { infer(sample) };
    let schema = match inferred {
        Ok((schema, _)) => schema,
        Err(_) => {
            rows.retain(|row| infer(row).is_ok());
            infer(&rows.concat())
                .map_err(|error| format!("cannot infer the column types from the first rows: {error}"))?
                .0
        }
    };
    let codes = code_columns(&schema, &rows);
    let mut notes = InferenceNotes::default();
    let mut columns = Vec::with_capacity(schema.fields().len());
    for (index, field) in schema.fields().iter().enumerate() {
        let name = field.name().clone();
        if field.data_type() == &DataType::Null {
            notes.untyped.insert(name.clone());
        }
        let is_code = codes.contains(&index);
        let column_type = if is_code { ColumnType::Utf8 } else { csv_type(field.data_type()) };
        columns.push((name, Ok(column_type)));
    }
    Ok((columns, notes))
}

/// Returns the columns of numbers that contain codes, such as postal codes, which must remain text.
fn code_columns(schema: &ArrowSchema, rows: &[&[u8]]) -> Vec<usize> {
    let types = schema.fields().iter().map(|field| field.data_type());
    let numbers = types.enumerate().filter(|(_, data_type)| data_type.is_numeric()).map(|(column, _)| column);
    let numbers: Vec<usize> = numbers.collect();
    if numbers.is_empty() || !rows.iter().any(|row| may_have_codes(row) || !row.is_ascii()) {
        return Vec::new();
    }
    let Ok(texts) = RowDecoder::of_texts(schema, numbers.clone()).decode(rows) else { return Vec::new() };
    let has_code = |column: usize, texts: &ArrayRef| {
        let data_type = schema.field(column).data_type();
        texts.as_string_view().iter().flatten().any(|text| is_code(text, data_type))
    };
    let codes = numbers.into_iter().zip(texts.columns()).filter(|(column, texts)| has_code(*column, texts));
    codes.map(|(column, _)| column).collect()
}

/// Whether a number would lose its first digit or its sign as a number of this type. A plus sign among fractions is not part of a
/// code. Digits of other scripts are text.
fn is_code(text: &str, data_type: &DataType) -> bool {
    let text = text.trim_ascii();
    if !text.is_ascii() {
        return true;
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text).as_bytes();
    let is_integer = digits.iter().all(u8::is_ascii_digit);
    is_integer && (has_leading_zero(digits) || data_type.is_integer() && text.starts_with('+'))
}

/// Whether a row may contain an integer with a leading zero or a plus sign. Almost all rows with numbers contain none.
fn may_have_codes(row: &[u8]) -> bool {
    memchr::memchr2_iter(b'0', b'+', row).any(|at| {
        let begins_code = row[at] == b'+' || row.get(at + 1).is_some_and(u8::is_ascii_digit);
        let start = if at > 0 && row[at - 1] == b'-' { at - 1 } else { at };
        begins_code && matches!(row[..start].trim_ascii_end().last(), None | Some(b',' | b'"'))
    })
}

/// Whether other text follows the closing quote of a field, as in `"a\"b"`, whose quote is escaped by a backslash.
fn has_text_after_quote(row: &[u8]) -> bool {
    if memchr::memchr(b'"', row).is_none() {
        return false;
    }
    let (mut is_quoted, mut is_field_start, mut is_after_quote) = (false, true, false);
    for &byte in row {
        match byte {
            _ if is_quoted => (is_quoted, is_after_quote) = (byte != b'"', byte == b'"'),
            b'"' if is_field_start || is_after_quote => is_quoted = true,
            b',' => is_after_quote = false,
            // Blank lines before the row, or its end.
            b'\r' | b'\n' => continue,
            _ if is_after_quote => return true,
            _ => {}
        }
        is_field_start = !is_quoted && byte == b',';
    }
    false
}

/// Converts an inferred type. Numbers and booleans keep their type. All other values, such as dates, are text.
fn csv_type(data_type: &DataType) -> ColumnType {
    match column_type(data_type) {
        Ok(scalar @ ColumnType::Scalar(_)) => scalar,
        _ => ColumnType::Utf8,
    }
}

struct RowDecoder {
    /// All columns of the file.
    schema: SchemaRef,
    /// The indexes of the requested columns, in ascending order.
    projection: Vec<usize>,
}

impl RowDecoder {
    /// Decodes columns, whose indexes are in ascending order, as text.
    fn of_texts(schema: &ArrowSchema, columns: Vec<usize>) -> Self {
        let text = |field: &Arc<Field>| field.as_ref().clone().with_data_type(DataType::Utf8View);
        let fields: Vec<Field> = schema.fields().iter().map(text).collect();
        Self { schema: Arc::new(ArrowSchema::new(fields)), projection: columns }
    }

    /// Checks that no number in decoded rows is another value than its text: an integer that is rounded, a number that is infinite
    /// because it is too large, or a code, such as a postal code, that lost its leading zeros. Fractions, and integers of more than
    /// 64 bits, are rounded to the nearest float64.
    fn check_numbers(&self, rows: &[&[u8]], batch: &RecordBatch) -> Result<(), String> {
        let has_numbers = batch.columns().iter().any(|values| values.data_type().is_numeric());
        let may_have_codes = has_numbers && rows.iter().any(|row| may_have_codes(row));
        let is_checked = |values: &ArrayRef| match values.data_type() {
            // The narrow types are those of other datasets.
            DataType::Float16 | DataType::Float32 => true,
            data_type => data_type.is_numeric() && may_have_codes || has_large_numbers(values),
        };
        let checked = self.projection.iter().zip(batch.columns()).filter(|(_, values)| is_checked(values));
        let checked: Vec<usize> = checked.map(|(&column, _)| column).collect();
        if checked.is_empty() {
            return Ok(());
        }
        let texts = Self::of_texts(&self.schema, checked.clone()).decode(rows)?;
        for (column, texts) in checked.into_iter().zip(texts.columns()) {
            let field = self.schema.field(column);
            for text in texts.as_string_view().iter().flatten() {
                check_number(text, field.data_type())
                    .map_err(|reason| format!("column `{}`: {reason}", field.name()))?;
            }
        }
        Ok(())
    }

    /// Returns the reason why a row cannot be decoded, with the name of the column. The decoder states the index of the column, and
    /// the number of the line among the decoded rows.
    fn failure_reason(&self, error: &str) -> String {
        let parsed = || {
            let (_, rest) = error.split_once("Error while parsing value '")?;
            let (value, rest) = rest.split_once("' as type '")?;
            let (_, rest) = rest.split_once("' for column ")?;
            let (index, _) = rest.split_once(' ')?;
            let field = self.schema.fields().get(index.parse::<usize>().ok()?)?;
            Some((field, value))
        };
        let Some((field, value)) = parsed() else { return error.to_owned() };
        let expected = field.data_type().to_string().to_lowercase();
        format!("column `{}`: expected {expected} as in the first rows, but found `{value}`", field.name())
    }

    fn projected(&self) -> SchemaRef {
        Arc::new(
            self.schema.project(&self.projection).expect("the projection contains columns of the schema"),
        )
    }

    fn decode(&self, rows: &[&[u8]]) -> Result<RecordBatch, String> {
        let text = |error: ArrowError| self.failure_reason(&row_error(&error.to_string()));
        if rows.iter().any(|row| has_text_after_quote(row)) {
            return Err(
                "text follows the closing quote of a field: write a quote within a field as two quotes"
                    .to_owned(),
            );
        }
        let mut decoder = ReaderBuilder::new(self.schema.clone())
            .with_header(false)
            .with_batch_size(rows.len() + 1)
            .with_projection(self.projection.clone())
            .build_decoder();
        for row in rows {
            if decoder.decode(row).map_err(text)? != row.len() {
                return Err("the row contains more than one record".to_owned());
            }
        }
        // End the last row, which may have no line break.
        decoder.decode(&[]).map_err(text)?;
        match decoder.flush().map_err(text)? {
            Some(batch) if batch.num_rows() == rows.len() => {
                self.check_numbers(rows, &batch)?;
                Ok(batch)
            }
            Some(_) => Err("the row contains more than one record".to_owned()),
            None => Err("the row is empty".to_owned()),
        }
    }
}

/// Describes an error in a row. The decoder counts lines from the row.
fn row_error(error: &str) -> String {
    let counts = error.strip_prefix("Csv error: incorrect number of fields for line ");
    match counts.and_then(|counts| counts.split_once(", ")) {
        Some((_, counts)) => format!(
            "the row has another number of fields than the header ({counts}): quote fields that contain commas or quotes"
        ),
        None => error.to_owned(),
    }
}

/// Whether a column contains numbers so large that float64 does not represent every integer of their size.
fn has_large_numbers(column: &dyn Array) -> bool {
    const EXACT: f64 = (1_u64 << 53) as f64;
    let values = column.as_primitive_opt::<Float64Type>();
    values.is_some_and(|values| values.values().iter().any(|value| value.abs() >= EXACT))
}

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// Checks that the number in a text, which the decoder accepts as this type, is not another value.
fn check_number(text: &str, data_type: &DataType) -> Result<(), String> {
    if is_code(text, data_type) {
        let (number, lost) = match data_type.is_integer() {
            true => ("an integer", "its first digit or sign"),
            false => ("a number", "its first digit"),
        };
        return Err(format!("`{text}` is not {number} as in the first rows, because {lost} would be lost"));
    }
    let is_changed = match data_type {
        DataType::Float64 => changes_as_float64(text),
        DataType::Float32 => changes_as_float64(text) || changes(text, |value| f64::from(value as f32)),
        DataType::Float16 => {
            changes_as_float64(text) || changes(text, |value| Half::from_f64(value).to_f64())
        }
        _ => false,
    };
    match is_changed {
        true => Err(format!("{} does not represent {text} exactly", data_type.to_string().to_lowercase())),
        false => Ok(()),
    }
}

/// Whether the number in a text, which the decoder accepts as float64, is another number as float64.
fn changes_as_float64(text: &str) -> bool {
    let text = text.trim_ascii();
    let is_too_large =
        || text.parse().is_ok_and(f64::is_infinite) && text.bytes().any(|byte| byte.is_ascii_digit());
    match parse_64_bits(text) {
        Some(integer) => !is_exact(integer),
        None => is_too_large(),
    }
}

/// Whether a narrower type represents the number less exactly than float64 does.
fn changes(text: &str, narrow: impl Fn(f64) -> f64) -> bool {
    text.trim_ascii().parse().is_ok_and(|value: f64| !value.is_nan() && narrow(value) != value)
}

#[cfg(test)]
mod tests;
