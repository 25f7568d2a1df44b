//! What determines the codec of a shard, except for its bytes.

use feedline_data::compression::SourceCompression;
use feedline_data::pipeline::{Format, Source};

/// What determines the codec of a shard, except for its bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FileCompression {
    /// The compression that the source declares.
    pub(crate) declared: Option<SourceCompression>,
    /// Whether the content consists of TFRecords, which TensorFlow also compresses with zlib.
    pub(crate) has_records: bool,
}

impl FileCompression {
    pub(crate) fn of(source: &Source) -> Self {
        Self { declared: source.compression, has_records: source.format == Format::TfRecord }
    }
}
