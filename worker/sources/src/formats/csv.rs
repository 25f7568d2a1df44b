//! CSV files with a header line.

use std::io::Read;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::csv::ReaderBuilder;
use arrow::csv::reader::Format;
use arrow::datatypes::{DataType, Field, Schema as ArrowSchema, SchemaRef};
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
use crate::limits::{MAX_CSV_COLUMNS, MAX_HEADER_BYTES};
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader, SampleMethod, SampleTraits};
use crate::rows;
use crate::select::{ResolvedColumn, Selection};

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
        let content = window.content();
        let header = self.headers.get(object, || read_header(&content)).await?;
        let IndexedLines { blocks, defects, compression } =
            lines::index(&mut window, LineRule::Csv, header.end).await?;
        if blocks.is_empty() {
            return Ok(ShardIndex { blocks, schema: None, defects, compression, graph: None });
        }
        drop(window);
        let content = Content::indexed(object, compression.as_ref());
        let sample = lines::sample(&content, &blocks, SAMPLED_ROWS).await?;
        let found =
            infer(&header, &sample).map_err(|reason| SourceError::unsupported(object.shard(), reason))?;
        let schema = selection.schema(object.shard(), &found)?;
        Ok(ShardIndex { blocks, schema: Some(schema), defects, compression, graph: None })
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
                types[*position] = arrow_type(&field.column_type);
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
        let column = |(field, position): (&feedline_data::schema::Field, &Option<usize>)| -> ArrayRef {
            let at =
                position.and_then(|position| decoder.projection.iter().position(|&known| known == position));
            at.map_or_else(|| null_column(&field.column_type, data.num_rows()), |at| data.column(at).clone())
        };
        let columns = read.schema.fields.iter().zip(&positions).map(column).collect();
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
        let start = lines::byte_order_mark_bytes(&bytes);
        let bytes = bytes.slice(start..);
        let mut end = None;
        // Return an error to stop at the end of the first row.
        let _ = lines::Splitter::new(LineRule::Csv).feed(&bytes, |row_end| {
            end = Some(row_end);
            Err(())
        });
        let end = match end {
            Some(end) => end,
            None if is_whole => bytes.len(),
            None if read_bytes >= MAX_HEADER_BYTES => {
                let reason = format!(
                    "the header line is longer than {MAX_HEADER_BYTES} bytes: check the format, and the quotes in the header"
                );
                return Err(SourceError::corrupt(shard, start as u64, reason));
            }
            None => {
                read_bytes = (read_bytes * 8).min(MAX_HEADER_BYTES);
                continue;
            }
        };
        let mut line = bytes[..end].to_vec();
        if !line.ends_with(b"\n") {
            line.push(b'\n');
        }
        let names = field_names(&line).map_err(|reason| SourceError::corrupt(shard, start as u64, reason))?;
        return Ok(CsvHeader { names, line, end: (start + end) as u64 });
    }
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
fn infer(header: &CsvHeader, sample: &[u8]) -> Result<Vec<ResolvedColumn>, String> {
    let infer = |rows: &[u8]| {
        Format::default()
            .with_header(true)
            .infer_schema(header.line.as_slice().chain(rows), Some(SAMPLED_ROWS as usize))
    };
    let schema = match infer(sample) {
        Ok((schema, _)) => schema,
        Err(_) => {
            let spans = lines::split(LineRule::Csv, sample).map_err(|bad| bad.reason)?;
            let rows = spans.into_iter().take(SAMPLED_ROWS as usize).map(|span| &sample[span]);
            let good: Vec<u8> = rows.filter(|row| infer(row).is_ok()).flatten().copied().collect();
            infer(&good)
                .map_err(|error| format!("cannot infer the column types from the first rows: {error}"))?
                .0
        }
    };
    Ok(schema.fields().iter().map(|field| (field.name().clone(), Ok(csv_type(field.data_type())))).collect())
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
    fn projected(&self) -> SchemaRef {
        Arc::new(
            self.schema.project(&self.projection).expect("the projection contains columns of the schema"),
        )
    }

    fn decode(&self, rows: &[&[u8]]) -> Result<RecordBatch, String> {
        let text = |error: arrow::error::ArrowError| error.to_string();
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
            Some(batch) if batch.num_rows() == rows.len() => Ok(batch),
            Some(_) => Err("the row contains more than one record".to_owned()),
            None => Err("the row is empty".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
