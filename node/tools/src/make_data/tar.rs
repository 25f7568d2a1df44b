//! Writes WebDataset files: tar files in which consecutive members with the same key form a row.

use std::io::Write;

use anyhow::{Result, ensure};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;

use super::images::image_extension;
use super::output::Sink;
use super::shard_writer::ShardWriter;

/// Block size of the tar format.
const BLOCK_BYTES: usize = 512;
/// Largest member size that fits the 11 octal digits of a tar header.
const MEMBER_BYTES_MAX: usize = 0o77777777777;

/// Writes the members `KEY.jpg` and `KEY.cls` for images, and `KEY.<column>` for text. KEY is the row index.
pub(super) struct WebDatasetWriter {
    sink: Sink,
    row: u64,
}

impl WebDatasetWriter {
    pub(super) fn new(sink: Sink, first_row: u64) -> Self {
        Self { sink, row: first_row }
    }

    fn write_image(&mut self, batch: &RecordBatch, index: usize) -> Result<()> {
        let extension = image_extension(batch["filename"].as_string::<i32>().value(index));
        let label = batch["label"].as_primitive::<Int64Type>().value(index);
        self.write_member(&extension, batch["image"].as_binary::<i32>().value(index))?;
        self.write_member("cls", label.to_string().as_bytes())
    }

    fn write_text(&mut self, batch: &RecordBatch, index: usize) -> Result<()> {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            self.write_member(field.name(), column.as_string::<i32>().value(index).as_bytes())?;
        }
        Ok(())
    }

    fn write_member(&mut self, extension: &str, content: &[u8]) -> Result<()> {
        self.sink.write_all(&header(&format!("{:09}.{extension}", self.row), content.len())?)?;
        self.sink.write_all(content)?;
        let padding = content.len().next_multiple_of(BLOCK_BYTES) - content.len();
        Ok(self.sink.write_all(&[0; BLOCK_BYTES][..padding])?)
    }
}

impl ShardWriter for WebDatasetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let images = batch.column_by_name("image").is_some();
        for index in 0..batch.num_rows() {
            match images {
                true => self.write_image(batch, index)?,
                false => self.write_text(batch, index)?,
            }
            self.row += 1;
        }
        Ok(())
    }

    /// Writes the two empty blocks that end a tar file.
    fn finish(mut self: Box<Self>) -> Result<()> {
        self.sink.write_all(&[0; 2 * BLOCK_BYTES])?;
        Ok(self.sink.flush()?)
    }
}

/// Builds a POSIX ustar header of a regular file. The modification time is 0, so that the same rows produce the same
/// bytes.
fn header(name: &str, size: usize) -> Result<[u8; BLOCK_BYTES]> {
    ensure!(name.len() <= 100, "the member name `{name}` is longer than the 100 bytes of a tar header");
    ensure!(
        size <= MEMBER_BYTES_MAX,
        "the member `{name}` is larger than the 8 GiB that a tar header allows"
    );
    let mut header = [0; BLOCK_BYTES];
    let mut write_field =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    write_field(0, name);
    write_field(100, "0000644\0");
    write_field(108, "0000000\0");
    write_field(116, "0000000\0");
    write_field(124, &format!("{size:011o}\0"));
    write_field(136, "00000000000\0");
    write_field(148, "        ");
    write_field(156, "0");
    write_field(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}
