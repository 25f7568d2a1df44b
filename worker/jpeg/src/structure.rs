//! Checks the structure of entropy-coded data that a crop does not decode, at a small part of the cost of decoding.
//!
//! A crop must not accept an image that other crops reject. Data that was cut, overwritten or joined usually has no end, another
//! end, wrong markers, or a hole. If the structure is as expected, the data is not decoded. Otherwise the caller
//! decodes all of it, because only the number of decoded MCUs shows whether data is missing.

/// Length of the parts that are searched for markers at once.
const PART_BYTES: usize = 32;
/// Distance of the words that are compared with holes.
const HOLE_STEP_BYTES: usize = 64;

/// The restart markers that the data must contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RestartMarkers {
    /// The number of markers before the data.
    pub(crate) first: u64,
    /// The number of all markers of the scan.
    pub(crate) count: u64,
}

/// Whether the data consists of entropy-coded bytes with these restart markers, and ends with the end of the image.
pub(crate) fn has_expected_markers(data: &[u8], restarts: RestartMarkers) -> bool {
    let mut number = restarts.first;
    let mut at = 0;
    while let Some((marker, next)) = next_marker(data, at) {
        match marker {
            0xD0..=0xD7 if number < restarts.count && u64::from(marker - 0xD0) == number % 8 => number += 1,
            0xD9 => return number == restarts.count && next == data.len(),
            _ => return false,
        }
        at = next;
    }
    false
}

/// Whether many consecutive bytes are 0x00 or 0xFF. Valid data of uniform areas may have such bytes too.
pub(crate) fn has_hole(data: &[u8]) -> bool {
    let mut words = data.chunks_exact(HOLE_STEP_BYTES).filter_map(|part| part.first_chunk());
    words.any(|word| matches!(u64::from_ne_bytes(*word), 0 | u64::MAX))
}

/// Returns the next marker and the position after it. `None` at the end of the data.
fn next_marker(data: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        let part = &data[at..data.len().min(at + PART_BYTES)];
        if part.is_empty() {
            return None;
        }
        let mut has_ff = false;
        for byte in part {
            has_ff |= *byte == 0xFF;
        }
        if has_ff {
            for (offset, _) in part.iter().enumerate().filter(|(_, byte)| **byte == 0xFF) {
                match data.get(at + offset + 1)? {
                    // A zero byte follows a byte 0xFF of data. Several bytes 0xFF may precede a marker.
                    0 | 0xFF => {}
                    marker => return Some((*marker, at + offset + 2)),
                }
            }
        }
        at += part.len();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(data: &[u8], first: u64, count: u64) -> bool {
        has_expected_markers(data, RestartMarkers { first, count })
    }

    #[test]
    fn complete_data_ends_with_the_end_of_the_image() {
        for length in 0..200 {
            let data: Vec<u8> = (0..length).flat_map(|at| [at as u8 % 255 + 1, 0]).collect();
            let whole = [data.as_slice(), &[0xFF, 0, 0xFF, 0xFF, 0xD9]].concat();
            assert!(check(&whole, 0, 0), "{length}");
            assert!(!check(&[&whole[..], &[0]].concat(), 0, 0), "bytes follow");
            (0..whole.len()).for_each(|end| assert!(!check(&whole[..end], 0, 0), "{length} cut at {end}"));
            assert!(!check(&[&data[..], &[0xFF, 0xDA, 0xFF, 0xD9]].concat(), 0, 0), "another marker");
            assert!(!check(&[&data[..], &[0xFF, 0xD0, 0xFF, 0xD9]].concat(), 0, 0), "an unexpected restart");
        }
    }

    #[test]
    fn restart_markers_are_counted_and_numbered() {
        let data = |markers: &[u8]| {
            let parts = markers.iter().flat_map(|marker| [1, 2, 3, 0xFF, *marker]);
            parts.chain([4, 0xFF, 0xD9]).collect::<Vec<u8>>()
        };
        let nine: Vec<u8> = (0..9).map(|number| 0xD0 + number % 8).collect();
        assert!(check(&data(&nine), 0, 9));
        assert!(check(&data(&nine[3..]), 3, 9));
        assert!(!check(&data(&nine), 0, 8) && !check(&data(&nine), 0, 10) && !check(&data(&nine[1..]), 0, 8));
    }

    #[test]
    fn holes_are_found_at_all_places() {
        for at in 0..200 {
            for fill in [0, 0xFF] {
                let data = [&vec![7; at][..], &[fill; 80], &[7; 100]].concat();
                assert!(has_hole(&data), "{fill} at {at}");
            }
        }
        assert!(!has_hole(&[&[7; 99][..], &[0; 7], &[7; 100]].concat()));
    }
}
