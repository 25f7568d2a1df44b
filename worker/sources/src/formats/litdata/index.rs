//! `index.json` of LitData: the chunks, and the serializers and names of the values of an item.

use std::collections::HashMap;

use feedline_data::schema::ScalarType;
use serde::Deserialize;
use serde_json::Value;

use super::super::decompress::MAX_DECOMPRESSED_BYTES;
use super::super::samples::{
    ArrayEncoding, SampleColumn, SampleLayout, ValueEncoding, numpy_scalar, torch_scalar,
};
use crate::directory::{DirectoryIndex, IndexedFile};
use crate::limits::MAX_JSON_DEPTH;

/// The chunks of a directory.
pub(super) struct LitDataIndex {
    chunks: Vec<LitDataChunk>,
    /// Maps a path to the index of its chunk, and to the storage of the file.
    paths: HashMap<String, (usize, Storage)>,
    pub(super) layout: SampleLayout,
}

/// How chunks store their items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Storage {
    /// A table of offsets, and the items.
    Plain,
    /// The same, and an item is an array without sizes.
    Tokens,
    /// The same, compressed as a whole with zstd.
    Compressed,
    /// Frames of several items, each compressed with zstd.
    Frames,
    /// A table of offsets, and items that are compressed separately with zstd.
    CompressedItems,
}

/// A chunk of the index.
#[derive(Deserialize)]
pub(super) struct LitDataChunk {
    filename: String,
    /// The name of the file after LitData has decompressed it.
    #[serde(skip)]
    decompressed: Option<String>,
    chunk_size: u64,
    chunk_bytes: u64,
}

#[derive(Deserialize)]
struct IndexFile {
    chunks: Vec<LitDataChunk>,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    compression: Option<String>,
    compression_level: Option<Value>,
    data_format: Option<Vec<String>>,
    data_spec: Option<Value>,
    encryption: Option<Value>,
    item_loader: Option<String>,
}

impl DirectoryIndex for LitDataIndex {
    const FORMAT: &'static str = "litdata";

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let file: IndexFile = serde_json::from_slice(bytes).map_err(|error| {
            format!(
                "it is not an index of LitData ({error}): check `source.format`, or write the dataset again"
            )
        })?;
        let storage = file.config.storage()?;
        let layout = file.config.layout(storage)?;
        let mut paths = HashMap::new();
        let mut chunks = file.chunks;
        for (number, chunk) in chunks.iter_mut().enumerate() {
            if paths.insert(chunk.filename.clone(), (number, storage)).is_some() {
                return Err(format!("it names the file `{}` twice: write the dataset again", chunk.filename));
            }
            if storage == Storage::Compressed {
                let extension = format!(".{}", file.config.compression.as_deref().unwrap_or_default());
                let decompressed = chunk.filename.replace(&extension, "");
                paths.entry(decompressed.clone()).or_insert((number, Storage::Plain));
                chunk.decompressed = Some(decompressed);
            }
        }
        Ok(Self { chunks, paths, layout })
    }

    fn shards(&self) -> Vec<Vec<IndexedFile<'_>>> {
        // `chunk_bytes` is the size of the file in recent versions only. The table of a chunk detects truncated files.
        self.chunks.iter().map(LitDataChunk::files).collect()
    }

    fn contains(&self, path: &str) -> bool {
        self.paths.contains_key(path)
    }
}

impl LitDataIndex {
    /// Returns the chunk with a file, and the storage of the file.
    pub(super) fn find(&self, path: &str) -> Option<(&LitDataChunk, Storage)> {
        let &(number, storage) = self.paths.get(path)?;
        Some((self.chunks.get(number)?, storage))
    }
}

impl LitDataChunk {
    fn files(&self) -> Vec<IndexedFile<'_>> {
        let paths = std::iter::once(&self.filename).chain(&self.decompressed);
        paths.map(|path| IndexedFile { path, bytes: None }).collect()
    }

    pub(super) fn items(&self) -> u64 {
        self.chunk_size
    }

    /// The approximate size of the chunk after decompression.
    pub(super) fn decompressed_bytes(&self) -> Result<u64, String> {
        let bytes = self.chunk_bytes.saturating_add(4 * self.chunk_size.saturating_add(2));
        if bytes <= MAX_DECOMPRESSED_BYTES {
            return Ok(bytes);
        }
        Err(format!(
            "it has about {bytes} bytes after decompression; the limit is {MAX_DECOMPRESSED_BYTES} bytes: write the dataset again with \
             smaller `chunk_bytes`"
        ))
    }
}

