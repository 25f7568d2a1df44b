//! A safe face for the parts of libjpeg-turbo that decode only what a crop needs.
//!
//! Owns every call into C and all of the project's unsafe code. Does not resize, does not know Arrow, pipelines or
//! other image formats. Pixels come out as RGB8, rows of `width * 3` bytes, in the orientation the EXIF tag asks for.

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

/// The most pixels an image may have: the size at which Pillow raises `DecompressionBombError`.
pub const MAX_PIXELS: u64 = 178_956_970;

/// The most memory that decoding one image may take, in bytes, its pixels among them: a progressive image, or one that is
/// turned, takes more than its pixels.
pub const MAX_DECODED_BYTES: u64 = 1 << 30;

/// What a JPEG's header says.
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
    /// How the stored image must be turned to be upright.
    pub orientation: Orientation,
    /// Colour space of the stored data.
    pub colorspace: Colorspace,
    /// Whether the image comes in several scans.
    pub is_progressive: bool,
    /// Whether the image is lossless JPEG; such an image is always decoded as a whole.
    pub is_lossless: bool,
    /// Width in pixels of the smallest column that can be skipped; `None` where nothing can be skipped.
    pub column_width: Option<u32>,
}

/// Colour space of a JPEG's stored data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colorspace {
    /// Red, green, blue.
    Rgb,
    /// Luminance and two colour differences: nearly every photograph.
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

/// Where the wanted region lies in the pixels that were decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodedRegion {
    /// Columns decoded; at least the region's.
    pub width: u32,
    /// Rows decoded; at least the region's.
    pub height: u32,
    /// Column of the decoded pixels at which the region starts.
    pub x_offset: u32,
    /// Row of the decoded pixels at which the region starts.
    pub y_offset: u32,
}

impl DecodedRegion {
    /// Bytes that the decoded pixels take.
    pub fn bytes(&self) -> usize {
        self.width as usize * self.height as usize * 3
    }
}

/// Why a JPEG could not be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JpegError {
    /// The data is damaged or of a kind that libjpeg-turbo does not read; its own message.
    #[error("{message}")]
    Corrupt {
        /// libjpeg-turbo's message.
        message: String,
    },
    /// The image is larger than [`MAX_PIXELS`].
    #[error(
        "the image has {width} x {height} pixels, more than the {MAX_PIXELS} a decoder may be asked for: \
         leave it out or make it smaller"
    )]
    TooLarge {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
    },
    /// Decoding the image takes more than [`MAX_DECODED_BYTES`].
    #[error(
        "decoding the image of {width} x {height} pixels takes {bytes} bytes, more than the {MAX_DECODED_BYTES} a decoder \
         may be asked for: leave it out or make it smaller"
    )]
    TooHeavy {
        /// Width in the header.
        width: u32,
        /// Height in the header.
        height: u32,
        /// What it would take.
        bytes: u64,
    },
    /// The region is empty or reaches beyond the image.
    #[error("the region {region:?} does not lie in an image of {width} x {height} pixels")]
    Region {
        /// The region asked for.
        region: Region,
        /// Width of the upright image.
        width: u32,
        /// Height of the upright image.
        height: u32,
    },
    /// libjpeg-turbo could not be set up.
    #[error("libjpeg-turbo could not be set up: {message}")]
    Setup {
        /// libjpeg-turbo's message.
        message: String,
    },
}

#[cfg(test)]
mod tests;
