//! The encoding of decoded pixels in a column of encoded images. Caches store pixels, and the image operators read them like JPEGs.

use feedline_jpeg::MAX_PIXELS;

/// The first bytes of decoded pixels, which differ from the first bytes of JPEG, PNG and WebP.
const MAGIC: [u8; 8] = *b"\x89FLPIX\r\n";
/// Size of the header: magic bytes (8 bytes), width (4) and height (4).
const HEADER_BYTES: usize = 16;

/// Decoded RGB8 pixels, row by row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pixels<'a> {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) data: &'a [u8],
}

/// Whether a value contains decoded pixels.
pub(crate) fn is_pixels(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC)
}

impl<'a> Pixels<'a> {
    /// Parses the bytes that [`Self::to_bytes`] returns.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, String> {
        let header =
            bytes.first_chunk::<HEADER_BYTES>().ok_or("corrupted pixels: the header is incomplete")?;
        let [.., w0, w1, w2, w3, h0, h1, h2, h3] = *header;
        let (width, height) = (u32::from_le_bytes([w0, w1, w2, w3]), u32::from_le_bytes([h0, h1, h2, h3]));
        let data = &bytes[HEADER_BYTES..];
        let count = u64::from(width) * u64::from(height);
        if count == 0 || count > MAX_PIXELS || data.len() as u64 != 3 * count {
            return Err(format!(
                "corrupted pixels: the header specifies {width} x {height} pixels, but {} bytes follow",
                data.len()
            ));
        }
        Ok(Self { width, height, data })
    }

    /// Encodes the header and the pixels.
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
