//! Decodes the formats that are not JPEG: PNG and WebP, to RGB8 and upright.

use std::io::Cursor;

use feedline_contained::contained;
use feedline_jpeg::{MAX_DECODED_BYTES, MAX_PIXELS};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader};

use crate::Image;
use crate::cache_encodings::{Pixels, are_pixels, pixels};
use crate::decode_memory::{self, DecodeReservation};

/// What a file's first bytes say it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encoding {
    Jpeg,
    Png,
    WebP,
    /// Pixels that were kept.
    Pixels,
}

/// The encoding of `bytes`, or why it is none that we read.
pub(crate) fn encoding_of(bytes: &[u8]) -> Result<Encoding, String> {
    if bytes.starts_with(&[0xFF, 0xD8]) {
        return Ok(Encoding::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Encoding::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Encoding::WebP);
    }
    if are_pixels(bytes) {
        return Ok(Encoding::Pixels);
    }
    if bytes.is_empty() {
        return Err("there are no bytes to decode".to_owned());
    }
    let start = &bytes[..bytes.len().min(8)];
    Err(format!("neither JPEG, PNG nor WebP: it starts with {:?}", String::from_utf8_lossy(start)))
}

/// Decodes a PNG or WebP, or copies pixels. The place is that of the image, for as long as it is worked on.
pub(crate) fn decode(bytes: &[u8], encoding: Encoding) -> Result<(Image, Option<DecodeReservation>), String> {
    // The png crate panics on palettes that end amid a colour.
    contained(|| decode_sound(bytes, encoding), "damaged image: its parts contradict each other")
}

fn decode_sound(bytes: &[u8], encoding: Encoding) -> Result<(Image, Option<DecodeReservation>), String> {
    if encoding == Encoding::Pixels {
        let Pixels { width, height, data } = pixels(bytes)?;
        return Ok((Image { width, height, data: data.to_vec().into() }, None));
    }
    let (format, name) = match encoding {
        Encoding::Png => (ImageFormat::Png, "PNG"),
        _ => (ImageFormat::WebP, "WebP"),
    };
    let why = |error: image::ImageError| format!("damaged {name}: {error}");
    let mut decoder = ImageReader::with_format(Cursor::new(bytes), format).into_decoder().map_err(why)?;
    let (width, height) = decoder.dimensions();
    if u64::from(width) * u64::from(height) > MAX_PIXELS {
        return Err(format!(
            "the image has {width} x {height} pixels, more than the {MAX_PIXELS} a decoder may be asked for: leave it \
             out or make it smaller"
        ));
    }
    // Damaged metadata does not damage the pixels.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let bytes = working_bytes(&decoder, encoding, orientation);
    if bytes > MAX_DECODED_BYTES {
        return Err(format!(
            "decoding the image of {width} x {height} pixels takes {bytes} bytes, more than the {MAX_DECODED_BYTES} a decoder \
             may be asked for: leave it out or make it smaller"
        ));
    }
    let place = decode_memory::take(bytes);
    let mut decoded = DynamicImage::from_decoder(decoder).map_err(why)?;
    decoded.apply_orientation(orientation);
    let (width, height) = (decoded.width(), decoded.height());
    Ok((Image { width, height, data: to_rgb8(decoded).into() }, place))
}

/// Bytes that decoding takes: its samples, which may have 16 bits and alpha; once more where the decoder has a buffer of its
/// own, and where the image is turned; and the pixels that come of them, unless those are the samples.
fn working_bytes(decoder: &impl ImageDecoder, encoding: Encoding, orientation: Orientation) -> u64 {
    let (width, height) = decoder.dimensions();
    let copies =
        1 + u64::from(encoding == Encoding::WebP) + u64::from(orientation != Orientation::NoTransforms);
    let converted = if decoder.color_type() == ColorType::Rgb8 { 0 } else { 3 };
    decoder.total_bytes().saturating_mul(copies) + u64::from(width) * u64::from(height) * converted
}

/// Drops alpha and, of 16-bit samples, the lower byte, as Pillow and libpng's `png_set_strip_16` do.
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
