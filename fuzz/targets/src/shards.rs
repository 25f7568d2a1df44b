//! The targets of source formats. Each input is the only shard of a dataset.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::pipeline::{Format, Source};
use feedline_sources::fuzzing::read_parquet_pages;
use feedline_sources::{BlockRead, Dataset, Stores};

use crate::array_record;
use crate::thread_state::{block_on, ignore_contained_panics, with_folder};

/// Age of the files of shards.
const SETTLED_AGE: Duration = Duration::from_secs(1);

/// Reads an Arrow IPC file.
pub fn arrow(bytes: &[u8]) {
    read_shard(bytes, Format::Arrow, &[]);
}

/// Reads the chunks and the footer of a small ArrayRecord file, or a whole file.
pub fn arrayrecord(bytes: &[u8]) {
    read_shard(&array_record::file(bytes), Format::ArrayRecord, &[]);
}

/// Reads a CSV file.
pub fn csv(bytes: &[u8]) {
    read_shard(bytes, Format::Csv, &[]);
}

/// Parses a `tf.train.Example` in a TFRecord with valid checksums.
pub fn example(bytes: &[u8]) {
    let features = [("image", "image/encoded"), ("label", "image/class/label"), ("text", "text")];
    read_shard(&tfrecord_frame(bytes), Format::TfRecord, &features);
}

/// Reads a file of JSON lines.
pub fn jsonl(bytes: &[u8]) {
    read_shard(bytes, Format::Jsonl, &[]);
}

/// Reads a NumPy file.
pub fn npy(bytes: &[u8]) {
    read_shard(bytes, Format::Npy, &[]);
}

/// Reads an archive of NumPy files.
pub fn npz(bytes: &[u8]) {
    read_shard(bytes, Format::Npz, &[]);
}

/// Reads a Parquet file.
pub fn parquet(bytes: &[u8]) {
    read_shard(bytes, Format::Parquet, &[]);
}

/// Decompresses the pages of a column chunk of a Parquet file, and one page.
pub fn parquet_pages(bytes: &[u8]) {
    ignore_contained_panics();
    read_parquet_pages(bytes);
}

/// Reads a WebDataset shard.
pub fn tar(bytes: &[u8]) {
    read_shard(bytes, Format::WebDataset, &[]);
}

/// Reads a TFRecord file.
pub fn tfrecord(bytes: &[u8]) {
    read_shard(bytes, Format::TfRecord, &[]);
}

/// Returns a TFRecord frame: length, checksum of the length, record, and checksum of the record.
fn tfrecord_frame(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length), record, &masked_crc(record)].concat()
}

fn masked_crc(bytes: &[u8]) -> [u8; 4] {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

/// Lists a shard with these bytes, indexes it and reads all of its rows, as a worker does. Returns the number of rows.
pub fn read_shard(bytes: &[u8], format: Format, features: &[(&str, &str)]) -> usize {
    let mut rows = 0;
    let source = shard_source(bytes, format, features);
    block_on(async { rows = read(source).await.1 });
    rows
}

/// Writes a shard, and returns the source that reads it.
pub(crate) fn shard_source(bytes: &[u8], format: Format, features: &[(&str, &str)]) -> Source {
    let mut url = Vec::new();
    with_folder(|folder| {
        let path = folder.join("shard");
        write_shard(&path, bytes);
        url.push(path.to_str().expect("temporary paths are UTF-8").to_owned());
    });
    let features: BTreeMap<String, String> =
        features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
    Source { url, features, ..Source::new(format, "") }
}

/// Writes the file of a shard. A worker would wait before it indexes a file that has just been written.
pub(crate) fn write_shard(path: &Path, bytes: &[u8]) {
    let mut file = File::create(path).expect("the temporary file can be created");
    file.write_all(bytes).expect("the temporary file can be written");
    file.set_modified(SystemTime::now() - SETTLED_AGE).expect("the process owns the file");
}

pub(crate) fn open(source: Source) -> Dataset {
    Dataset::new(source, Stores::new(Vec::new())).expect("the URL is valid")
}

/// Lists, indexes and reads a dataset. Returns the indexed shards, and the number of rows that can be read.
pub(crate) async fn read(source: Source) -> (Vec<(ShardRef, ShardIndex)>, usize) {
    let dataset = open(source);
    let mut indexed = Vec::new();
    for shard in dataset.list().await.unwrap_or_default() {
        if let Ok(found) = dataset.index_shard(&shard).await {
            indexed.push((shard, found.index));
        }
    }
    let rows = read_blocks(&dataset, &indexed).await;
    (indexed, rows)
}

/// Reads all blocks of indexed shards. Returns the number of rows that can be read. Errors are expected; only panics and
/// hangs are failures.
pub(crate) async fn read_blocks(dataset: &Dataset, indexed: &[(ShardRef, ShardIndex)]) -> usize {
    let mut rows = 0;
    for (shard, index) in indexed {
        let Some(schema) = &index.schema else { continue };
        for block in &index.blocks {
            let read = BlockRead { shard, block, index: Some(index), schema, rows: None };
            let found = dataset.read_block(&read).await;
            rows += found.map_or(0, |found| found.batch.num_rows() - found.failures.len());
            if let Some(last) = block.row_bytes.len().checked_sub(1) {
                let last = [last as u32];
                drop(dataset.read_block(&BlockRead { rows: Some(&last), ..read }).await);
            }
        }
    }
    rows
}
