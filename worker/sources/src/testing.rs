//! Helpers for tests: small writers, and datasets over a temporary directory.

mod json;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Float16Type, Float32Type, Float64Type, Int16Type, Int32Type, Int64Type};
use feedline_data::manifest::{IndexedShard, Shard, ShardIndex, ShardRef};
use feedline_data::pipeline::{Format, Source};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::{BlockRead, BlockRows, Dataset, ObjectAccess, RowFailure, SourceError, Stores};

pub(crate) use json::{JsonRows, hex, png_pixels, read_json, unhex};

/// Age of the files of fixtures.
const SETTLED_AGE: std::time::Duration = std::time::Duration::from_secs(1);

/// A directory with one file in it, and the dataset that reads it.
pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
    pub(crate) dataset: Dataset,
}

pub(crate) fn dataset(urls: &[&str], format: Format, features: &[(&str, &str)]) -> Dataset {
    let features: BTreeMap<String, String> =
        features.iter().map(|(column, name)| ((*column).to_owned(), (*name).to_owned())).collect();
    let url = urls.iter().map(|url| (*url).to_owned()).collect();
    let source = Source { url, features, ..Source::new(format, "") };
    Dataset::new(source, Stores::new(Vec::new())).expect("the url is sound")
}

pub(crate) fn fixture(bytes: &[u8], format: Format, features: &[(&str, &str)]) -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let shard = directory.path().join("shard");
    write_settled(&shard, bytes);
    let dataset = dataset(&[path(directory.path(), "shard").as_str()], format, features);
    Fixture { directory, dataset }
}

/// A directory with one file of this name in it, and the dataset that reads it with the settings of the source.
pub(crate) fn fixture_of(name: &str, bytes: &[u8], source: Source) -> Fixture {
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    write_settled(&directory.path().join(name), bytes);
    let source = Source { url: vec![path(directory.path(), name)], ..source };
    let dataset = Dataset::new(source, Stores::new(Vec::new())).expect("the url is sound");
    Fixture { directory, dataset }
}

/// Writes a file with an older modification time, because a file that has just been written would have to settle before it is indexed.
pub(crate) fn write_settled(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("the test's data is sound");
    let written = std::fs::File::options().write(true).open(path).expect("the file exists");
    written.set_modified(std::time::SystemTime::now() - SETTLED_AGE).expect("the test owns the file");
}

pub(crate) fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().expect("the test's data is sound").to_owned()
}

/// A file or directory that a script in `formats/testdata` wrote with a reference library.
pub(crate) fn testdata(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/formats/testdata").join(path)
}

/// The JSON that a script wrote beside its files.
pub(crate) fn expected_json(path: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(testdata(path)).expect("the file is committed");
    serde_json::from_str(&text).expect("the file is JSON")
}

/// Copies a directory of `testdata` to a temporary directory.
pub(crate) fn copied(path: &str) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary directory can be made");
    for file in std::fs::read_dir(testdata(path)).expect("the directory is committed") {
        let file = file.expect("the directory can be listed");
        std::fs::copy(file.path(), copy.path().join(file.file_name())).expect("the file can be copied");
    }
    copy
}

/// Stores whose `s3://` URLs refer to a server.
pub(crate) fn stores_at(server: &str, retry_budget: std::time::Duration) -> Arc<Stores> {
    let options = [
        ("aws_endpoint", server),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "KEY"),
        ("aws_secret_access_key", "SECRET"),
        ("aws_region", "us-east-1"),
    ];
    let options = options.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
    Stores::with_access(ObjectAccess::new(options).with_retry_budget(retry_budget))
}

/// Starts a store that answers each request with the status, which may contain headers, and the body that `answer` returns for it.
/// Returns its URL.
pub(crate) async fn listing_server(
    answer: impl Fn(&str) -> (&'static str, String) + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n")
                && connection.read_buf(&mut request).await.expect("a request") > 0
            {}
            let (status, body) = answer(std::str::from_utf8(&request).expect("the request is text"));
            let has_length = status.contains("content-length") || status.contains("transfer-encoding");
            let length = match has_length {
                true => String::new(),
                false => format!("content-length: {}\r\n", body.len()),
            };
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n{length}\r\n");
            connection.write_all((head + &body).as_bytes()).await.expect("the client reads");
        }
    });
    url
}

impl Fixture {
    pub(crate) async fn shard(&self) -> ShardRef {
        self.dataset.list().await.expect("the test's data is sound").remove(0)
    }

    pub(crate) async fn index(&self) -> Result<Shard, SourceError> {
        let object = self.shard().await;
        let IndexedShard { index, digest } = self.dataset.index_shard(&object).await?;
        Ok(Shard { object, index, digest })
    }

    /// Indexes the shard and reads every block.
    pub(crate) async fn read_all(&self) -> All {
        let shard = self.index().await.expect("the test's data is sound");
        let mut all = All { blocks: Vec::new(), index: shard.index.clone() };
        for at in 0..shard.index.blocks.len() {
            let rows = self.read(&shard, at, None).await.expect("the test's data is sound");
            assert_eq!(rows.batch.num_rows(), shard.index.blocks[at].rows as usize);
            all.blocks.push(rows);
        }
        all
    }

    pub(crate) async fn read(
        &self,
        shard: &Shard,
        at: usize,
        rows: Option<&[u32]>,
    ) -> Result<BlockRows, SourceError> {
        let schema = shard.index.schema.as_ref().expect("the test's data is sound");
        let read = BlockRead {
            shard: &shard.object,
            block: &shard.index.blocks[at],
            index: Some(&shard.index),
            schema,
            rows,
        };
        self.dataset.read_block(&read).await
    }
}

