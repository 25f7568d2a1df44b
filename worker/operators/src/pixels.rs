//! Decoded pixels as the value of a column of encoded images. A cache stores them, and the image operators read them like a
//! JPEG.

use feedline_jpeg::MAX_PIXELS;

/// The first bytes of decoded pixels. They differ from those of JPEG, PNG and WebP.
const MAGIC: [u8; 8] = *b"\x89FLPIX\r\n";
/// The size of the header: the magic, the width and the height.
const HEADER_BYTES: usize = 16;

/// Decoded pixels: RGB8, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pixels<'a> {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) data: &'a [u8],
}

/// Whether the bytes start with the magic of decoded pixels.
pub(crate) fn is_pixels(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl<'a> Pixels<'a> {
    /// Parses the bytes that [`Self::to_bytes`] returns.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let header = bytes.first_chunk::<HEADER_BYTES>().ok_or("damaged pixels: the header is incomplete")?;
        let [.., w0, w1, w2, w3, h0, h1, h2, h3] = *header;
        let (width, height) = (u32::from_le_bytes([w0, w1, w2, w3]), u32::from_le_bytes([h0, h1, h2, h3]));
        let data = &bytes[HEADER_BYTES..];
        let count = u64::from(width) * u64::from(height);
        if count == 0 || count > MAX_PIXELS || data.len() as u64 != 3 * count {
            return Err(format!("damaged pixels: {} bytes for {width} x {height} pixels", data.len()));
        }
        Ok(Self { width, height, data })
    }

    /// The header and the pixels.
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.data.len());
        bytes.extend(MAGIC);
        bytes.extend(self.width.to_le_bytes());
        bytes.extend(self.height.to_le_bytes());
        bytes.extend_from_slice(self.data);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_pixels_are_rejected() {
        let mut header = MAGIC.to_vec();
        assert!(Pixels::parse(&header).is_err());
        header.extend(u32::MAX.to_le_bytes());
        header.extend(u32::MAX.to_le_bytes());
        assert!(Pixels::parse(&header).is_err());
        let sizes = [2u32.to_le_bytes(), 1u32.to_le_bytes()].concat();
        let with = |data: &[u8]| [&MAGIC, sizes.as_slice(), data].concat();
        assert!(Pixels::parse(&with(&[0; 5])).is_err() && Pixels::parse(&with(&[0; 7])).is_err());
        let bytes = with(&[7; 6]);
        let pixels = Pixels::parse(&bytes).unwrap();
        assert_eq!(pixels, Pixels { width: 2, height: 1, data: &[7; 6] });
        assert_eq!(pixels.to_bytes(), bytes);
    }
}
