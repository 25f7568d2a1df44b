//! Deterministic seeds: inputs of the formats that Feedline or its libraries can encode, and files of the repository.

mod datasets;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Int64Array, ListArray, RecordBatch, StringArray};
use arrow::datatypes::Int64Type;
use arrow::ipc::writer::FileWriter;
use feedline_data::compression::Codec;
use feedline_data::manifest::{Block, Defect, Manifest, Shard, ShardIndex, ShardRef};
use feedline_data::messages::JobSpec;
use feedline_data::pipeline::Pipeline;
use feedline_data::schema::{ColumnType, ScalarType, Schema};
use feedline_proto::encode_manifest;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

use crate::compressed::{GZIP_START, ResumedShard, access_points};

/// Directory of inputs that are committed.
const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../corpus");
/// Directory of Parquet and Arrow files of several libraries.
const COLUMNAR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../worker/sources/testdata/columnar");
/// Directory of datasets that the library `datasets` wrote.
const LAYOUTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../worker/sources/testdata/layouts");
/// Directory of images of each kind of PNG and WebP.
const PICTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../worker/operators/testdata");
/// Directory of pipeline files.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The description of a Hugging Face dataset.
const CARD: &str = "---\nconfigs:\n- config_name: a\n  data_files:\n  - {split: train, path: data/*}\n---\n";
/// Features of a Hugging Face dataset.
const FEATURES: &str = r#"{"info": {"features": {"a": {"_type": "Image"}, "b": {"names": ["x"], "_type": "ClassLabel"}, "c": {"shape": [2], "_type": "Array2D"}}}}"#;
/// Features that are lists.
const LISTS: &str = r#"{"info": {"features": {"a": {"_type": "List", "feature": {"_type": "Image"}}, "b": {"_type": "Sequence", "feature": {"x": {"names": ["x"], "_type": "ClassLabel"}}}}}}"#;
/// The description of a stored graph.
const GRAPH: &str =
    r#"{"version": 1, "nodes": [{"name": "n", "count": 0}], "relations": [], "order": "none"}"#;

/// A valid input of a target.
#[derive(Debug, Clone)]
pub struct Seed {
    /// The name of its file in a corpus.
    pub name: String,
    /// The input.
    pub bytes: Vec<u8>,
}

/// Returns the seeds of a target, in the order of their names. Targets whose corpus is in the repository may have none.
///
/// # Errors
/// Returns an error if a file of the repository cannot be read, or a library cannot encode a seed.
pub fn seeds(target: &str) -> Result<Vec<Seed>, Box<dyn Error>> {
    let seed = |name: &str, bytes| Seed { name: name.to_owned(), bytes };
    let text = |name: &str, text: &str| seed(name, text.as_bytes().to_vec());
    let layout =
        |name: &str, path: &str| std::fs::read(Path::new(LAYOUTS).join(path)).map(|bytes| seed(name, bytes));
    let mut seeds = match target {
        "access_point" => resumed_shards()?,
        "arrayrecord" => datasets::array_records()?,
        "arrow" => {
            let stream = layout("stream", "saved/data-00000-of-00002.arrow")?;
            [vec![seed("file", arrow_file()?), stream], files(COLUMNAR, &["arrow"])?].concat()
        }
        "dataset_card" => vec![
            layout("cache-dataset_info.json", "cache/dataset_info.json")?,
            text("readme", CARD),
            layout("saved-state.json", "saved/state.json")?,
        ],
        "features" => vec![text("all", FEATURES), text("lists", LISTS)],
        "graph_folder" => vec![text("empty", GRAPH)],
        "index" => vec![seed("manifest", encode_manifest(&manifest()))],
        "jsonl" => vec![text("array", "[{\"a\": [1, \"]\"]},\n {\"a\": null}]\n")],
        "litdata" => datasets::litdata()?,
        "mds" => datasets::mds()?,
        "messages" => messages()?,
        "npy" => vec![seed("columns", npy_file("True")), seed("rows", npy_file("False"))],
        "npz" => datasets::archives()?,
        "parquet" => {
            let written = vec![
                seed("plain", parquet_file(Compression::UNCOMPRESSED)?),
                seed("snappy", parquet_file(Compression::SNAPPY)?),
                seed("zstd", parquet_file(Compression::ZSTD(ZstdLevel::default()))?),
            ];
            [written, files(COLUMNAR, &["parquet"])?].concat()
        }
        "parquet_pages" => datasets::column_chunks()?,
        "pipeline" => files(EXAMPLES, &["yaml"])?,
        "raft_log" => feedline_raft::samples().into_iter().map(|(name, bytes)| seed(name, bytes)).collect(),
        "raster" => files(PICTURES, &["png", "webp"])?,
        _ => Vec::new(),
    };
    seeds.sort_unstable_by(|left, right| left.name.cmp(&right.name));
    Ok(seeds)
}

