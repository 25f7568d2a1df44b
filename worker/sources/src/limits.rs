//! How much a shard may ask for before any row of it is counted against a worker's memory: heads, footers, samples and schemas.
//! Each limit is beyond what data sets have, and within what a small worker can bear.

use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::{MAX_COLUMN_NAME_BYTES, MAX_NESTING};
use feedline_data::schema::MAX_COLUMNS;
use feedline_data::schema::{ColumnType, Field};

use crate::error::SourceError;

/// Longest header line of a CSV file in bytes.
pub(crate) const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Deepest that the values of a JSON line nest: the error about a value that does not fit is built recursively.
pub(crate) const MAX_JSON_DEPTH: usize = 128;
/// Most columns of a CSV file, of which a pipeline may choose some.
pub(crate) const MAX_HEADER_COLUMNS: usize = 131_072;
/// Largest row that is looked into to find the columns, in bytes.
pub(crate) const MAX_SAMPLED_ROW_BYTES: u64 = 256 << 20;
/// Largest footer of a Parquet or Arrow file in bytes.
pub(crate) const MAX_FOOTER_BYTES: u64 = 64 << 20;
/// Dictionaries of an Arrow file, all together, in bytes.
pub(crate) const MAX_DICTIONARY_BYTES: u64 = 256 << 20;
/// Heads of an Arrow file's record batches, all together, in bytes.
pub(crate) const MAX_HEADS_BYTES: u64 = 256 << 20;
/// Most blocks of a shard.
pub(crate) const MAX_BLOCKS: usize = 1 << 22;
/// Most members of a tar file that are one row.
pub(crate) const MAX_MEMBERS: usize = 4_096;
/// Longest name of a tar file's member in bytes, as systems have it.
pub(crate) const MAX_MEMBER_NAME_BYTES: usize = 4_096;
/// Most features of one `tf.train.Example`.
pub(crate) const MAX_FEATURES: usize = 65_536;

/// Refuses more columns than a dataset may have.
pub(crate) fn check_count(shard: &ShardRef, columns: usize) -> Result<(), SourceError> {
    if columns <= MAX_COLUMNS {
        return Ok(());
    }
    let reason = format!(
        "it has {columns} columns, more than {MAX_COLUMNS}: name the columns wanted under `source.features`"
    );
    Err(SourceError::unsupported(shard, reason))
}

/// Refuses a column whose name is too long, or whose lists nest too deep: what describes it could not be sent.
pub(crate) fn check_column(shard: &ShardRef, field: &Field) -> Result<(), SourceError> {
    let start: String = field.name.chars().take(24).collect();
    if field.name.len() > MAX_COLUMN_NAME_BYTES {
        let bytes = field.name.len();
        let reason = format!(
            "the name of a column, `{start}...`, has {bytes} bytes, more than {MAX_COLUMN_NAME_BYTES}: rename it"
        );
        return Err(SourceError::unsupported(shard, reason));
    }
    if nesting(&field.column_type) > MAX_NESTING {
        let reason = format!(
            "column `{start}` has lists nested deeper than {MAX_NESTING}: name the columns wanted under `source.features`"
        );
        return Err(SourceError::unsupported(shard, reason));
    }
    Ok(())
}

fn nesting(column_type: &ColumnType) -> usize {
    let mut depth = 0;
    let mut inner = column_type;
    while let ColumnType::List(item) = inner {
        depth += 1;
        inner = item;
    }
    depth
}

#[cfg(test)]
mod tests;