impl LitDataChunk {
    /// The size at which decompression stops. `chunk_bytes` of earlier versions of LitData is smaller than the file.
    pub(super) fn max_decompressed_bytes(&self) -> Result<u64, String> {
        const SLACK_BYTES: u64 = 1 << 20;
        let bytes = self.decompressed_bytes()?;
        Ok((2 * bytes).saturating_add(SLACK_BYTES).min(MAX_DECOMPRESSED_BYTES))
    }
}

impl Config {
    fn storage(&self) -> Result<Storage, String> {
        if self.encryption.as_ref().is_some_and(|value| !value.is_null()) {
            return Err("the chunks are encrypted: write the dataset again without encryption".to_owned());
        }
        let loader = self.item_loader.as_deref().unwrap_or("PyTreeLoader");
        let is_tokens = match loader {
            "PyTreeLoader" => false,
            "TokensLoader" => true,
            "ParquetLoader" => return Err("the chunks are Parquet files: use `format: parquet`".to_owned()),
            other => {
                return Err(format!(
                    "the item loader `{other}` is not supported: write the dataset with `PyTreeLoader`"
                ));
            }
        };
        let Some(compression) = self.compression.as_deref() else {
            return Ok(if is_tokens { Storage::Tokens } else { Storage::Plain });
        };
        if compression.split(':').next() != Some("zstd") {
            return Err(format!(
                "the compression `{compression}` is unknown: write the dataset again with zstd"
            ));
        }
        let level = self.compression_level.as_ref().filter(|level| !level.is_null());
        match level.map(|level| level.as_str().unwrap_or("?")) {
            _ if is_tokens => {
                Err("chunks of tokens are compressed: write the dataset again without compression".to_owned())
            }
            None | Some("" | "chunk") => Ok(Storage::Compressed),
            Some("batch") => Ok(Storage::Frames),
            Some("sample") => Ok(Storage::CompressedItems),
            Some(other) => Err(format!("the compression level `{other}` is unknown")),
        }
    }

    fn layout(&self, storage: Storage) -> Result<SampleLayout, String> {
        let formats = self.data_format.as_deref().unwrap_or_default();
        if storage == Storage::Tokens && formats.len() != 1 {
            return Err("an item of tokens must be one array: write the dataset again".to_owned());
        }
        let names = match &self.data_spec {
            Some(Value::String(spec)) => leaf_names(spec)?,
            _ => (0..formats.len()).map(|leaf| leaf.to_string()).collect(),
        };
        if names.len() != formats.len() {
            return Err(format!(
                "`data_spec` has {} values, but `data_format` has {}: write the dataset again",
                names.len(),
                formats.len()
            ));
        }
        let columns = names.into_iter().zip(formats).map(|(name, format)| SampleColumn {
            name,
            encoding: parse_serializer(format),
            fixed_bytes: None,
        });
        Ok(SampleLayout { columns: columns.collect(), has_sizes: storage != Storage::Tokens })
    }
}

/// Returns the names of the values of an item: the keys of dictionaries and the positions in lists, joined with dots.
fn leaf_names(spec: &str) -> Result<Vec<String>, String> {
    let wrong = || "`data_spec` cannot be read: write the dataset again".to_owned();
    let (_, tree): (u32, Value) = serde_json::from_str(spec).map_err(|_| wrong())?;
    let mut names = Vec::new();
    add_leaf_names(&tree, "", 0, &mut names).ok_or_else(wrong)?;
    Ok(names)
}

fn add_leaf_names(tree: &Value, prefix: &str, depth: usize, names: &mut Vec<String>) -> Option<()> {
    let children = tree.get("children_spec")?.as_array()?;
    if depth > MAX_JSON_DEPTH {
        return None;
    }
    if tree.get("type")?.is_null() {
        names.push(if prefix.is_empty() { "0".to_owned() } else { prefix.to_owned() });
        return Some(());
    }
    // The keys of a dictionary are a JSON list in a string.
    let context = tree.get("context").and_then(Value::as_str);
    let keys: Option<Vec<Value>> = context.and_then(|text| serde_json::from_str(text).ok());
    let keys = keys.filter(|keys| keys.len() == children.len());
    for (position, child) in children.iter().enumerate() {
        let key = match keys.as_ref().map(|keys| &keys[position]) {
            Some(Value::String(key)) => key.clone(),
            Some(key @ (Value::Number(_) | Value::Bool(_))) => key.to_string(),
            _ => position.to_string(),
        };
        let name = if prefix.is_empty() { key } else { format!("{prefix}.{key}") };
        add_leaf_names(child, &name, depth + 1, names)?;
    }
    Some(())
}

