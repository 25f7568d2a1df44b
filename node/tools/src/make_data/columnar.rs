//! Writes Parquet, Arrow, JSON lines, CSV and plain text with the crates arrow and parquet.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::writer::FileWriter;
use arrow::json::LineDelimitedWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::output::Sink;
use super::shard_writer::ShardWriter;

/// Maximum size of a row group before encoding, in bytes. It keeps the reader's unit of work small.
const ROW_GROUP_BYTES: usize = 16 << 20;

/// Writes row groups of at most [`ROW_GROUP_BYTES`]. Compresses values with zstd, except for images, which are already
/// compressed.
pub(super) struct ParquetWriter {
    writer: parquet::arrow::ArrowWriter<Sink>,
    group_bytes: usize,
}

impl ParquetWriter {
    pub(super) fn new(sink: Sink, schema: &SchemaRef) -> Result<Self> {
        let images = schema.fields().iter().any(|field| field.data_type() == &DataType::Binary);
        let properties = if images {
            // A page can only end at the end of a write batch. Small write batches keep a page close to the size of one
            // image.
            WriterProperties::builder().set_dictionary_enabled(false).set_write_batch_size(4)
        } else {
            WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default()))
        };
        let writer =
            parquet::arrow::ArrowWriter::try_new(sink, Arc::clone(schema), Some(properties.build()))?;
        Ok(Self { writer, group_bytes: 0 })
    }
}

impl ShardWriter for ParquetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut written = 0;
        for row in 0..batch.num_rows() {
            let bytes = row_bytes(batch, row);
            if self.group_bytes > 0 && self.group_bytes + bytes > ROW_GROUP_BYTES {
                self.writer.write(&batch.slice(written, row - written))?;
                self.writer.flush()?;
                (written, self.group_bytes) = (row, 0);
            }
            self.group_bytes += bytes;
        }
        self.writer.write(&batch.slice(written, batch.num_rows() - written))?;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.writer.finish()?;
        Ok(self.writer.inner_mut().flush()?)
    }
}

/// Returns the size of a row's values in bytes.
fn row_bytes(batch: &RecordBatch, row: usize) -> usize {
    let value_bytes = |column: &Arc<dyn Array>| match column.data_type() {
        DataType::Binary => column.as_binary::<i32>().value_length(row) as usize,
        DataType::Utf8 => column.as_string::<i32>().value_length(row) as usize,
        other => other.primitive_width().unwrap_or(1),
    };
    batch.columns().iter().map(value_bytes).sum()
}

/// Writes an Arrow IPC file with one record batch per written batch.
pub(super) struct ArrowWriter(FileWriter<Sink>);

impl ArrowWriter {
    pub(super) fn new(sink: Sink, schema: &SchemaRef) -> Result<Self> {
        Ok(Self(FileWriter::try_new(sink, schema)?))
    }
}

impl ShardWriter for ArrowWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.0.write(batch)?)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.0.finish()?;
        Ok(self.0.get_mut().flush()?)
    }
}

/// Writes one JSON object per line.
pub(super) struct JsonlWriter(LineDelimitedWriter<Sink>);

impl JsonlWriter {
    pub(super) fn new(sink: Sink) -> Self {
        Self(LineDelimitedWriter::new(sink))
    }
}

impl ShardWriter for JsonlWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.0.write(batch)?)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.0.finish()?;
        Ok(self.0.get_mut().flush()?)
    }
}

/// Writes a header line and one line per row, with quotes where a value needs them.
pub(super) struct CsvWriter(arrow::csv::Writer<Sink>);

impl CsvWriter {
    pub(super) fn new(sink: Sink) -> Self {
        Self(arrow::csv::Writer::new(sink))
    }
}

impl ShardWriter for CsvWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        Ok(self.0.write(batch)?)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

/// Writes the first column, one line per row.
pub(super) struct TextWriter(Sink);

impl TextWriter {
    pub(super) fn new(sink: Sink) -> Self {
        Self(sink)
    }
}

impl ShardWriter for TextWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for line in batch.column(0).as_string::<i32>().iter().flatten() {
            writeln!(self.0, "{line}")?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        Ok(self.0.flush()?)
    }
}
