//! The types of a pipeline file. Field names and defaults are the file's own: what serde reads is what is documented.

mod function;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::function::*;
use super::OperatorKind;

/// Version of the JSON form in which clients, coordinators and workers exchange a [`Pipeline`]. A change of the meaning of keys
/// raises it. A new operator does not: a release that does not have it rejects the pipeline and names the operator.
pub const PIPELINE_VERSION: u32 = 1;

/// A pipeline: one source, operators in order, the last of which is `batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// Name shown in messages and metrics.
    pub name: String,
    /// Where rows come from.
    pub source: Source,
    /// Seeds the order and every random operator.
    #[serde(default)]
    pub seed: u64,
    /// How rows are mixed.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// `deterministic` (default): each consumer's stream is a pure function of the job. `relaxed`: a consumer takes
    /// the next ready rows.
    #[serde(default)]
    pub order: OrderMode,
    /// What happens to a row that cannot be read or processed.
    #[serde(default)]
    pub on_error: OnError,
    /// Operators in order.
    pub operators: Vec<Operator>,
}

/// Where rows come from: one dataset, or several that are mixed.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// One or several paths, globs, prefixes (ending in `/`) or URLs (`file://`, `s3://`, `gs://`, `az://`, `http(s)://`). Empty where
    /// there is a mix.
    pub url: Vec<String>,
    /// How the objects are encoded. Means nothing where there is a mix.
    pub format: Format,
    /// Column name -> name in the data: the feature (tfrecord), extension (webdataset), column (parquet, arrow, csv),
    /// key (jsonl), or `bytes` and `path` (files). Empty: every column under its own name.
    pub features: BTreeMap<String, String>,
    /// Name of the credentials that the objects are read with, which whoever runs the workers gives them. `None`: those of
    /// the workers' environment.
    pub credentials: Option<String>,
    /// Datasets that are mixed, in place of all the above.
    pub mix: Option<Mix>,
}

/// Several datasets whose rows are mixed in proportion to weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// The datasets.
    pub parts: Vec<MixPart>,
    /// When a pass over them ends.
    pub stop: MixStop,
}

/// One dataset of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixPart {
    /// Its share of the rows, relative to the weights of the others. Above 0.
    pub weight: f64,
    /// Where its rows come from; itself no mix.
    pub source: Source,
}

/// When a pass over a mix ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MixStop {
    /// When all rows of all datasets were had; those that are through leave the mix to the others.
    #[default]
    All,
    /// When the first dataset is through.
    First,
    /// When all datasets are through; short ones are begun again until then.
    Restart,
}

/// Defines the source formats. A row has the format's description, its variant and its name, which is also its key in
/// pipeline files.
macro_rules! formats {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:ident,)+) => {
        /// Encodings of a dataset's objects.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum Format {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Format {
            /// All formats.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The name used in pipeline files and messages, such as `tfrecord`.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)+
                }
            }
        }

        impl Source {
            $($(#[doc = $doc])+ pub fn $name(url: impl Into<String>) -> Self {
                Self::new(Format::$variant, url)
            })+
        }
    };
}

formats! {
    /// TFRecord files of `tf.train.Example`.
    TfRecord => tfrecord,
    /// Tar files; neighbouring members that share a key (the name up to the first dot) are one row, extensions its columns.
    WebDataset => webdataset,
    /// Each object is one row with the columns `bytes` and `path`.
    Files => files,
    /// Apache Parquet.
    Parquet => parquet,
    /// Arrow IPC files.
    Arrow => arrow,
    /// One JSON object per line.
    Jsonl => jsonl,
    /// Comma-separated values with a header line.
    Csv => csv,
    /// One row per line in the column `text`.
    Text => text,
    /// NumPy `.npy` files; each index along the first axis is a row, in the column `data`.
    Npy => npy,
}

/// How rows are mixed within an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// Rows mixed with each other; 0 keeps storage order.
    pub window: u64,
}

impl Default for Shuffle {
    /// Storage order.
    fn default() -> Self {
        Self { window: 0 }
    }
}

/// How batches are dealt to consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderMode {
    /// Each virtual consumer's stream depends on nothing but the job.
    #[default]
    Deterministic,
    /// A consumer takes the next ready rows; still exactly once.
    Relaxed,
}

/// What happens to a row that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The job fails with the row's shard, offset and reason.
    #[default]
    Fail,
    /// The row is left out, counted and listed.
    Skip,
    /// The failed columns are filled with zeros or empty values; the row is counted and listed.
    Replace,
}

/// One operator: a key that names it, with its parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// What it does.
    pub kind: OperatorKind,
    /// Upper limit of concurrent executions on one worker; `None` leaves it to the engine.
    pub parallelism: Option<u32>,
}

/// Height and width in pixels.
pub type Size = [u32; 2];
