//! The memory that the pages of a block need.

use parquet::basic::{Encoding, Type};
use parquet::file::metadata::ColumnChunkMetaData;

/// Size of the largest fixed-size part of a value in memory, which is a view.
const VIEW_BYTES: u64 = 16;
/// Maximum number of bytes by which pages may exceed estimated sizes, because writers count sizes differently.
const PAGE_SIZE_TOLERANCE_BYTES: u64 = 64 << 20;
/// Maximum size of pages without rows, which are between others.
const EMPTY_PAGES_BYTES: u64 = 64 << 10;

/// The sizes of the pages of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PageBytes {
    /// The bytes that are read.
    pub(super) stored: u64,
    /// The size after decompression.
    pub(super) decompressed: u64,
    /// The part of `decompressed` that is not compressed in the file, and needs no second buffer.
    pub(super) shared: u64,
    /// The size of the decoded rows, without values that remain in their pages.
    pub(super) decoded: u64,
    /// The part of `stored` that is cached dictionaries, which are read only once.
    pub(super) dictionaries: u64,
    /// Whether a size is that of a whole column chunk in the footer, or was estimated with it.
    pub(super) is_estimated: bool,
}

impl PageBytes {
    /// The limit of the size of the pages after decompression.
    pub(super) fn limit(self) -> u64 {
        match self.is_estimated {
            true => self.decompressed.saturating_mul(2).saturating_add(PAGE_SIZE_TOLERANCE_BYTES),
            false => self.decompressed.saturating_add(EMPTY_PAGES_BYTES),
        }
    }

    /// The bytes that are read for this block alone.
    pub(super) fn unshared(self) -> u64 {
        self.stored.saturating_sub(self.dictionaries)
    }

    /// The memory for the pages in both forms, and for the decoded rows. Cached dictionaries are counted by their cache.
    pub(super) fn memory(self) -> u64 {
        let decompressed = self.decompressed.saturating_sub(self.shared);
        self.unshared().saturating_add(decompressed).saturating_add(self.decoded)
    }
}

/// Whether the values of a column chunk are decoded as views of their pages. Values that share the beginning of the value before them
/// are copied.
pub(super) fn has_views(chunk: &ColumnChunkMetaData) -> bool {
    let descriptor = chunk.column_descr();
    let has_prefixes = chunk.encodings().any(|encoding| encoding == Encoding::DELTA_BYTE_ARRAY);
    descriptor.physical_type() == Type::BYTE_ARRAY && descriptor.max_rep_level() == 0 && !has_prefixes
}

/// Returns the size of the decoded values of a column chunk in bytes, without texts and bytes that remain in their pages.
pub(super) fn fixed_bytes(chunk: &ColumnChunkMetaData) -> u64 {
    let descriptor = chunk.column_descr();
    let value_bytes = match descriptor.physical_type() {
        Type::BOOLEAN => 1,
        Type::INT32 | Type::FLOAT => 4,
        Type::INT64 | Type::DOUBLE => 8,
        Type::FIXED_LEN_BYTE_ARRAY => u64::try_from(descriptor.type_length()).unwrap_or(0).max(VIEW_BYTES),
        Type::INT96 | Type::BYTE_ARRAY => VIEW_BYTES,
    };
    let fixed = u64::try_from(chunk.num_values()).unwrap_or(0).saturating_mul(value_bytes);
    // The texts of lists are copied, also those that a dictionary contains only once. Some writers do not state this size.
    let copied = chunk.unencoded_byte_array_data_bytes().filter(|_| !has_views(chunk)).unwrap_or(0);
    fixed.saturating_add(u64::try_from(copied).unwrap_or(0))
}
