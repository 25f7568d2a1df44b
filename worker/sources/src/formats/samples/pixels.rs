//! Raw images of Pillow, converted to PNG files with the same pixels. The PNG files are not compressed.

use super::u32_at;

/// Maximum size of a deflate block that is not compressed.
const MAX_STORED_BYTES: usize = 0xffff;

/// The pixel format of a PNG file.
struct PixelFormat {
    color_type: u8,
    bit_depth: u8,
    bits_per_pixel: u64,
    /// Whether Pillow stores the two bytes of a sample in little-endian order.
    is_swapped: bool,
}

/// Converts a raw image: width, height and size of the mode as little-endian `u32`, the mode, and the pixels.
pub(super) fn png_of_pil(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let wrong = || "the header of a raw image is truncated: the file is corrupted".to_owned();
    let (header, rest) = bytes.split_at_checked(12).ok_or_else(wrong)?;
    let (width, height) = (u32_at(header), u32_at(&header[4..]));
    let (mode, pixels) = rest.split_at_checked(u32_at(&header[8..]) as usize).ok_or_else(wrong)?;
    let mode = std::str::from_utf8(mode).unwrap_or("?");
    let format = pixel_format(mode).ok_or_else(|| {
        let mode: String = mode.chars().take(12).collect();
        format!("the mode `{mode}` of a raw image cannot be converted: write the images in the mode RGB")
    })?;
    let row_bytes = (u64::from(width) * format.bits_per_pixel).div_ceil(8);
    if width == 0 || height == 0 || row_bytes.checked_mul(u64::from(height)) != Some(pixels.len() as u64) {
        return Err(format!(
            "a raw image of {width} x {height} pixels has {} bytes: the file is corrupted",
            pixels.len()
        ));
    }
    Ok(write_png(width, height, &format, pixels, row_bytes as usize))
}

fn pixel_format(mode: &str) -> Option<PixelFormat> {
    let (color_type, bit_depth, channels, is_swapped) = match mode {
        "1" => (0, 1, 1, false),
        "L" => (0, 8, 1, false),
        "LA" => (4, 8, 2, false),
        "RGB" => (2, 8, 3, false),
        "RGBA" => (6, 8, 4, false),
        "I;16" | "I;16L" => (0, 16, 1, true),
        "I;16B" => (0, 16, 1, false),
        _ => return None,
    };
    Some(PixelFormat { color_type, bit_depth, bits_per_pixel: channels * u64::from(bit_depth), is_swapped })
}

fn write_png(width: u32, height: u32, format: &PixelFormat, pixels: &[u8], row_bytes: usize) -> Vec<u8> {
    // Each row begins with the number of its filter; 0 means none.
    let mut filtered = Vec::with_capacity(pixels.len() + height as usize);
    for row in pixels.chunks_exact(row_bytes) {
        filtered.push(0);
        if format.is_swapped {
            filtered.extend(row.chunks_exact(2).flat_map(|sample| [sample[1], sample[0]]));
        } else {
            filtered.extend_from_slice(row);
        }
    }
    let mut header = Vec::with_capacity(13);
    header.extend_from_slice(&width.to_be_bytes());
    header.extend_from_slice(&height.to_be_bytes());
    header.extend_from_slice(&[format.bit_depth, format.color_type, 0, 0, 0]);
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    push_chunk(&mut png, b"IHDR", &header);
    push_chunk(&mut png, b"IDAT", &stored_zlib(&filtered));
    push_chunk(&mut png, b"IEND", &[]);
    png
}

fn push_chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend_from_slice(&(data.len() as u32).to_be_bytes());
    let start = png.len();
    png.extend_from_slice(kind);
    png.extend_from_slice(data);
    let crc = crc32fast::hash(&png[start..]);
    png.extend_from_slice(&crc.to_be_bytes());
}

/// A zlib stream whose deflate blocks are not compressed.
fn stored_zlib(data: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len() + data.len() / MAX_STORED_BYTES * 5 + 16);
    out.extend_from_slice(&[0x78, 0x01]);
    let mut blocks = data.chunks(MAX_STORED_BYTES).peekable();
    while let Some(block) = blocks.next() {
        let length = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&(!length).to_le_bytes());
        out.extend_from_slice(block);
    }
    out.extend_from_slice(&adler32(data).to_be_bytes());
    out
}

fn adler32(data: &[u8]) -> u32 {
    const MODULUS: u32 = 65_521;
    let (mut a, mut b) = (1, 0);
    // 5552 is the largest number of bytes whose sums do not overflow.
    for part in data.chunks(5_552) {
        for &byte in part {
            a += u32::from(byte);
            b += a;
        }
        a %= MODULUS;
        b %= MODULUS;
    }
    b << 16 | a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pil(mode: &str, width: u32, height: u32, pixels: &[u8]) -> Vec<u8> {
        let header = [width, height, mode.len() as u32].map(u32::to_le_bytes).concat();
        [&header, mode.as_bytes(), pixels].concat()
    }

    #[test]
    fn sums_are_those_of_zlib() {
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(adler32(&[255; 100_000]), 0x149a_302c);
    }

    #[test]
    fn sizes_and_modes_are_checked() {
        assert!(png_of_pil(&pil("RGB", 2, 1, &[1; 6])).is_ok());
        assert!(png_of_pil(&pil("1", 9, 2, &[1; 4])).is_ok());
        assert!(png_of_pil(&pil("RGB", 2, 1, &[1; 5])).unwrap_err().contains("2 x 1 pixels has 5 bytes"));
        assert!(png_of_pil(&pil("CMYK", 1, 1, &[1; 4])).unwrap_err().contains("mode `CMYK`"));
        assert!(png_of_pil(&pil("RGB", u32::MAX, u32::MAX, &[])).is_err());
        let whole = pil("L", 3, 3, &[7; 9]);
        for length in 0..whole.len() {
            assert!(png_of_pil(&whole[..length]).is_err(), "{length}");
        }
    }
}
