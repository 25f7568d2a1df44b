//! The targets of source formats. Each input is the only shard of a dataset.

use std::collections::BTreeMap;

use feedline_data::pipeline::{Format, Source};
use feedline_sources::{BlockRead, Dataset, Stores};

use crate::thread_state::{block_on, with_folder};

/// Reads an Arrow IPC file.
pub fn arrow(bytes: &[u8]) {
    read_shard(bytes, Format::Arrow, &[]);
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

/// Reads a Parquet file.
pub fn parquet(bytes: &[u8]) {
    read_shard(bytes, Format::Parquet, &[]);
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
    with_folder(|folder| {
        let path = folder.join("shard");
        std::fs::write(&path, bytes).expect("the temporary file can be written");
        let url = vec![path.to_str().expect("temporary paths are UTF-8").to_owned()];
        let features: BTreeMap<String, String> =
            features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
        let source = Source { url, format, features, credentials: None, mix: None };
        block_on(async { rows = read(source).await });
    });
    rows
}

/// Returns the number of rows that can be read. Errors are expected; only panics and hangs are failures.
async fn read(source: Source) -> usize {
    let dataset = Dataset::new(source, Stores::new(Vec::new())).expect("the URL is valid");
    let mut rows = 0;
    for shard in dataset.list().await.unwrap_or_default() {
        let Ok(index) = dataset.index_shard(&shard).await else { continue };
        let Some(schema) = &index.schema else { continue };
        for block in &index.blocks {
            let read = BlockRead { shard: &shard, block, schema, rows: None };
            let read = dataset.read_block(&read).await;
            rows += read.map_or(0, |read| read.batch.num_rows() - read.failures.len());
        }
    }
    rows
}
