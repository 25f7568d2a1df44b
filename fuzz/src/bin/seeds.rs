//! Writes deterministic seed inputs for formats that Feedline or its libraries can encode: `seeds FOLDER` creates a directory
//! for each of these fuzz targets.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow::ipc::writer::FileWriter;
use feedline_data::manifest::{Block, Defect, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_proto::encode_manifest;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// Directory of images of each kind of PNG and WebP.
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../worker/operators/testdata");

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args_os().nth(1).ok_or("missing argument: seeds FOLDER")?;
    let folder = Path::new(&folder);
    write(folder, "arrow", "file", &arrow_file()?)?;
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for (name, compression) in
        [("plain", Compression::UNCOMPRESSED), ("snappy", Compression::SNAPPY), ("zstd", zstd)]
    {
        write(folder, "parquet", name, &parquet_file(compression)?)?;
    }
    write(folder, "index", "manifest", &encode_manifest(&manifest()))?;
    for (name, bytes) in feedline_raft::samples() {
        write(folder, "raft_log", name, &bytes)?;
    }
    for entry in std::fs::read_dir(PICTURES)? {
        let path = entry?.path();
        let is_picture = path.extension().is_some_and(|extension| extension == "png" || extension == "webp");
        if let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| is_picture) {
            write(folder, "raster", name, &std::fs::read(&path)?)?;
        }
    }
    Ok(())
}

fn write(folder: &Path, target: &str, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let folder = folder.join(target);
    std::fs::create_dir_all(&folder)?;
    std::fs::write(folder.join(name), bytes)
}

/// Returns one column of each kind that readers distinguish: numbers, text with a null, bytes, lists.
fn rows() -> Result<RecordBatch, Box<dyn Error>> {
    let texts = StringArray::from(vec![Some("a"), None, Some("longer than twelve bytes")]);
    let bytes = BinaryArray::from_vec(vec![&b"x"[..], &b""[..], &[0xFF, 0xD8, 0xFF][..]]);
    let lists = vec![Some(vec![Some(1), Some(2)]), Some(Vec::new()), None];
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    Ok(RecordBatch::try_from_iter([
        ("n", Arc::new(Int64Array::from(vec![1, -2, i64::MAX])) as ArrayRef),
        ("text", Arc::new(texts) as ArrayRef),
        ("bytes", Arc::new(bytes) as ArrayRef),
        ("list", Arc::new(lists) as ArrayRef),
    ])?)
}

/// Returns a file with two record batches.
fn arrow_file() -> Result<Vec<u8>, Box<dyn Error>> {
    let rows = rows()?;
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &rows.schema())?;
    writer.write(&rows)?;
    writer.write(&rows.slice(1, 1))?;
    writer.finish()?;
    drop(writer);
    Ok(bytes)
}

/// Returns a file with two row groups.
fn parquet_file(compression: Compression) -> Result<Vec<u8>, Box<dyn Error>> {
    let rows = rows()?;
    let properties = WriterProperties::builder().set_compression(compression).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, rows.schema(), Some(properties))?;
    writer.write(&rows)?;
    writer.flush()?;
    writer.write(&rows.slice(0, 2))?;
    writer.close()?;
    Ok(bytes)
}

/// Returns a manifest of two shards: one with known row sizes, and one with a defect.
fn manifest() -> Manifest {
    let schema = Schema::new([
        ("image", ColumnType::Binary),
        ("label", ColumnType::Scalar(ScalarType::Int64)),
        ("words", ColumnType::List(Box::new(ColumnType::Utf8))),
    ]);
    let shard = |number: u64, row_bytes: Vec<u32>, defects: Vec<Defect>| Shard {
        object: ShardRef {
            url: format!("file:///data/train-{number}.tfrecord"),
            size_bytes: 1000,
            version: "1".to_owned(),
            part: 0,
        },
        index: ShardIndex {
            blocks: vec![Block { rows: 2, offset: 0, bytes: 600, group: 0, row_bytes }],
            schema: Some(schema.clone()),
            defects,
        },
    };
    let defect = Defect { offset: 600, reason: "the record is truncated".to_owned() };
    let shards = vec![shard(0, vec![200, 400], Vec::new()), shard(1, Vec::new(), vec![defect])];
    Manifest { schema, shards }
}
