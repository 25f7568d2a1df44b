//! Decodes compressed streams from their start and from access points.
//!
//! The crate does no input or output. The caller passes pieces of the compressed data to a [`StreamDecoder`], and receives
//! the content in its own buffer. A decoder reports every position from which another decoder could start, a
//! [`Boundary`]. The caller selects some of them, and stores them as access points in the index of the shard.

mod bzip2;
mod codec;
mod decoder;
mod error_guard;
mod errors;
mod gzip;
mod limits;
mod scan;
mod scanner;
#[cfg(test)]
mod tests;
mod xz;
mod zstd;

pub use codec::{
    DETECTION_BYTES, detect, detect_unsupported, is_truncated_magic, may_be_zlib, resume, start,
    store_content, stored_content,
};
pub use decoder::{Boundary, DecodeError, Event, Step, StreamDecoder};
pub use scan::scanner;
pub use scanner::{ScanEvent, ScanStep, ScannedStart, Scanner};
