//! A small dataset of each format, in a temporary directory.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use feedline_data::manifest::{IndexedShard, Shard};
use feedline_data::pipeline::{Format, Source};
use tempfile::TempDir;

use super::{archive, parquet, records};
use crate::testing::testdata;
use crate::{Dataset, Stores};

/// A dataset of a format.
pub(super) struct FormatSample {
    /// The name in messages.
    pub(super) name: &'static str,
    pub(super) format: Format,
    pub(super) directory: TempDir,
    /// The path of the only file, or the empty path for the whole directory.
    path: &'static str,
}

impl FormatSample {
    /// A dataset of one file.
    pub(super) fn file(name: &'static str, format: Format, path: &'static str, bytes: &[u8]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), path, bytes);
        Self { name, format, directory, path }
    }

    /// A directory with these files.
    pub(super) fn directory(name: &'static str, format: Format, files: &[(&str, &[u8])]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        files.iter().for_each(|(path, bytes)| write(directory.path(), path, bytes));
        Self { name, format, directory, path: "" }
    }

    /// A copy of the files of a directory.
    fn copy(name: &'static str, format: Format, from: &Path) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(from).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), directory.path().join(file.file_name())).unwrap();
        }
        Self { name, format, directory, path: "" }
    }

    /// The dataset, whose files are below `root`.
    pub(super) fn dataset(&self, root: &str, stores: Arc<Stores>) -> Dataset {
        let url = vec![format!("{root}/{}", self.path)];
        let source = Source { url, ..Source::new(self.format, "") };
        Dataset::new(source, stores).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The dataset in the temporary directory.
    pub(super) fn local(&self) -> Dataset {
        self.dataset(self.directory.path().to_str().unwrap(), Stores::new(Vec::new()))
    }

    /// Indexes the first shard of the dataset.
    pub(super) async fn index(&self, dataset: &Dataset) -> Shard {
        let listed = dataset.list().await.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let object = listed.into_iter().next().unwrap_or_else(|| panic!("{} has no shards", self.name));
        let indexed = dataset.index_shard(&object).await;
        let IndexedShard { index, digest } = indexed.unwrap_or_else(|error| panic!("{}: {error}", self.name));
        assert!(!index.blocks.is_empty() && index.defects.is_empty(), "{}", self.name);
        Shard { object, index, digest }
    }
}

fn write(directory: &Path, path: &str, bytes: &[u8]) {
    let file = directory.join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, bytes).unwrap();
}

fn committed(path: &str) -> Vec<u8> {
    std::fs::read(testdata(path)).unwrap()
}

fn in_sources(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(super) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// The contents of a committed ArrayRecord file.
pub(super) fn array_record(name: &str) -> Vec<u8> {
    let file = std::fs::File::open(testdata(&format!("arrayrecord/{name}.gz"))).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Datasets of all formats except Kafka, and of compressed files.
pub(super) fn all() -> Vec<FormatSample> {
    let lines = "{\"n\": 1}\n{\"n\": 2}\n".repeat(100).into_bytes();
    let (tfrecord, tar) = (records(20, 100), archive(20, 100));
    let arrow = std::fs::read(in_sources("testdata/columnar/pyarrow_plain.arrow")).unwrap();
    let zstd = zstd::encode_all(lines.as_slice(), 1).unwrap();
    let images: [(&str, &[u8]); 2] = [("cat/1.png", b"one image"), ("dog/2.png", b"another image")];
    let file = FormatSample::file;
    let copy = |name, format, path: &str| FormatSample::copy(name, format, &testdata(path));
    vec![
        file("parquet", Format::Parquet, "a.parquet", &parquet(10)),
        file("arrow", Format::Arrow, "a.arrow", &arrow),
        file("tfrecord", Format::TfRecord, "a.tfrecord", &tfrecord),
        file("tfrecord in gzip", Format::TfRecord, "a.tfrecord.gz", &gzip(&tfrecord)),
        file("tar", Format::WebDataset, "a.tar", &tar),
        file("tar in gzip", Format::WebDataset, "a.tar.gz", &gzip(&tar)),
        file("csv", Format::Csv, "a.csv", b"n,t\n1,a\n2,b\n"),
        file("csv in gzip", Format::Csv, "a.csv.gz", &gzip(b"n,t\n1,a\n2,b\n")),
        file("jsonl", Format::Jsonl, "a.jsonl", &lines),
        file("jsonl in gzip", Format::Jsonl, "a.jsonl.gz", &gzip(&lines)),
        file("jsonl in zstd", Format::Jsonl, "a.jsonl.zst", &zstd),
        file("text", Format::Text, "a.txt", b"one\ntwo\n"),
        file("file", Format::Files, "a.bin", b"an image"),
        file("npy", Format::Npy, "a.npy", include_bytes!("../../formats/npy/testdata/int64_v1.npy")),
        file("npy in Fortran order", Format::Npy, "a.npy", &committed("npz/fortran.npy")),
        file("npz", Format::Npz, "a.npz", &committed("npz/stored.npz")),
        file("deflated npz", Format::Npz, "a.npz", &committed("npz/deflated.npz")),
        copy("mds", Format::Mds, "mds/hashed"),
        copy("compressed mds", Format::Mds, "mds/zstd"),
        copy("litdata", Format::LitData, "litdata/plain"),
        copy("litdata with compressed chunks", Format::LitData, "litdata/chunk"),
        copy("litdata with compressed batches", Format::LitData, "litdata/batch"),
        copy("litdata with compressed items", Format::LitData, "litdata/sample"),
        copy("litdata with Arrow files", Format::LitData, "litdata/arrow"),
        copy("litdata with tokens", Format::LitData, "litdata/tokens"),
        file("arrayrecord", Format::ArrayRecord, "a.array_record", &array_record("examples")),
        FormatSample::directory("imagefolder", Format::ImageFolder, &images),
        file("huggingface", Format::HuggingFace, "train.jsonl", &lines),
        FormatSample::copy("saved huggingface", Format::HuggingFace, &in_sources("testdata/layouts/saved")),
        graph(&arrow),
    ]
}

/// A graph of ten nodes, with the seeds of an Arrow file.
fn graph(seeds: &[u8]) -> FormatSample {
    let description = serde_json::json!({
        "version": 1,
        "nodes": [{"name": "node", "count": 10}],
        "relations": [],
        "seeds": [{
            "name": "train",
            "of": {"nodes": "node"},
            "rows": 5,
            "file": {"path": "seeds/train.arrow", "bytes": seeds.len(), "blocks": ["0000000000000001"]},
        }],
    });
    let description = description.to_string().into_bytes();
    let files: [(&str, &[u8]); 2] = [("graph.json", &description), ("seeds/train.arrow", seeds)];
    FormatSample::directory("graph", Format::Graph, &files)
}

#[test]
fn the_samples_have_every_format_that_reads_objects() {
    let samples = all();
    for format in Format::ALL.iter().filter(|format| **format != Format::Kafka) {
        assert!(samples.iter().any(|sample| sample.format == *format), "{format:?}");
    }
}
