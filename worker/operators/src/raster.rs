//! Decodes PNG and WebP images to RGB8 pixels, and applies their orientation.

use std::io::Cursor;

use feedline_contained::contained;
use feedline_jpeg::{MAX_DECODED_BYTES, MAX_PIXELS};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::Image;
use crate::decode_memory::{self, DecodeReservation};
use crate::pixels::{Pixels, is_pixels};

/// The encoding of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Jpeg,
    Png,
    WebP,
    /// Decoded pixels from a cache.
    Pixels,
}

/// Detects the encoding of an image from its first bytes.
pub(crate) fn detect_encoding(bytes: &[u8]) -> Result<Encoding, String> {
    if bytes.starts_with(&[0xFF, 0xD8]) {
        return Ok(Encoding::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Encoding::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Encoding::WebP);
    }
    if is_pixels(bytes) {
        return Ok(Encoding::Pixels);
    }
    if bytes.is_empty() {
        return Err("the image is empty".to_owned());
    }
    let start = &bytes[..bytes.len().min(8)];
    Err(format!("not a JPEG, PNG or WebP image: the value starts with {:?}", String::from_utf8_lossy(start)))
}

/// Decodes a PNG or WebP image, or copies pixels. The caller must hold the reservation while it uses the image.
pub(crate) fn decode(bytes: &[u8], encoding: Encoding) -> Result<(Image, Option<DecodeReservation>), String> {
    // The png crate panics if a palette ends within a color.
    contained(|| decode_uncontained(bytes, encoding), "corrupted image: the decoder failed")
}

fn decode_uncontained(
    bytes: &[u8],
    encoding: Encoding,
) -> Result<(Image, Option<DecodeReservation>), String> {
    if encoding == Encoding::Pixels {
        let Pixels { width, height, data } = Pixels::parse(bytes)?;
        return Ok((Image { width, height, data: data.to_vec().into() }, None));
    }
    let (format, name) = match encoding {
        Encoding::Png => (ImageFormat::Png, "PNG"),
        _ => (ImageFormat::WebP, "WebP"),
    };
    let damaged = |error: image::ImageError| format!("corrupted {name}: {error}");
    let mut decoder = ImageReader::with_format(Cursor::new(bytes), format).into_decoder().map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(format!(
            "the image has {width} x {height} pixels, more than the limit of {MAX_PIXELS}: remove the image, or reduce its size"
        ));
    }
    // Ignore corrupted metadata, because it does not affect the pixels.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let bytes = working_bytes(&decoder, encoding, orientation);
    if bytes > MAX_DECODED_BYTES {
        return Err(format!(
            "decoding the image of {width} x {height} pixels needs {bytes} bytes, more than the limit of {MAX_DECODED_BYTES}: \
             remove the image, or reduce its size"
        ));
    }
    let reservation = decode_memory::reserve(bytes);
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(damaged)?;
    decoded.apply_orientation(orientation);
    let (width, height) = (decoded.width(), decoded.height());
    Ok((Image { width, height, data: to_rgb8(decoded).into() }, reservation))
}

/// Returns the memory in bytes that decoding needs: for the samples, which may have 16 bits and alpha, a copy for WebP's
/// internal buffer, a copy for a rotation, and the RGB8 pixels, unless the samples are already RGB8.
fn working_bytes(decoder: &impl ImageDecoder, encoding: Encoding, orientation: Orientation) -> u64 {
    let (width, height) = decoder.dimensions();
    let copies =
        1 + u64::from(encoding == Encoding::WebP) + u64::from(orientation != Orientation::NoTransforms);
    let converted = if decoder.color_type() == ColorType::Rgb8 { 0 } else { 3 };
    decoder.total_bytes().saturating_mul(copies) + u64::from(width) * u64::from(height) * converted
}

/// Converts an image to RGB8. Drops alpha, and drops the lower byte of 16-bit samples, as Pillow and libpng's `png_set_strip_16` do.
fn to_rgb8(decoded: DynamicImage) -> Vec<u8> {
    let high = |sample: u16| (sample >> 8) as u8;
    match decoded {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageLuma16(image) => image.as_raw().iter().flat_map(|&grey| [high(grey); 3]).collect(),
        DynamicImage::ImageLumaA16(image) => {
            image.as_raw().chunks_exact(2).flat_map(|pixel| [high(pixel[0]); 3]).collect()
        }
        DynamicImage::ImageRgb16(image) => image.as_raw().iter().map(|&sample| high(sample)).collect(),
        DynamicImage::ImageRgba16(image) => image
            .as_raw()
            .chunks_exact(4)
            .flat_map(|pixel| [high(pixel[0]), high(pixel[1]), high(pixel[2])])
            .collect(),
        other => other.into_rgb8().into_raw(),
    }
}

#[cfg(test)]
mod tests;
