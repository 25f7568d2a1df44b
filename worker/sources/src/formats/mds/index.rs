//! `index.json` of MosaicML Streaming, version 2.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use feedline_data::schema::ScalarType;
use serde::Deserialize;

use super::super::decompress::{Compression, MAX_DECOMPRESSED_BYTES};
use super::super::samples::{ArrayEncoding, SampleColumn, SampleLayout, ValueEncoding};
use super::hashes::FileHashes;
use crate::directory::{DirectoryIndex, IndexedFile};

/// Maximum size of a tensor in bytes, as for other rows.
const MAX_TENSOR_BYTES: u64 = i32::MAX as u64;

/// The shards of a directory.
pub(super) struct MdsIndex {
    shards: Vec<MdsShard>,
    /// Maps a path to the index of its shard, and to whether the file is compressed.
    paths: HashMap<String, (usize, bool)>,
}

/// One shard of the index.
pub(super) struct MdsShard {
    pub(super) samples: u64,
    pub(super) layout: SampleLayout,
    /// The compression of `zip`, or the reason why the shard cannot be decompressed.
    pub(super) compression: Result<Compression, String>,
    pub(super) raw: ShardFile,
    pub(super) zip: Option<ShardFile>,
}

#[derive(Deserialize)]
struct IndexFile {
    version: u64,
    #[serde(default)]
    shards: Vec<ShardEntry>,
}

#[derive(Deserialize)]
struct ShardEntry {
    version: u64,
    format: String,
    #[serde(default)]
    column_names: Vec<String>,
    #[serde(default)]
    column_encodings: Vec<String>,
    #[serde(default)]
    column_sizes: Vec<Option<u32>>,
    compression: Option<String>,
    samples: u64,
    raw_data: ShardFile,
    zip_data: Option<ShardFile>,
}

/// A file of a shard.
#[derive(Deserialize)]
pub(super) struct ShardFile {
    basename: String,
    pub(super) bytes: u64,
    #[serde(default)]
    pub(super) hashes: BTreeMap<String, String>,
}

impl DirectoryIndex for MdsIndex {
    const FORMAT: &'static str = "mds";

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: IndexFile = serde_json::from_slice(bytes).map_err(|error| {
            format!("it is not an index of MosaicML Streaming ({error}): check `source.format`, or write the dataset again")
        })?;
        if file.version != 2 {
            return Err(format!(
                "the index has version {}, but this release reads version 2: write the dataset again",
                file.version
            ));
        }
        let shards: Vec<MdsShard> = file.shards.into_iter().map(MdsShard::new).collect::<Result<_, _>>()?;
        let mut paths = HashMap::new();
        for (number, shard) in shards.iter().enumerate() {
            let zip = shard.zip.iter().map(|zip| (zip, true));
            for (file, is_compressed) in zip.chain([(&shard.raw, false)]) {
                let earlier = paths.insert(file.basename.clone(), (number, is_compressed));
                if earlier.is_some() {
                    return Err(format!(
                        "it names the file `{}` twice: write the dataset again",
                        file.basename
                    ));
                }
            }
        }
        Ok(Self { shards, paths })
    }

    fn shards(&self) -> Vec<Vec<IndexedFile<'_>>> {
        self.shards.iter().map(MdsShard::files).collect()
    }

    fn contains(&self, path: &str) -> bool {
        self.paths.contains_key(path)
    }

    fn warning(&self) -> Option<String> {
        let files = || self.shards.iter().flat_map(|shard| shard.zip.iter().chain([&shard.raw]));
        let unsupported: BTreeSet<&str> =
            files().flat_map(|file| FileHashes::unsupported(&file.hashes)).collect();
        if unsupported.is_empty() {
            return None;
        }
        let is_unverified =
            |file: &ShardFile| !file.hashes.is_empty() && FileHashes::new(&file.hashes).is_empty();
        let names = unsupported.into_iter().collect::<Vec<_>>().join(", ");
        Some(if files().any(is_unverified) {
            format!(
                "files are not verified, because their hashes have an unknown algorithm ({names}): write the dataset with sha256 or \
                 xxh64 hashes"
            )
        } else {
            format!(
                "hashes of an unknown algorithm ({names}) are not verified; other hashes of the same files are verified"
            )
        })
    }
}

impl MdsIndex {
    /// Returns the shard with a file, and whether the file is compressed.
    pub(super) fn find(&self, path: &str) -> Option<(&MdsShard, bool)> {
        let &(number, is_compressed) = self.paths.get(path)?;
        Some((self.shards.get(number)?, is_compressed))
    }
}

