//! Parses the segments of a JPEG that are needed before decoding: orientation, frame type, and entropy index.

use crate::index::EntropyIndex;
use crate::orient::Orientation;
use crate::segments::next_segment;

/// The contents of the markers before the image data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Markers<'a> {
    /// The orientation. Upright if the file has no orientation tag.
    pub(crate) orientation: Orientation,
    /// Whether the file has a frame header (SOFn). A file without one contains no image.
    pub(crate) has_frame: bool,
    /// Whether the frame is progressive, or its components are in several scans.
    pub(crate) is_progressive: bool,
    /// Whether the frame is sequential with Huffman codes and 8 or 12 bits. Other decoders invent missing data without a warning.
    pub(crate) is_sequential: bool,
    /// The entropy index, if the file contains one.
    pub(crate) index: Option<EntropyIndex<'a>>,
}

/// Parses the markers before the first scan. Stops at a corrupted segment, which libjpeg reports later.
pub(crate) fn read_markers(jpeg: &[u8]) -> Markers<'_> {
    let mut found = Markers::default();
    let (mut from_exif, mut from_xmp) = (None, None);
    let mut at = 2;
    let mut components = 0;
    while let Some((marker, body, next)) = next_segment(jpeg, at) {
        match marker {
            // The first byte is the number of components in the first scan.
            0xDA => {
                found.is_progressive |= body.first().is_some_and(|count| *count < components);
                break;
            }
            0xD9 => break,
            0xC0..=0xCF if !matches!(marker, 0xC4 | 0xC8 | 0xCC) => {
                found.has_frame = true;
                // The number of components follows precision, height and width.
                components = body.get(5).copied().unwrap_or(0);
                found.is_progressive = matches!(marker, 0xC2 | 0xC6 | 0xCA | 0xCE);
                found.is_sequential = matches!(marker, 0xC0 | 0xC1);
            }
            0xE1 => {
                if let Some(tiff) = body.strip_prefix(b"Exif\0\0") {
                    from_exif = from_exif.or_else(|| tiff_orientation(tiff));
                } else if let Some(xmp) = body.strip_prefix(b"http://ns.adobe.com/xap/1.0/\0") {
                    from_xmp = from_xmp.or_else(|| xmp_orientation(xmp));
                }
            }
            _ => found.index = found.index.or_else(|| EntropyIndex::from_segment(marker, body)),
        }
        at = next;
    }
    // Like Pillow, use the XMP block only if there is no EXIF tag, and ignore values outside 1 to 8.
    found.orientation = Orientation::from_tag(from_exif.or(from_xmp).unwrap_or(1)).unwrap_or_default();
    found
}

/// Returns the value of tag 0x0112 in the first directory of a TIFF block (TIFF 6.0, section 2).
fn tiff_orientation(tiff: &[u8]) -> Option<u32> {
    let little = match tiff.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let u16_at = |at: usize| -> Option<u32> {
        let bytes = [*tiff.get(at)?, *tiff.get(at.checked_add(1)?)?];
        Some(u32::from(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }))
    };
    let u32_at = |at: usize| -> Option<u32> {
        let (first, second) = (u16_at(at)?, u16_at(at.checked_add(2)?)?);
        Some(if little { second << 16 | first } else { first << 16 | second })
    };
    if u16_at(2)? != 42 {
        return None;
    }
    let directory = u32_at(4)? as usize;
    let entries = u16_at(directory)? as usize;
    for entry in 0..entries {
        let at = directory.checked_add(2 + entry * 12)?;
        if u16_at(at)? == 0x0112 {
            return match u16_at(at + 2)? {
                1 => tiff.get(at + 8).map(|&value| u32::from(value)),
                4 => u32_at(at + 8),
                _ => u16_at(at + 8),
            };
        }
    }
    None
}

/// Returns the value of `tiff:Orientation` in an XMP block, as an attribute or as an element.
fn xmp_orientation(xmp: &[u8]) -> Option<u32> {
    let name = b"tiff:Orientation";
    let mut from = 0;
    while let Some(position) = xmp[from..].windows(name.len()).position(|window| window == name) {
        let rest = &xmp[from + position + name.len()..];
        let value =
            rest.strip_prefix(b"=\"").or_else(|| rest.strip_prefix(b">")).and_then(|value| value.first());
        if let Some(digit) = value.filter(|digit| digit.is_ascii_digit()) {
            return Some(u32::from(digit - b'0'));
        }
        from += position + name.len();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(marker: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0xFF, marker];
        bytes.extend_from_slice(&(body.len() as u16 + 2).to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    #[test]
    fn reads_either_byte_order() {
        let little = b"Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let big = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0";
        for exif in [little.as_slice(), big.as_slice()] {
            let mut jpeg = vec![0xFF, 0xD8];
            jpeg.extend(segment(0xE1, exif));
            jpeg.extend(segment(0xC2, &[8]));
            let markers = read_markers(&jpeg);
            assert_eq!(markers.orientation.tag(), 6);
            assert!(markers.has_frame && markers.is_progressive);
        }
    }

    #[test]
    fn xmp_is_used_only_without_an_exif_tag() {
        let mut jpeg = vec![0xFF, 0xD8];
        jpeg.extend(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation=\"8\"/>"));
        assert_eq!(read_markers(&jpeg).orientation.tag(), 8);
        jpeg.extend(segment(0xE1, b"Exif\0\0II\x2a\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x03\0\0\0"));
        assert_eq!(read_markers(&jpeg).orientation.tag(), 3);
    }

    #[test]
    fn damaged_directories_are_treated_as_upright() {
        let exif = b"Exif\0\0II\x2a\0\xff\xff\xff\xff\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        let mut jpeg = vec![0xFF, 0xD8];
        jpeg.extend(segment(0xE1, exif));
        for length in 0..jpeg.len() {
            assert_eq!(read_markers(&jpeg[..length]).orientation.tag(), 1);
        }
    }
}
