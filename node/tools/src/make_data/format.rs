//! The kinds of datasets and the file formats that `feedline make-data` writes.

use clap::ValueEnum;

/// A kind of dataset.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatasetKind {
    /// JPEG photographs with a label and a file name.
    Images,
    /// Sentence pairs in two languages.
    Text,
    /// Numbers, a group name and a payload.
    Table,
}

impl DatasetKind {
    /// Returns the name on the command line, with which the file names begin.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Images => "images",
            Self::Text => "text",
            Self::Table => "table",
        }
    }
}

/// A file format; the names are those of a pipeline's `format`.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
#[value(rename_all = "lower")]
pub(super) enum FileFormat {
    /// TFRecord files of tf.train.Example.
    TfRecord,
    /// Tar files; consecutive members with the same key form one row.
    WebDataset,
    /// One file per image.
    Files,
    /// Apache Parquet.
    Parquet,
    /// Arrow IPC files.
    Arrow,
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values with a header line.
    Csv,
    /// One sentence per line, in the first language only.
    Text,
}

impl FileFormat {
    /// Returns the name on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TfRecord => "tfrecord",
            Self::WebDataset => "webdataset",
            Self::Files => "files",
            Self::Parquet => "parquet",
            Self::Arrow => "arrow",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Text => "text",
        }
    }

    /// Returns the extension of the file names.
    pub(super) fn extension(self) -> &'static str {
        match self {
            Self::WebDataset => "tar",
            Self::Text => "txt",
            other => other.name(),
        }
    }
}
