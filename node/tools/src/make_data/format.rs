//! The kinds of datasets and the file formats that `feedline make-data` writes.

use clap::ValueEnum;
use feedline_command::output::value_name;

/// A kind of dataset.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DatasetKind {
    /// JPEG photographs with a label and a file name.
    Images,
    /// Sentence pairs in two languages.
    Text,
    /// Numbers, a group name and a payload.
    Table,
    /// Edges, labels and seeds, with or without features.
    Graph,
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
    /// NumPy arrays, for graphs only.
    Npy,
}

impl FileFormat {
    /// Returns the extension of the file names.
    pub(super) fn extension(self) -> String {
        match self {
            Self::WebDataset => "tar".to_owned(),
            Self::Text => "txt".to_owned(),
            other => value_name(&other),
        }
    }
}