/// Parses the name of a serializer with its argument, such as `no_header_tensor:17`.
fn parse_serializer(text: &str) -> Result<ValueEncoding, String> {
    let (name, argument) = text.split_once(':').unwrap_or((text, ""));
    let code = || argument.parse().map_err(|_| format!("the serializer `{text}` has no dtype"));
    Ok(match name {
        "str" | "text" => ValueEncoding::Text,
        "bool" => ValueEncoding::Number(ScalarType::Bool),
        "int" => ValueEncoding::Number(ScalarType::Int64),
        "float" => ValueEncoding::Number(ScalarType::Float64),
        // LitData writes the name `tiff` for its type `Tiff`.
        "bytes" | "jpeg" | "image" | "file" | "video" | "audio" | "tiff" | "tifffile" | "nifti" | "mesh"
        | "pdf" => ValueEncoding::Bytes,
        "pil" => ValueEncoding::Pil,
        "jpeg_array" => ValueEncoding::Images { header: 0, is_raw: false },
        "numpy" => ValueEncoding::Array(ArrayEncoding::Numpy),
        "tensor" => ValueEncoding::Array(ArrayEncoding::Tensor),
        "no_header_numpy" => ValueEncoding::Array(ArrayEncoding::Flat(numpy_scalar(code()?)?)),
        "no_header_tensor" => ValueEncoding::Array(ArrayEncoding::Flat(torch_scalar(code()?)?)),
        "json" => ValueEncoding::Nested,
        "pickle" | "graph" => {
            return Err("its values are pickled, and Feedline never unpickles data: write the value with another serializer".to_owned());
        }
        _ => return Err(format!("the serializer `{text}` is unknown")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_names_the_values() {
        let leaf = "{\"type\": null, \"context\": null, \"children_spec\": []}";
        let list = format!(
            "{{\"type\": \"builtins.list\", \"context\": \"null\", \"children_spec\": [{leaf}, {leaf}]}}"
        );
        let spec = format!(
            "[1, {{\"type\": \"builtins.dict\", \"context\": \"[\\\"image\\\", \\\"boxes\\\"]\", \"children_spec\": [{leaf}, {list}]}}]"
        );
        assert_eq!(leaf_names(&spec).unwrap(), ["image", "boxes.0", "boxes.1"]);
        assert_eq!(leaf_names(&format!("[1, {leaf}]")).unwrap(), ["0"]);
        assert_eq!(leaf_names(&format!("[1, {list}]")).unwrap(), ["0", "1"]);
        for damaged in ["", "[1]", "[1, 2]", "[1, {\"type\": null}]"] {
            assert!(leaf_names(damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn serializers_have_encodings() {
        assert_eq!(
            parse_serializer("no_header_tensor:17").unwrap(),
            ValueEncoding::Array(ArrayEncoding::Flat(ScalarType::Int64))
        );
        assert_eq!(parse_serializer("image:png").unwrap(), ValueEncoding::Bytes);
        for (text, reason) in [
            ("pickle", "never unpickles"),
            ("graph", "never unpickles"),
            ("no_header_numpy:14", "never unpickled"),
            ("no_header_tensor:10", "dtype 10"),
            ("no_header_tensor", "no dtype"),
            ("mine", "unknown"),
        ] {
            assert!(parse_serializer(text).unwrap_err().contains(reason), "{text}");
        }
    }

    #[test]
    fn other_datasets_are_one_sentence() {
        let error = |config: &str| {
            let text = format!("{{\"chunks\": [], \"config\": {{\"data_format\": [], {config}}}}}");
            LitDataIndex::parse(text.as_bytes()).err().unwrap()
        };
        assert!(error("\"encryption\": {\"algorithm\": \"fernet\"}").contains("encrypted"));
        assert!(error("\"item_loader\": \"ParquetLoader\"").contains("format: parquet"));
        assert!(error("\"compression\": \"lz4\"").contains("`lz4` is unknown"));
        assert!(
            LitDataIndex::parse(b"{\"version\": 2, \"shards\": []}")
                .err()
                .unwrap()
                .contains("check `source.format`")
        );
    }
}
