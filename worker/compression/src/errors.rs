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

    /// The error for an access point that a decoder did not create.
    pub(crate) fn index(offset: u64) -> Self {
        Self::new(offset, "the index of the file is corrupted: run `feedline index --rebuild`")
    }
}
