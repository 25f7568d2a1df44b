//! Decoder errors and image size limits.

use crate::region::Region;

/// Maximum number of pixels of an image. Pillow raises `DecompressionBombError` at this size.
pub const MAX_PIXELS: u64 = 178_956_970;

/// Maximum memory for decoding one image, in bytes, including its pixels. Progressive and rotated images need more memory
/// than their pixels.
pub const MAX_DECODED_BYTES: u64 = 1 << 30;

/// The reason why a JPEG cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JpegError {
    /// The data is corrupted, or libjpeg-turbo does not support it.
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
