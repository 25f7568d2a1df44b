//! The header of a JPEG.

use crate::orient::Orientation;

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
    /// Whether a missing end marker loses nothing, because decoding reports all missing data: the image has one scan with Huffman
    /// codes.
    pub may_lack_end: bool,
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
