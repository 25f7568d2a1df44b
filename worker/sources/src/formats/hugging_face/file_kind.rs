//! The formats of the data files of a dataset.

/// The formats of data files, as `datasets` derives them from extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FileKind {
    Parquet,
    Arrow,
    Json,
    Csv,
    Text,
    WebDataset,
}

impl FileKind {
    /// The extensions in error messages.
    pub(super) const EXTENSIONS: &'static str =
        ".parquet, .arrow, .jsonl, .json, .ndjson, .csv, .txt and .tar";
    /// Extensions of compressed files, before which the extension of the format is expected.
    const COMPRESSED: [&'static str; 4] = [".gz", ".zst", ".bz2", ".xz"];

    /// Returns the format of a file; `None` for other files.
    pub(super) fn of(name: &str) -> Option<Self> {
        let name = Self::COMPRESSED.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        match name.rsplit_once('.')?.1 {
            "parquet" | "geoparquet" | "gpq" => Some(Self::Parquet),
            "arrow" => Some(Self::Arrow),
            "jsonl" | "json" | "ndjson" => Some(Self::Json),
            "csv" => Some(Self::Csv),
            "txt" => Some(Self::Text),
            "tar" => Some(Self::WebDataset),
            _ => None,
        }
    }
}
