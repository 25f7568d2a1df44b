//! Errors that several decoders report.

use crate::decoder::DecodeError;

impl DecodeError {
    pub(crate) fn new(offset: u64, reason: impl Into<String>) -> Self {
        Self { offset, reason: reason.into() }
    }

    /// The error for a file that ends within a frame, block or stream.
    pub(crate) fn truncated(offset: u64) -> Self {
        Self::new(offset, "the compressed data is truncated: copy or compress the file again")
    }

    /// The error for data that is not a part of a file of a codec, where another part could begin.
    pub(crate) fn not_a(part: &str, codec: &str, offset: u64) -> Self {
        let reason = match offset {
            0 => format!("the file has no {part}: correct `source.compression`"),
            _ => format!(
                "the data after the last {part} is not {} {part}: remove it",
                if codec == "xz" { "an" } else { "a" }
            ),
        };
        Self::new(offset, reason)
    }

    /// The error for an access point that a decoder did not create.
    pub(crate) fn index(offset: u64) -> Self {
        Self::new(offset, "the index of the file is corrupted: run `feedline index --rebuild`")
    }
}
