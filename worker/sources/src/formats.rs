//! One module per format. Each has `index` (rows, blocks and columns of a shard) and `read` (rows of a block).

pub(crate) mod arrow_ipc;
pub(crate) mod bisect;
pub(crate) mod csv;
pub(crate) mod files;
pub(crate) mod jsonl;
pub(crate) mod lines;
pub(crate) mod parquet;
pub(crate) mod text;
pub(crate) mod tfrecord;
pub(crate) mod webdataset;
