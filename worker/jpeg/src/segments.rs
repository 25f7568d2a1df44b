//! Iteration over the segments of a JPEG.

/// Returns the marker at or after `at`, its body, and the offset of the next marker.
pub(crate) fn next_segment(jpeg: &[u8], mut at: usize) -> Option<(u8, &[u8], usize)> {
    while *jpeg.get(at)? != 0xFF {
        at += 1;
    }
    while *jpeg.get(at)? == 0xFF {
        at += 1;
    }
    let marker = *jpeg.get(at)?;
    at += 1;
    if matches!(marker, 0x00 | 0x01 | 0xD0..=0xD9) {
        return Some((marker, &[], at));
    }
    let length = usize::from(u16::from_be_bytes([*jpeg.get(at)?, *jpeg.get(at + 1)?]));
    if length < 2 {
        return None;
    }
    Some((marker, jpeg.get(at + 2..at + length)?, at + length))
}