impl MdsShard {
    fn new(entry: ShardEntry) -> Result<Self, String> {
        let name = &entry.raw_data.basename;
        if entry.version != 2 || entry.format != "mds" {
            return Err(format!(
                "the shard `{name}` has the format `{}` of version {}: only `mds` of version 2 can be read; use `format: jsonl` or \
                 `format: csv` for the other formats of MosaicML Streaming",
                entry.format, entry.version
            ));
        }
        let columns = entry.column_names.len();
        if entry.column_encodings.len() != columns || entry.column_sizes.len() != columns {
            return Err(format!(
                "the shard `{name}` has different numbers of column names, encodings and sizes: write the dataset again"
            ));
        }
        let columns = entry.column_names.into_iter().zip(&entry.column_encodings).zip(&entry.column_sizes);
        let columns = columns.map(|((name, encoding), size)| SampleColumn {
            name,
            encoding: parse_encoding(encoding),
            fixed_bytes: size.filter(|size| *size > 0),
        });
        Ok(Self {
            samples: entry.samples,
            layout: SampleLayout { columns: columns.collect(), has_sizes: true },
            compression: parse_compression(entry.compression.as_deref().unwrap_or_default()),
            raw: entry.raw_data,
            zip: entry.zip_data,
        })
    }

    /// The compressed file is preferred, as in MosaicML Streaming.
    fn files(&self) -> Vec<IndexedFile<'_>> {
        let files = self.zip.iter().chain([&self.raw]);
        files.map(|file| IndexedFile { path: &file.basename, bytes: Some(file.bytes) }).collect()
    }

    /// Checks that the decompressed shard may be in memory.
    pub(super) fn check_decompressed_size(&self) -> Result<(), String> {
        if self.raw.bytes <= MAX_DECOMPRESSED_BYTES {
            return Ok(());
        }
        Err(format!(
            "it has {} bytes after decompression; the limit is {MAX_DECOMPRESSED_BYTES} bytes: write the dataset again with a smaller \
             `size_limit`",
            self.raw.bytes
        ))
    }
}

/// Parses an algorithm with an optional level, such as `zstd:7`.
fn parse_compression(text: &str) -> Result<Compression, String> {
    Ok(match text.split(':').next().unwrap_or_default() {
        "br" => Compression::Brotli,
        "bz2" => Compression::Bzip2,
        "gz" => Compression::Gzip,
        "snappy" => Compression::Snappy,
        "zstd" => Compression::Zstd,
        other => {
            return Err(format!("the compression `{other}` is unknown: write the dataset again with zstd"));
        }
    })
}

/// Parses the encoding of a column, such as `ndarray:int32:3,4`.
fn parse_encoding(text: &str) -> Result<ValueEncoding, String> {
    let (name, arguments) = text.split_once(':').unwrap_or((text, ""));
    Ok(match name {
        "bytes" | "jpeg" | "png" => ValueEncoding::Bytes,
        "str" | "str_decimal" | "json" => ValueEncoding::Text,
        "int" => ValueEncoding::Number(ScalarType::Int64),
        "str_int" => ValueEncoding::IntText,
        "str_float" => ValueEncoding::FloatText,
        "pil" => ValueEncoding::Pil,
        "jpeg_array" | "jpegarray" => ValueEncoding::Images { header: 0, is_raw: false },
        "list[jpeg]" | "list[png]" => ValueEncoding::Images { header: 4, is_raw: false },
        "list[pil]" => ValueEncoding::Images { header: 4, is_raw: true },
        "ndarray" => ValueEncoding::Array(parse_array(arguments)?),
        "pkl" => {
            return Err("its values are pickled, and Feedline never unpickles data: write the column with another encoding".to_owned());
        }
        _ => ValueEncoding::Number(scalar(name).ok_or_else(|| format!("the encoding `{text}` is unknown"))?),
    })
}

fn parse_array(text: &str) -> Result<ArrayEncoding, String> {
    let unknown = || format!("the encoding `ndarray:{text}` is unknown");
    if text.is_empty() {
        return Ok(ArrayEncoding::Mds { scalar: None, shape: None });
    }
    let (dtype, shape) = text.split_once(':').map_or((text, None), |(dtype, shape)| (dtype, Some(shape)));
    let scalar = scalar(dtype).ok_or_else(unknown)?;
    let Some(shape) = shape else { return Ok(ArrayEncoding::Mds { scalar: Some(scalar), shape: None }) };
    let shape: Option<Vec<u32>> =
        shape.split(',').map(|extent| extent.trim().parse().ok().filter(|extent| *extent > 0)).collect();
    let shape = shape.ok_or_else(unknown)?;
    let bytes = shape
        .iter()
        .try_fold(scalar.width_bytes() as u64, |bytes, extent| bytes.checked_mul(u64::from(*extent)));
    match bytes {
        Some(bytes) if bytes <= MAX_TENSOR_BYTES => Ok(ArrayEncoding::Fixed { scalar, shape }),
        _ => Err(format!("the arrays of the encoding `ndarray:{text}` are larger than 2 GiB")),
    }
}