/// Reads the files of a directory with one of the extensions.
fn files(folder: &str, extensions: &[&str]) -> Result<Vec<Seed>, Box<dyn Error>> {
    let mut seeds = Vec::new();
    for entry in std::fs::read_dir(Path::new(folder))? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if let Some(name) = path.file_name().filter(|_| extensions.contains(&extension)) {
            seeds.push(Seed { name: name.to_string_lossy().into_owned(), bytes: std::fs::read(&path)? });
        }
    }
    Ok(seeds)
}

/// Returns the access points of the compressed files that are committed.
fn resumed_shards() -> Result<Vec<Seed>, Box<dyn Error>> {
    let mut seeds = Vec::new();
    for codec in Codec::ALL {
        let start: &[u8] = if codec == Codec::Gzip { &GZIP_START } else { &[] };
        for entry in std::fs::read_dir(Path::new(CORPUS).join(codec.name()))? {
            let path = entry?.path();
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
            let bytes = [start, &std::fs::read(&path)?].concat();
            for (number, point) in access_points(&bytes, codec).into_iter().enumerate() {
                let shard = ResumedShard { codec, point, bytes: bytes.clone() };
                let input = shard.to_input().ok_or("the access point is too large")?;
                assert_eq!(ResumedShard::parse(&input).as_ref(), Some(&shard));
                seeds.push(Seed { name: format!("{}-{name}-{number}", codec.name()), bytes: input });
            }
        }
    }
    Ok(seeds)
}

/// Returns a matrix of three rows and two columns.
fn npy_file(fortran_order: &str) -> Vec<u8> {
    let header = format!("{{'descr': '<f4', 'fortran_order': {fortran_order}, 'shape': (3, 2), }}");
    let header = format!("{header:117}\n");
    let elements: Vec<u8> = (0..6).flat_map(|element| (element as f32).to_le_bytes()).collect();
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes(), &elements].concat()
}

/// Returns messages about a job of an example.
fn messages() -> Result<Vec<Seed>, Box<dyn Error>> {
    let pipeline = std::fs::read_to_string(Path::new(EXAMPLES).join("imagenet.yaml"))?;
    let spec = JobSpec::new(Pipeline::from_yaml(&pipeline, "imagenet.yaml")?);
    let messages = feedline_proto::fuzzing::seed_messages(spec, &manifest()).into_iter();
    Ok(messages.map(|(name, bytes)| Seed { name: name.to_owned(), bytes }).collect())
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
    let shard = |number: u64, row_bytes: Vec<u32>, defects: Vec<Defect>| {
        Shard::new(
            ShardRef {
                url: format!("file:///data/train-{number}.tfrecord"),
                size_bytes: 1000,
                version: "1".to_owned(),
                ..ShardRef::default()
            },
            ShardIndex {
                blocks: vec![Block { rows: 2, offset: 0, bytes: 600, group: 0, row_bytes }],
                schema: Some(schema.clone()),
                defects,
                ..ShardIndex::default()
            },
        )
    };
    let defect = Defect { offset: 600, reason: "the record is truncated".to_owned() };
    let shards = vec![shard(0, vec![200, 400], Vec::new()), shard(1, Vec::new(), vec![defect])];
    Manifest { schema, shards }
}