/// A shard, read whole.
pub(crate) struct All {
    pub(crate) index: ShardIndex,
    pub(crate) blocks: Vec<BlockRows>,
}

impl All {
    pub(crate) fn rows(&self) -> Vec<String> {
        self.blocks.iter().flat_map(|block| lines(&block.batch)).collect()
    }

    pub(crate) fn failures(&self) -> Vec<RowFailure> {
        self.blocks.iter().flat_map(|block| block.failures.clone()).collect()
    }

    pub(crate) fn columns(&self) -> String {
        let fields = self.index.schema.iter().flat_map(|schema| &schema.fields);
        fields.map(|field| format!("{}: {}", field.name, field.column_type)).collect::<Vec<_>>().join(", ")
    }
}

/// Each row as text.
pub(crate) fn lines(batch: &RecordBatch) -> Vec<String> {
    (0..batch.num_rows())
        .map(|row| batch.columns().iter().map(|column| value(column, row)).collect::<Vec<_>>().join("|"))
        .collect()
}

fn value(column: &dyn Array, row: usize) -> String {
    use arrow::datatypes::DataType as T;
    if column.is_null(row) {
        return "null".to_owned();
    }
    match column.data_type() {
        T::Utf8View => column.as_string_view().value(row).to_owned(),
        T::BinaryView => String::from_utf8_lossy(column.as_binary_view().value(row)).into_owned(),
        T::Boolean => column.as_boolean().value(row).to_string(),
        T::Int16 => column.as_primitive::<Int16Type>().value(row).to_string(),
        T::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
        T::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        T::Float16 => column.as_primitive::<Float16Type>().value(row).to_string(),
        T::Float32 => column.as_primitive::<Float32Type>().value(row).to_string(),
        T::Float64 => column.as_primitive::<Float64Type>().value(row).to_string(),
        T::List(_) => list_text(&column.as_list::<i32>().value(row)),
        T::FixedSizeList(..) => list_text(&column.as_fixed_size_list().value(row)),
        other => panic!("no test reads {other}"),
    }
}

fn list_text(items: &dyn Array) -> String {
    let items: Vec<String> = (0..items.len()).map(|item| value(items, item)).collect();
    format!("[{}]", items.join(","))
}

/// A feature's values, as a test writes them.
pub(crate) enum Feature<'a> {
    Bytes(&'a [&'a [u8]]),
    Ints(&'a [i64]),
    Floats(&'a [f32]),
}

pub(crate) fn example(features: &[(&str, Feature<'_>)]) -> Vec<u8> {
    let mut map = Vec::new();
    for (name, feature) in features {
        let mut list = Vec::new();
        let kind = match feature {
            Feature::Bytes(values) => {
                values.iter().for_each(|value| field(&mut list, 1, value));
                1
            }
            Feature::Floats(values) => {
                let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                field(&mut list, 1, &packed);
                2
            }
            Feature::Ints(values) => {
                let mut packed = Vec::new();
                values.iter().for_each(|&value| varint(&mut packed, value as u64));
                field(&mut list, 1, &packed);
                3
            }
        };
        let (mut feature, mut entry) = (Vec::new(), Vec::new());
        field(&mut feature, kind, &list);
        field(&mut entry, 1, name.as_bytes());
        field(&mut entry, 2, &feature);
        field(&mut map, 1, &entry);
    }
    let mut example = Vec::new();
    field(&mut example, 1, &map);
    example
}

fn field(out: &mut Vec<u8>, number: u8, bytes: &[u8]) {
    out.push(number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(crate) fn tfrecord(records: &[Vec<u8>]) -> Vec<u8> {
    let crc = |data: &[u8]| crc32c::crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let mut out = Vec::new();
    for record in records {
        let length = (record.len() as u64).to_le_bytes();
        out.extend_from_slice(&length);
        out.extend_from_slice(&crc(&length));
        out.extend_from_slice(record);
        out.extend_from_slice(&crc(record));
    }
    out
}

/// One tar member of a kind (`0` file, `5` directory, `L` long name, `x` pax).
pub(crate) fn tar_member(kind: u8, name: &str, body: &[u8]) -> Vec<u8> {
    tar_member_with(kind, name, body, |_| {})
}

/// A link of a kind (`1` hard, `2` symbolic).
pub(crate) fn tar_link(kind: u8, name: &str, target: &str) -> Vec<u8> {
    tar_member_with(kind, name, b"", |header| {
        header[157..157 + target.len()].copy_from_slice(target.as_bytes())
    })
}

/// One tar member, whose header `change` changes before the checksum is computed.
pub(crate) fn tar_member_with(
    kind: u8,
    name: &str,
    body: &[u8],
    change: impl FnOnce(&mut [u8; 512]),
) -> Vec<u8> {
    let mut header = [0; 512];
    header[..name.len().min(100)].copy_from_slice(&name.as_bytes()[..name.len().min(100)]);
    header[124..135].copy_from_slice(format!("{:011o}", body.len()).as_bytes());
    header[156] = kind;
    header[257..263].copy_from_slice(b"ustar\0");
    change(&mut header);
    header[148..156].fill(b' ');
    let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    let mut out = header.to_vec();
    out.extend_from_slice(body);
    out.resize(out.len().div_ceil(512) * 512, 0);
    out
}

pub(crate) fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut out: Vec<u8> = members.iter().flat_map(|(name, body)| tar_member(b'0', name, body)).collect();
    out.resize(out.len() + 1024, 0);
    out
}