/// Parses the name of a NumPy scalar type, such as `int32`.
fn scalar(name: &str) -> Option<ScalarType> {
    use ScalarType::{Float16, Float32, Float64, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64};
    let all = [UInt8, UInt16, UInt32, UInt64, Int8, Int16, Int32, Int64, Float16, Float32, Float64];
    all.into_iter().find(|scalar| scalar.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodings_have_column_types() {
        let shown = |text: &str| {
            let encoding = parse_encoding(text)?;
            encoding
                .column_type(&[33, 1 << 2, 0])
                .map(|column_type: feedline_data::schema::ColumnType| column_type.to_string())
        };
        let expected = [
            ("int", "int64"),
            ("float16", "float16"),
            ("str_int", "int64"),
            ("str_float", "float64"),
            ("str_decimal", "text"),
            ("json", "text"),
            ("jpeg", "bytes"),
            ("pil", "bytes"),
            ("list[pil]", "list of bytes"),
            ("jpegarray", "list of bytes"),
            ("ndarray:int32:3,4", "int32 tensor [3, 4]"),
            ("ndarray", "list of int32"),
        ];
        for (text, column_type) in expected {
            assert_eq!(shown(text).unwrap(), column_type, "{text}");
        }
        for text in
            ["pkl", "tuple", "ndarray:bool", "ndarray:int8:", "ndarray:int8:0", "ndarray:int8:99999,99999"]
        {
            assert!(shown(text).is_err(), "{text}");
        }
        assert!(shown("pkl").unwrap_err().contains("never unpickles"));
        assert_eq!(parse_compression("zstd:7"), Ok(Compression::Zstd));
        assert!(parse_compression("lz4").is_err());
    }

    #[test]
    fn hashes_of_unknown_algorithms_are_a_warning() {
        let warning = |raw: &[&str], zip: &[&str]| {
            let hashes = |names: &[&str]| -> String {
                let hashes: Vec<String> = names.iter().map(|name| format!("\"{name}\": \"00\"")).collect();
                hashes.join(", ")
            };
            let text = format!(
                "{{\"version\": 2, \"shards\": [{{\"version\": 2, \"format\": \"mds\", \"samples\": 1, \"compression\": \"gz\", \
                 \"zip_data\": {{\"basename\": \"a.gz\", \"bytes\": 9, \"hashes\": {{{}}}}}, \
                 \"raw_data\": {{\"basename\": \"a\", \"bytes\": 9, \"hashes\": {{{}}}}}}}]}}",
                hashes(zip),
                hashes(raw)
            );
            MdsIndex::parse(text.as_bytes()).unwrap().warning()
        };
        assert_eq!(warning(&["sha256"], &["sha256"]), None);
        assert_eq!(warning(&[], &[]), None);
        let unverified = warning(&["sm3"], &["sha256"]).unwrap();
        assert!(unverified.contains("files are not verified"), "{unverified}");
        assert!(unverified.contains("unknown algorithm (sm3)"), "{unverified}");
        let of_zip = warning(&["sha256"], &["crc32"]).unwrap();
        assert!(of_zip.contains("unknown algorithm (crc32)"), "{of_zip}");
        let several = warning(&["sm3", "sha256"], &["crc32", "sm3", "xxh64"]).unwrap();
        assert!(several.contains("other hashes of the same files are verified"), "{several}");
        assert!(several.contains("unknown algorithm (crc32, sm3)"), "{several}");
    }

    /// `make_mds.py` wrote `br` with all algorithms of the library.
    #[test]
    fn every_algorithm_of_the_library_is_verified() {
        let text = std::fs::read(crate::testing::testdata("mds/br/index.json")).unwrap();
        let index = MdsIndex::parse(&text).unwrap();
        assert_eq!(index.warning(), None);
        let expected = "blake2b blake2s md5 sha1 sha224 sha256 sha384 sha3_224 sha3_256 sha3_384 sha3_512 sha512 \
                        xxh128 xxh32 xxh3_128 xxh3_64 xxh64";
        for shard in &index.shards {
            for file in shard.zip.iter().chain([&shard.raw]) {
                let written: Vec<&str> = file.hashes.keys().map(String::as_str).collect();
                assert_eq!(written.join(" "), expected);
                assert_eq!(FileHashes::unsupported(&file.hashes).count(), 0);
            }
        }
    }

    #[test]
    fn an_index_of_another_version_or_format_is_rejected() {
        let error = |text: &str| MdsIndex::parse(text.as_bytes()).err().unwrap();
        assert!(error("{\"version\": 1}").contains("version 1"));
        assert!(error("[]").contains("check `source.format`"));
        assert!(error("{\"chunks\": []}").contains("check `source.format`"));
        let shard = |format: &str| {
            format!(
                "{{\"version\": 2, \"format\": \"{format}\", \"samples\": 1, \"compression\": null, \"zip_data\": null, \
                 \"raw_data\": {{\"basename\": \"a\", \"bytes\": 9}}, \"column_names\": [\"a\"]}}"
            )
        };
        assert!(error(&format!("{{\"version\": 2, \"shards\": [{}]}}", shard("json"))).contains("`json`"));
        assert!(
            error(&format!("{{\"version\": 2, \"shards\": [{}]}}", shard("mds")))
                .contains("different numbers")
        );
    }
}
