//! Files that the libraries of other formats wrote, and parts of Parquet files. For formats with directories, a seed is an index and its
//! first file.

use std::error::Error;
use std::io::Read;
use std::path::Path;

use bytes::Bytes;
use parquet::basic::{BrotliLevel, Compression, GzipLevel};
use parquet::file::reader::{FileReader, SerializedFileReader};
use serde_json::{Value, json};

use super::{Seed, parquet_file};
use crate::array_record;

/// Directory of files that the libraries wrote.
const DATASETS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../worker/sources/src/formats/testdata");

/// Returns archives of NumPy files.
pub(super) fn archives() -> Result<Vec<Seed>, Box<dyn Error>> {
    let seed = |name: &str| Ok(Seed { name: name.to_owned(), bytes: read(&format!("npz/{name}.npz"))? });
    ["stored", "deflated", "zip64", "every"].into_iter().map(seed).collect()
}

/// Returns files of ArrayRecord.
pub(super) fn array_records() -> Result<Vec<Seed>, Box<dyn Error>> {
    let names =
        ["one", "one_zstd", "none", "brotli", "snappy", "examples", "transposed", "transposed_none", "mixed"];
    let mut seeds = Vec::new();
    for name in names {
        let bytes = array_record::input(&array_record_file(name)?).ok_or("the file has no postscript")?;
        seeds.push(Seed { name: name.to_owned(), bytes });
    }
    seeds.push(Seed { name: "file".to_owned(), bytes: array_record_file("zstd")? });
    // Rows of this size are read one by one.
    let bytes = array_record::input_of_records(&[&[1; 5_000], &[2; 6_000]]);
    seeds.push(Seed { name: "large_rows".to_owned(), bytes });
    Ok(seeds)
}

/// Returns directories of MosaicML Streaming.
pub(super) fn mds() -> Result<Vec<Seed>, Box<dyn Error>> {
    let mut seeds = Vec::new();
    for name in ["all", "hashed", "zstd", "br", "snappy", "gz", "bz2"] {
        let (index, shard) = mds_shard(name)?;
        seeds.extend(directory(name, &index, &shard));
    }
    Ok(seeds)
}

/// Returns directories of LitData.
pub(super) fn litdata() -> Result<Vec<Seed>, Box<dyn Error>> {
    let mut seeds = Vec::new();
    for name in ["every", "plain", "batch", "sample", "chunk", "tokens", "arrow"] {
        let (index, chunk) = litdata_chunk(name)?;
        seeds.extend(directory(name, &index, &chunk));
    }
    Ok(seeds)
}

/// Returns the column chunks of Parquet files with the codecs of the target, after the size of a page.
pub(super) fn column_chunks() -> Result<Vec<Seed>, Box<dyn Error>> {
    let codecs = [
        ("gzip", Compression::GZIP(GzipLevel::default())),
        ("brotli", Compression::BROTLI(BrotliLevel::default())),
        ("lz4", Compression::LZ4),
    ];
    let mut seeds = Vec::new();
    for (codec, (name, compression)) in codecs.into_iter().enumerate() {
        let file = Bytes::from(parquet_file(compression)?);
        let reader = SerializedFileReader::new(file.clone())?;
        for (column, chunk) in reader.metadata().row_group(0).columns().iter().enumerate() {
            let (start, bytes) = chunk.byte_range();
            let chunk = &file[start as usize..(start + bytes) as usize];
            let bytes = [&[codec as u8, 0, 0, 1, 0][..], chunk].concat();
            seeds.push(Seed { name: format!("{name}-{column}"), bytes });
        }
    }
    Ok(seeds)
}

/// Reads and decompresses a file of ArrayRecord.
fn array_record_file(name: &str) -> std::io::Result<Vec<u8>> {
    let mut file = Vec::new();
    let packed = read(&format!("arrayrecord/{name}.gz"))?;
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut file)?;
    Ok(file)
}

/// Returns a directory as a seed, and the same directory whose index is replaced after it has been read.
fn directory(name: &str, index: &str, file: &[u8]) -> [Seed; 2] {
    let directory = [index.as_bytes(), b"\n---\n", file].concat();
    let other_index = index.replace("\"int\"", "\"str\"");
    let replaced = [&directory[..], b"\n---\n", other_index.as_bytes()].concat();
    [
        Seed { name: name.to_owned(), bytes: directory },
        Seed { name: format!("{name}-replaced"), bytes: replaced },
    ]
}

/// Returns the index and the file of the first shard of MosaicML Streaming.
fn mds_shard(name: &str) -> Result<(String, Vec<u8>), Box<dyn Error>> {
    let mut index: Value = serde_json::from_slice(&read(&format!("mds/{name}/index.json"))?)?;
    let mut shard = index["shards"][0].take();
    let data = if shard["zip_data"].is_null() { "raw_data" } else { "zip_data" };
    let file = shard[data]["basename"].as_str().ok_or("the shard has no file")?;
    let file = read(&format!("mds/{name}/{file}"))?;
    if name != "hashed" {
        shard["raw_data"]["hashes"] = json!({});
        shard[data]["hashes"] = json!({});
    }
    shard["raw_data"]["basename"] = json!("raw");
    shard[data]["basename"] = json!("shard.mds");
    index["shards"] = json!([shard]);
    let index = index.to_string().replace(&format!("\"bytes\":{},", file.len()), "\"bytes\":SIZE,");
    Ok((index, file))
}

/// Returns the index and the file of the first chunk of LitData.
fn litdata_chunk(name: &str) -> Result<(String, Vec<u8>), Box<dyn Error>> {
    let mut index: Value = serde_json::from_slice(&read(&format!("litdata/{name}/index.json"))?)?;
    let mut chunk = index["chunks"][0].take();
    let file = chunk["filename"].as_str().ok_or("the chunk has no file")?;
    let file = read(&format!("litdata/{name}/{file}"))?;
    chunk["filename"] = json!("chunk.bin");
    index["chunks"] = json!([chunk]);
    Ok((index.to_string(), file))
}

/// Reads a file of [`DATASETS`].
fn read(path: &str) -> std::io::Result<Vec<u8>> {
    std::fs::read(Path::new(DATASETS).join(path))
}
