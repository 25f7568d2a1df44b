//! The types of a pipeline. Pipeline files use the same field names and defaults.

mod function;
mod kafka;
mod period;
mod timestamp;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

pub use self::function::*;
pub use self::kafka::*;
pub use self::period::Period;
pub use self::timestamp::Timestamp;
use super::OperatorKind;
use crate::compression::SourceCompression;

/// Version of the JSON form in which clients, coordinators and workers exchange a [`Pipeline`]. Increment the version when
/// the meaning of a key changes. A new operator does not need a new version, because a release without the operator rejects
/// the pipeline with an error that names the operator.
pub const PIPELINE_VERSION: u32 = 1;

/// A pipeline: a source and a list of operators that ends with a batching operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pipeline {
    /// The name of the pipeline in messages and metrics.
    pub name: String,
    /// The source of the rows.
    pub source: Source,
    /// The seed of the row order and of every random operator.
    #[serde(default)]
    pub seed: u64,
    /// How rows are shuffled.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// How batches are assigned to consumers.
    #[serde(default)]
    pub order: OrderMode,
    /// What happens to a row that cannot be read or processed.
    #[serde(default)]
    pub on_error: OnError,
    /// The operators in order.
    pub operators: Vec<Operator>,
}

/// The source of the rows: one dataset, or a mix of several.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    /// One or more paths, globs, prefixes (ending in `/`) or URLs (`file://`, `s3://`, `gs://`, `az://`, `http(s)://`).
    /// Directories with an `index.json` for mds and litdata. Empty for a mix.
    pub url: Vec<String>,
    /// The encoding of the objects. Ignored for a mix.
    pub format: Format,
    /// Maps each column name to its name in the data: the feature (tfrecord), extension (webdataset), column (parquet,
    /// arrow, csv), key (jsonl), or `bytes` and `path` (files). If empty, all columns are read with their names in the data.
    pub features: BTreeMap<String, String>,
    /// The columns of `features` that shards may lack. Their values are then null.
    pub optional: BTreeSet<String>,
    /// The name of the credentials for reading the objects, from the workers' `--credentials` file. `None` uses the
    /// credentials of the workers' environment.
    pub credentials: Option<String>,
    /// The settings of a source with `format: kafka`; `None` for other formats.
    pub kafka: Option<Box<KafkaOptions>>,
    /// The datasets to mix. Replaces the other fields.
    pub mix: Option<Mix>,
    /// The compression of the objects. `None` determines it for each object from its first bytes.
    pub compression: Option<SourceCompression>,
    /// How columns are derived from the names of directories. `None` ignores the names.
    pub partitions: Option<Partitions>,
    /// The configuration of a Hugging Face dataset. `None` selects the default configuration.
    pub config: Option<String>,
    /// The split of a Hugging Face dataset. `None` selects the only split.
    pub split: Option<String>,
    /// The seed set of a graph. `None` selects the only seed set.
    pub seeds: Option<String>,
    /// A predicate over the columns of directories: shards for which it is not true are not listed. Pipeline files cannot
    /// contain it; [`Pipeline::listed_source`] derives it from the first operators.
    pub shard_filter: Option<String>,
    /// The folder of the graph that the last operator samples. Its description is listed after the shards. Pipeline files cannot
    /// contain it; [`Pipeline::listed_source`] derives it.
    pub graph: Option<String>,
}

/// How columns are derived from the names of directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partitions {
    /// Each directory `key=value` above a shard is a column `key`, as in Hive, Spark and pyarrow.
    Hive,
}

/// Several datasets whose rows are mixed in proportion to weights.
#[derive(Debug, Clone, PartialEq)]
pub struct Mix {
    /// The datasets.
    pub parts: Vec<MixPart>,
    /// When a pass over the mix ends.
    pub stop: MixStop,
}

/// One dataset of a mix.
#[derive(Debug, Clone, PartialEq)]
pub struct MixPart {
    /// The dataset's share of the rows, relative to the weights of the other datasets. Must be above 0.
    pub weight: f64,
    /// The source of the dataset. Must not be a mix.
    pub source: Source,
}

