//! Divides rows among files, and selects the writer of each file.

use anyhow::{Context, Result};
use arrow::array::AsArray;
use arrow::datatypes::SchemaRef;
use feedline_command::output::value_name;

use super::format::{DatasetKind, FileFormat};
use super::images::image_extension;
use super::output::{Output, Sink};
use super::rows::RowSource;
use super::shard_writer::ShardWriter;
use super::{columnar, tar, tfrecord};

/// Creates the writer for a file. `first_row` is the index of its first row in the dataset.
pub(super) fn open_shard(
    format: FileFormat,
    sink: Sink,
    schema: &SchemaRef,
    first_row: u64,
) -> Result<Box<dyn ShardWriter>> {
    Ok(match format {
        FileFormat::TfRecord => Box::new(tfrecord::TfRecordWriter::new(sink, schema)),
        FileFormat::WebDataset => Box::new(tar::WebDatasetWriter::new(sink, first_row)),
        FileFormat::Parquet => Box::new(columnar::ParquetWriter::new(sink, schema)?),
        FileFormat::Arrow => Box::new(columnar::ArrowWriter::new(sink, schema)?),
        FileFormat::Jsonl => Box::new(columnar::JsonlWriter::new(sink)),
        FileFormat::Csv => Box::new(columnar::CsvWriter::new(sink)),
        FileFormat::Text => Box::new(columnar::TextWriter::new(sink)),
        FileFormat::Files | FileFormat::Npy => {
            anyhow::bail!("the format `{}` has no shards: choose another --format", value_name(&format))
        }
    })
}

/// Writes files named `<kind>-00000-of-00004.<extension>`, in row order. Their row counts differ by at most one.
pub(super) fn write_shards(
    output: &mut Output,
    rows: &mut dyn RowSource,
    kind: DatasetKind,
    format: FileFormat,
    shards: u64,
) -> Result<()> {
    for shard in 0..shards {
        let name = format!("{}-{shard:05}-of-{shards:05}.{}", value_name(&kind), format.extension());
        let cut = |shard: u64| (u128::from(rows.count()) * u128::from(shard) / u128::from(shards)) as u64;
        let (mut next, end) = (cut(shard), cut(shard + 1));
        let failed = || format!("cannot write {name}");
        let mut writer =
            open_shard(format, output.create(&name)?, &rows.schema(), next).with_context(failed)?;
        while next < end {
            let upto = end.min(next + rows.batch_rows());
            let batch = rows.read(next..upto)?;
            writer.write(&batch).with_context(failed)?;
            next = upto;
        }
        writer.finish().with_context(failed)?;
    }
    Ok(())
}

/// Writes one file per image. The names are zero-padded row indexes, so that they sort in row order.
pub(super) fn write_files(output: &mut Output, rows: &mut dyn RowSource) -> Result<()> {
    let count = rows.count();
    let digits = (count - 1).to_string().len().max(6);
    let mut next = 0;
    while next < count {
        let upto = count.min(next + rows.batch_rows());
        let batch = rows.read(next..upto)?;
        let images = batch["image"].as_binary::<i32>();
        let names = batch["filename"].as_string::<i32>();
        for (row, index) in (next..upto).zip(0..) {
            let extension = image_extension(names.value(index));
            output.write(&format!("{row:0digits$}.{extension}"), images.value(index))?;
        }
        next = upto;
    }
    Ok(())
}
