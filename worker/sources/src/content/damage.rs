//! Describes damaged compressed data.

use feedline_compression::DecodeError;

/// Describes an error in compressed data. Offsets in messages are those in the content, so the offset in the file is added.
pub(super) fn describe(error: &DecodeError) -> String {
    format!("at byte {} of the compressed file, {}", error.offset, error.reason)
}