/// When a pass over a mix ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MixStop {
    /// After the last row of all datasets. The mix continues without exhausted datasets.
    #[default]
    All,
    /// After the last row of the dataset that is exhausted first.
    First,
    /// After the last row of the dataset that is exhausted last. Shorter datasets restart until then.
    Restart,
}

/// Defines the source formats. Each entry has a description, a variant, and the value of `format` in pipeline files.
macro_rules! formats {
    ($($(#[doc = $doc:literal])+ $variant:ident => $name:ident,)+) => {
        /// The encoding of a dataset's objects.
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
    /// Tar files. Adjacent members with the same key (the name up to the first dot) form one row, with a column per
    /// extension.
    WebDataset => webdataset,
    /// Arbitrary files. Each file is one row with the columns `bytes` and `path`.
    Files => files,
    /// Apache Parquet.
    Parquet => parquet,
    /// Arrow IPC files.
    Arrow => arrow,
    /// JSON Lines: one JSON object per line.
    Jsonl => jsonl,
    /// Comma-separated values with a header line.
    Csv => csv,
    /// Text files. Each line is one row with the column `text`.
    Text => text,
    /// NumPy `.npy` files. Each index of the first axis is one row with the column `data`.
    Npy => npy,
    /// NumPy `.npz` files. Each array is one column, and each index of the first axis is one row.
    Npz => npz,
    /// Directories that MosaicML Streaming wrote, with an `index.json`. Each sample is one row.
    Mds => mds,
    /// Directories that LitData wrote, with an `index.json`. Each item is one row.
    LitData => litdata,
    /// ArrayRecord files. Each record is one row: the features of `tf.train.Example`, or the column `record`.
    ArrayRecord => arrayrecord,
    /// Records of Kafka topics. Each offset is one row, with columns for the payload, `key`, `headers`, `timestamp`,
    /// `partition` and `offset`.
    Kafka => kafka,
    /// Images in one directory per class, as `torchvision.datasets.ImageFolder` reads them. Each image is one row with the
    /// columns `bytes`, `path`, `label` and `class`.
    ImageFolder => imagefolder,
    /// A dataset of the Hugging Face library `datasets`: a repository on the Hub (`hf://datasets/ORG/NAME`) or in a
    /// directory, a directory of `save_to_disk`, or a directory of the datasets cache.
    HuggingFace => huggingface,
    /// The folder of a graph that `feedline graph build` wrote. Each row of a seed set is one row, with the columns `node`, or
    /// `source` and `target`, and `input_id`.
    Graph => graph,
}

impl Format {
    /// Whether whole files of the format may be compressed.
    pub fn has_compressed_files(self) -> bool {
        matches!(self, Self::TfRecord | Self::WebDataset | Self::Jsonl | Self::Csv | Self::Text)
    }
}

/// How rows are shuffled within an epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shuffle {
    /// The number of rows that are shuffled with each other; 0 keeps storage order.
    pub window: u64,
}

/// How batches are assigned to consumers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OrderMode {
    /// The rows of each stream are a pure function of the job's definition.
    #[default]
    Deterministic,
    /// A consumer receives rows in the order in which they are finished. Each row is still delivered exactly once.
    Relaxed,
}

/// What happens to a row that fails.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnError {
    /// The job fails. The message contains the row's shard and offset, and the cause.
    #[default]
    Fail,
    /// The job skips the row and reports the error.
    Skip,
    /// The job fills the failed columns of the row with zeros or empty values, and reports the error.
    Replace,
}

/// One operator of a pipeline.
#[derive(Debug, Clone, PartialEq)]
pub struct Operator {
    /// The kind of operator, with its parameters.
    pub kind: OperatorKind,
    /// Maximum number of concurrent executions on one worker; `None` lets the engine choose.
    pub parallelism: Option<u32>,
}

/// Height and width in pixels.
pub type Size = [u32; 2];
