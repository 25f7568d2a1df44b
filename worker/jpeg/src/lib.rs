//! A safe interface to libjpeg-turbo that decodes only the part of a JPEG that a crop needs.
//!
//! Owns all calls to libjpeg-turbo and their unsafe code. Does not resize, and does not depend on Arrow, pipelines or other
//! image formats. Decoded pixels are RGB8 in rows of `width * 3` bytes, in the orientation of the EXIF tag.

mod bits;
mod cmyk;
mod decoder;
mod entropy;
mod exif;
mod handle;
mod huffman;
mod index;
mod mirror;
mod orient;
mod partial;

pub use decoder::{Decoder, ParsedJpeg};
pub use mirror::mirror_rgb;
pub use orient::Orientation;

/// Maximum number of pixels of an image. Pillow raises `DecompressionBombError` at this size.
pub const MAX_PIXELS: u64 = 178_956_970;

/// Maximum memory for decoding one image, in bytes, including its pixels. Progressive and rotated images need more memory
/// than their pixels.
pub const MAX_DECODED_BYTES: u64 = 1 << 30;

/// The header of a JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JpegHeader {
    /// Width in pixels after the orientation is applied.
    pub width: u32,
    /// Height in pixels after the orientation is applied.
    pub height: u32,
    /// Width in pixels as stored.
    pub stored_width: u32,
    /// Height in pixels as stored.
    pub stored_height: u32,
    /// The rotation and reflection that make the stored image upright.
    pub orientation: Orientation,
    /// Colour space of the stored data.
    pub colorspace: Colorspace,
    /// Whether the image has several scans.
    pub is_progressive: bool,
    /// Whether the image is lossless JPEG, which is always decoded completely.
    pub is_lossless: bool,
    /// Width in pixels of the smallest column that can be skipped, or `None` if no column can be skipped.
    pub column_width: Option<u32>,
}

/// Colour space of a JPEG's stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colorspace {
    /// Red, green, blue.
    Rgb,
    /// Luminance and two colour differences; used by nearly all photographs.
    YCbCr,
    /// Luminance only.
    Grey,
    /// Cyan, magenta, yellow, black.
    Cmyk,
    /// CMYK with its first three components stored as YCbCr.
    Ycck,
}

/// A rectangle in pixels of the upright image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    /// First column.
    pub x: u32,
    /// First row.
    pub y: u32,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// The location of the requested region within the decoded pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedRegion {
    /// Decoded columns, at least those of the region.
    pub width: u32,
    /// Decoded rows, at least those of the region.
    pub height: u32,
    /// Column of the decoded pixels at which the region starts.
    pub x_offset: u32,
    /// Row of the decoded pixels at which the region starts.
    pub y_offset: u32,
}

impl DecodedRegion {
    /// Size of the decoded pixels in bytes.
    pub fn bytes(&self) -> usize {
        self.width as usize * self.height as usize * 3
    }
}

/// The reason for which a JPEG cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JpegError {
    /// The data is damaged, or libjpeg-turbo does not support it.
    #[error("{message}")]
    Corrupt {
        /// libjpeg-turbo's message.
        message: String,
    },
    /// The image is larger than [`MAX_PIXELS`].
    #[error(
        "the image has {width} x {height} pixels, more than the maximum of {MAX_PIXELS}: skip the image or make it \
         smaller"
    )]
    TooLarge {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
    },
    /// Decoding the image needs more than [`MAX_DECODED_BYTES`].
    #[error(
        "decoding the image of {width} x {height} pixels needs {bytes} bytes, more than the maximum of \
         {MAX_DECODED_BYTES}: skip the image or make it smaller"
    )]
    TooMuchMemory {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// Required memory in bytes.
        bytes: u64,
    },
    /// The region is empty or exceeds the image.
    #[error(
        "invalid region {region:?}: it must be within the image of {width} x {height} pixels and must not be empty"
    )]
    Region {
        /// The requested region.
        region: Region,
        /// Width of the upright image.
        width: u32,
        /// Height of the upright image.
        height: u32,
    },
    /// libjpeg-turbo cannot be initialized.
    #[error("cannot initialize libjpeg-turbo: {message}")]
    Setup {
        /// libjpeg-turbo's message.
        message: String,
    },
}

#[cfg(test)]
mod tests;
