//! Tests of the table of digests in `docs/datasets.md`: directories of other libraries, and compressed shards.

use feedline_data::manifest::ShardDigest;
use feedline_data::pipeline::Format;
use feedline_data::random::mix64;
use serde_json::{Value, json};

use super::samples::{FormatSample, all, array_record, gzip};
use crate::testing::hex;

/// More bytes than indexing reads only for the digest.
const LARGE_ITEMS: usize = 12;
const LARGE_ITEM_BYTES: usize = 1 << 20;

/// A file of MosaicML Streaming or LitData: a table of offsets, and items of one value.
fn items(count: usize, item_bytes: usize) -> Vec<u8> {
    let start_bytes = 4 * (count + 2);
    let mut file = (count as u32).to_le_bytes().to_vec();
    for item in 0..=count {
        file.extend(((start_bytes + item * (item_bytes + 4)) as u32).to_le_bytes());
    }
    for item in 0..count {
        file.extend((item_bytes as u32).to_le_bytes());
        file.resize(file.len() + item_bytes, item as u8);
    }
    file
}

fn item_count(file: &[u8]) -> u8 {
    file[0]
}

/// A shard of MosaicML Streaming whose column has a known type, with a hash in its index or without.
fn mds(name: &'static str, file: &[u8], has_hash: bool) -> FormatSample {
    let sha256 = hex(ShardDigest::of_bytes(file).hash());
    let hashes = if has_hash { json!({ "sha256": sha256 }) } else { json!({}) };
    let raw = json!({ "basename": "shard.00000.mds", "bytes": file.len(), "hashes": hashes });
    let index = mds_index(file, &raw, &Value::Null);
    FormatSample::directory(name, Format::Mds, &[("index.json", &index), ("shard.00000.mds", file)])
}

/// The same, compressed with Zstandard.
fn compressed_mds(name: &'static str, file: &[u8]) -> FormatSample {
    let zip = zstd::encode_all(file, 1).unwrap();
    let raw = json!({ "basename": "shard.00000.mds", "bytes": file.len(), "hashes": {} });
    let zip_data = json!({ "basename": "shard.00000.mds.zstd", "bytes": zip.len(), "hashes": {} });
    let index = mds_index(file, &raw, &zip_data);
    FormatSample::directory(name, Format::Mds, &[("index.json", &index), ("shard.00000.mds.zstd", &zip)])
}

fn mds_index(file: &[u8], raw: &Value, zip: &Value) -> Vec<u8> {
    let compression = if zip.is_null() { Value::Null } else { json!("zstd") };
    let shard = json!({
        "column_encodings": ["bytes"],
        "column_names": ["x"],
        "column_sizes": [null],
        "compression": compression,
        "format": "mds",
        "hashes": [],
        "raw_data": raw,
        "samples": item_count(file),
        "size_limit": 1 << 26,
        "version": 2,
        "zip_data": zip,
    });
    json!({ "shards": [shard], "version": 2 }).to_string().into_bytes()
}

/// A chunk of LitData whose column has a known type.
fn litdata(name: &'static str, file: &[u8], is_compressed: bool) -> FormatSample {
    let chunk_name = if is_compressed { "chunk-0-0.zstd.bin" } else { "chunk-0-0.bin" };
    let compression = if is_compressed { json!("zstd") } else { Value::Null };
    let index = json!({
        "chunks": [{
            "chunk_bytes": file.len(),
            "chunk_size": item_count(file),
            "dim": null,
            "filename": chunk_name,
        }],
        "config": {
            "chunk_bytes": null,
            "chunk_size": 25,
            "compression": compression,
            "compression_batch_size": null,
            "compression_level": null,
            "data_format": ["bytes"],
            "data_spec": "[1, {\"type\": null, \"context\": null, \"children_spec\": []}]",
            "encryption": null,
            "ipc_compression": null,
            "item_loader": "PyTreeLoader",
            "types": "json",
        },
    });
    let index = index.to_string().into_bytes();
    let chunk = if is_compressed { zstd::encode_all(file, 1).unwrap() } else { file.to_vec() };
    FormatSample::directory(name, Format::LitData, &[("index.json", &index), (chunk_name, &chunk)])
}

/// Lines that compression does not make much smaller.
fn lines(count: u64) -> Vec<u8> {
    let words = |line: u64| (0..4).map(|word| format!("{:016x}", mix64(4 * line + word))).collect::<String>();
    (0..count).flat_map(|line| format!("{{\"a\": \"{}\"}}\n", words(line)).into_bytes()).collect()
}

#[tokio::test]
async fn formats_with_an_index_or_compressed_shards_have_the_digests_of_the_documentation() {
    let (small, large) = (items(3, 10), items(LARGE_ITEMS, LARGE_ITEM_BYTES));
    let lines = lines(200_000);
    let zstd = zstd::encode_all(lines.as_slice(), 1).unwrap();
    let images: [(&str, &[u8]); 2] = [("cat/1.png", b"one image"), ("dog/2.png", b"another image")];
    let cases = [
        (mds("mds with a hash", &large, true), true),
        (mds("small mds", &small, false), true),
        (mds("mds without a hash", &large, false), false),
        (compressed_mds("compressed mds", &small), false),
        (litdata("small litdata", &small, false), true),
        (litdata("litdata", &large, false), false),
        (litdata("compressed litdata", &small, true), false),
        (
            FormatSample::file(
                "arrayrecord",
                Format::ArrayRecord,
                "a.array_record",
                &array_record("examples"),
            ),
            false,
        ),
        (FormatSample::directory("imagefolder", Format::ImageFolder, &images), false),
        (FormatSample::directory("huggingface", Format::HuggingFace, &[("train.jsonl", &lines)]), true),
        (FormatSample::file("jsonl in gzip", Format::Jsonl, "a.jsonl.gz", &gzip(&lines)), true),
        (FormatSample::file("jsonl in zstd", Format::Jsonl, "a.jsonl.zst", &zstd), true),
        (FormatSample::file("text in zstd", Format::Text, "a.txt.zst", &zstd), true),
    ];
    for (sample, is_whole) in cases {
        let shard = sample.index(&sample.local()).await;
        let digest = shard.digest.expect("each indexed shard has a digest");
        assert_eq!(digest.is_whole(), is_whole, "{}", sample.name);
        if is_whole {
            let path = shard.object.url.strip_prefix("file://").expect("a local file");
            assert_eq!(digest, ShardDigest::of_bytes(&std::fs::read(path).unwrap()), "{}", sample.name);
        }
    }
}

/// A worker keeps the reader of a dataset between its tasks, and with it the footers of shards.
#[tokio::test]
async fn a_reader_that_indexes_a_shard_again_finds_the_same_digest() {
    for sample in all() {
        let dataset = sample.local();
        let first = sample.index(&dataset).await;
        let again = sample.index(&dataset).await;
        assert_eq!(again.digest, first.digest, "{}", sample.name);
        assert_eq!(sample.index(&sample.local()).await.digest, first.digest, "{}", sample.name);
    }
}
