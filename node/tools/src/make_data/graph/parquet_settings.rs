//! The settings of Parquet files.

use parquet::file::properties::WriterProperties;

/// Returns settings without compression, because random numbers cannot be compressed.
pub(super) fn plain_properties() -> WriterProperties {
    WriterProperties::builder().set_dictionary_enabled(false).build()
}
