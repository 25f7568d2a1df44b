//! A safe interface to libjpeg-turbo that decodes only the part of a JPEG that a crop needs.
//!
//! The crate contains all calls to libjpeg-turbo and their unsafe code. It does not resize images, and does not depend
//! on Arrow, pipelines or other image formats. Decoded pixels are RGB8 in rows of `width * 3` bytes, in the orientation
//! of the EXIF tag.

mod bits;
mod buffers;
mod cmyk;
mod decoder;
mod entropy;
mod error;
mod exif;
mod handle;
mod header;
mod huffman;
mod index;
mod mirror;
mod orient;
mod partial;
mod region;
mod scan;
mod segments;
mod structure;

pub use decoder::{Decoder, ParsedJpeg};
pub use error::{JpegError, MAX_DECODED_BYTES, MAX_PIXELS};
pub use header::{Colorspace, JpegHeader};
pub use mirror::mirror_rgb;
pub use orient::Orientation;
pub use region::{DecodedRegion, Region};

#[cfg(test)]
mod tests;
