//! Limits of shard metadata, such as headers, footers, samples and schemas, which do not count towards the memory budget. The
//! limits are higher than typical datasets need, and low enough for the memory of a small worker.

use feedline_data::manifest::ShardRef;
use feedline_data::pipeline::{MAX_COLUMN_NAME_BYTES, MAX_NESTING};
use feedline_data::schema::{ColumnType, Field, MAX_COLUMNS};

use crate::error::SourceError;

/// Maximum length of the header line of a CSV file in bytes.
pub(crate) const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Maximum nesting depth of a JSON line, because the decoder builds some error messages recursively.
pub(crate) const MAX_JSON_DEPTH: usize = 128;
/// Maximum number of columns in a CSV file. A pipeline may read a subset of the columns.
pub(crate) const MAX_CSV_COLUMNS: usize = 131_072;
/// Maximum size in bytes of a row that is sampled to infer the columns.
pub(crate) const MAX_SAMPLED_ROW_BYTES: u64 = 256 << 20;
/// Maximum size of the footer of a Parquet or Arrow file in bytes.
pub(crate) const MAX_FOOTER_BYTES: u64 = 64 << 20;
/// Maximum total size of the dictionaries of an Arrow file in bytes.
pub(crate) const MAX_DICTIONARY_BYTES: u64 = 256 << 20;
/// Maximum total size of the record batch headers of an Arrow file in bytes.
pub(crate) const MAX_BATCH_HEADERS_BYTES: u64 = 256 << 20;
/// Maximum number of items in a record batch that take no bytes in the file, such as nulls without a type. Each of them
/// needs up to 16 bytes of memory.
pub(crate) const MAX_VIRTUAL_ITEMS: u64 = 1 << 24;
/// Maximum number of blocks per shard.
pub(crate) const MAX_BLOCKS: usize = 1 << 22;
/// Maximum number of tar members per sample.
pub(crate) const MAX_SAMPLE_MEMBERS: usize = 4_096;
/// Maximum number of keys of a tar file that occur several times. The first sample with each of them needs about 100 bytes.
pub(crate) const MAX_REPEATED_KEYS: usize = 1 << 20;
/// Maximum length of a tar member's name in bytes. Linux has the same limit for paths.
pub(crate) const MAX_MEMBER_NAME_BYTES: usize = 4_096;
/// Maximum number of features of one `tf.train.Example`.
pub(crate) const MAX_FEATURES: usize = 65_536;

/// Checks the number of columns.
pub(crate) fn check_column_count(shard: &ShardRef, columns: usize) -> Result<(), SourceError> {
    if columns <= MAX_COLUMNS {
        return Ok(());
    }
    let reason = format!(
        "{columns} columns exceed the limit of {MAX_COLUMNS}: list the columns that you need under `source.features`"
    );
    Err(SourceError::unsupported(shard, reason))
}

/// Checks the length of the column name and the nesting depth of the column type.
pub(crate) fn check_column(shard: &ShardRef, field: &Field) -> Result<(), SourceError> {
    let start: String = field.name.chars().take(24).collect();
    if field.name.len() > MAX_COLUMN_NAME_BYTES {
        let bytes = field.name.len();
        let reason = format!(
            "the column name `{start}...` is {bytes} bytes long; the limit is {MAX_COLUMN_NAME_BYTES} bytes: rename the column"
        );
        return Err(SourceError::unsupported(shard, reason));
    }
    if nesting_depth(&field.column_type) > MAX_NESTING {
        let reason = format!(
            "the lists of column `{start}` are nested more than {MAX_NESTING} deep: list the columns that you need under \
             `source.features`"
        );
        return Err(SourceError::unsupported(shard, reason));
    }
    Ok(())
}

fn nesting_depth(column_type: &ColumnType) -> usize {
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
