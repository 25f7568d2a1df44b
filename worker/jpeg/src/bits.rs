//! A bit reader for entropy-coded JPEG data: most significant bit first, without the zero byte after each 0xFF.

/// A position in the data: the byte with the next bit, and the number of its bits that were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitPosition {
    pub(crate) byte: usize,
    pub(crate) bit: u32,
}

/// Minimum number of buffered bits after [`BitReader::fill`].
pub(crate) const FILLED_BITS: u32 = 56;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BitReader<'a> {
    data: &'a [u8],
    /// The next byte to buffer.
    next: usize,
    /// Buffered bits, from the most significant bit. The first `count` bits are followed by zeros, or by bits of the
    /// byte at `next`.
    bits: u64,
    count: u32,
    /// Number of zero bits at the end of the buffer, which replace data after its end or after a marker.
    padding_bits: u32,
}

impl<'a> BitReader<'a> {
    /// Creates a reader that starts at byte `start`.
    pub(crate) fn new(data: &'a [u8], start: usize) -> Self {
        Self { data, next: start, bits: 0, count: 0, padding_bits: 0 }
    }

    /// Buffers at least [`FILLED_BITS`] bits, with zeros after the end of the data.
    #[inline(always)]
    pub(crate) fn fill(&mut self) {
        if let Some(bytes) = self.data.get(self.next..self.next + 8) {
            let word = bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if !contains_ff(word) {
                // Counts only whole bytes. Bits of the next byte are buffered too, and again by the next fill.
                self.bits |= word >> (self.count & 63);
                self.next += (!self.count >> 3 & 7) as usize;
                self.count |= FILLED_BITS;
                return;
            }
        }
        // Pass the reader by value, so that the caller's reader stays in registers.
        *self = self.filled_bytewise();
    }

    #[cold]
    #[inline(never)]
    fn filled_bytewise(mut self) -> Self {
        while self.count < FILLED_BITS {
            let byte = match (self.data.get(self.next), self.data.get(self.next + 1)) {
                (Some(0xFF), Some(0)) => {
                    self.next += 2;
                    0xFF
                }
                (Some(&byte), _) if byte != 0xFF => {
                    self.next += 1;
                    byte
                }
                _ => {
                    self.padding_bits += 8;
                    0
                }
            };
            // Bits after `count` may belong to a marker, or to the byte that is added now.
            self.bits &= !(u64::MAX >> self.count);
            self.bits |= u64::from(byte) << (FILLED_BITS - self.count);
            self.count += 8;
        }
        self
    }

    /// Returns the next `count` bits (1 to 32) as a number without consuming them. Requires a preceding [`Self::fill`].
    #[inline(always)]
    pub(crate) fn peek(&self, count: u32) -> u32 {
        (self.bits >> (64 - count)) as u32
    }

    #[inline(always)]
    pub(crate) fn skip(&mut self, count: u32) {
        self.bits <<= count;
        debug_assert!(count <= self.count, "fill buffers enough bits");
        self.count -= count;
    }

    /// Consumes and returns `count` bits (0 to 16).
    #[inline(always)]
    pub(crate) fn read_bits(&mut self, count: u32) -> u32 {
        // Two shifts, because a shift by 64 is invalid for a count of 0.
        let bits = (self.bits >> 1 >> (63 - count)) as u32;
        self.skip(count);
        bits
    }

    /// Whether bits after the end of the data were consumed.
    pub(crate) fn is_overrun(&self) -> bool {
        self.padding_bits > self.count
    }

    /// Returns the position of the next bit, or `None` after the end of the data.
    pub(crate) fn position(&self) -> Option<BitPosition> {
        if self.is_overrun() {
            return None;
        }
        let mut left = self.count - self.padding_bits;
        let mut byte = self.next;
        while left >= 8 {
            byte -= if byte >= 2 && self.data[byte - 2..byte] == [0xFF, 0] { 2 } else { 1 };
            left -= 8;
        }
        if left == 0 {
            return Some(BitPosition { byte, bit: 0 });
        }
        byte -= if byte >= 2 && self.data[byte - 2..byte] == [0xFF, 0] { 2 } else { 1 };
        Some(BitPosition { byte, bit: 8 - left })
    }

    /// Continues at a different position.
    pub(crate) fn seek(&mut self, position: BitPosition) {
        *self = Self::new(self.data, position.byte);
        self.fill();
        self.skip(position.bit);
    }

    /// Returns the data from a position to the end of the file.
    pub(crate) fn rest(&self, start: usize) -> &'a [u8] {
        self.data.get(start..).unwrap_or_default()
    }

    /// Skips the rest of the current byte and the marker after it. Returns `false` if another byte or marker follows.
    pub(crate) fn skip_marker(&mut self, marker: u8) -> bool {
        let Some(mut at) = self.next_byte() else { return false };
        if self.data.get(at) != Some(&0xFF) {
            return false;
        }
        while self.data.get(at) == Some(&0xFF) {
            at += 1;
        }
        if self.data.get(at) != Some(&marker) {
            return false;
        }
        *self = Self::new(self.data, at + 1);
        true
    }

    /// Skips the rest of the current byte and the end of the image after it: the EOI marker, or the end of the file. Returns
    /// `false` if other data follows.
    pub(crate) fn skip_end(&mut self) -> bool {
        self.next_byte() == Some(self.data.len()) || self.skip_marker(0xD9)
    }

    /// Returns the position of the next byte of which no bit was read. `None` after the end of the data.
    fn next_byte(&self) -> Option<usize> {
        let position = self.position()?;
        Some(match position.bit {
            0 => position.byte,
            _ if self.data.get(position.byte..position.byte + 2) == Some(&[0xFF, 0]) => position.byte + 2,
            _ => position.byte + 1,
        })
    }
}

/// Whether a byte of the word is 0xFF.
#[inline(always)]
fn contains_ff(word: u64) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let inverted = !word;
    inverted.wrapping_sub(LOW) & !inverted & (LOW << 7) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns random bytes, some of them 0xFF, and the same bytes with a zero after each 0xFF.
    fn data(seed: u64, length: usize) -> (Vec<u8>, Vec<u8>) {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut plain = Vec::new();
        for _ in 0..length {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let byte = (state >> 40) as u8;
            plain.push(if byte < 30 { 0xFF } else { byte });
        }
        let stuffed = plain.iter().flat_map(|&byte| if byte == 0xFF { vec![0xFF, 0] } else { vec![byte] });
        let stuffed = stuffed.collect();
        (plain, stuffed)
    }

    fn bit(plain: &[u8], at: usize) -> u32 {
        u32::from(plain[at / 8] >> (7 - at % 8) & 1)
    }

    #[test]
    fn bits_positions_and_seeks_agree_with_single_bits() {
        for seed in 0..200 {
            let (plain, stuffed) = data(seed, 60);
            let mut reader = BitReader::new(&stuffed, 0);
            let (mut at, mut width) = (0, 1);
            let mut positions = Vec::new();
            while at + width <= plain.len() * 8 {
                positions.push((at, reader.position().expect("inside the data")));
                reader.fill();
                let expected = (at..at + width).fold(0, |bits, at| bits << 1 | bit(&plain, at));
                assert_eq!(reader.read_bits(width as u32), expected, "seed {seed} at {at}");
                at += width;
                width = (width * 5 + seed as usize) % 16 + 1;
            }
            assert!(!reader.is_overrun());
            for (at, position) in positions {
                reader.seek(position);
                assert_eq!(reader.position(), Some(position));
                reader.fill();
                assert_eq!(reader.read_bits(1), bit(&plain, at));
            }
        }
    }

    #[test]
    fn reading_beyond_the_end_or_a_marker_is_an_overrun() {
        for data in [&[0xAB, 0xCD][..], &[0xAB, 0xCD, 0xFF, 0xD9, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut reader = BitReader::new(data, 0);
            reader.fill();
            assert_eq!(reader.read_bits(16), 0xABCD);
            assert!(!reader.is_overrun());
            assert_eq!(reader.position(), Some(BitPosition { byte: 2, bit: 0 }));
            reader.fill();
            assert_eq!(reader.read_bits(1), 0);
            assert!(reader.is_overrun());
            assert_eq!(reader.position(), None);
        }
    }

    #[test]
    fn a_marker_is_skipped_from_within_the_byte_before() {
        let data = [0xAB, 0xFF, 0, 0xFF, 0xFF, 0xD3, 0x5A];
        for used in 9..=16 {
            let mut reader = BitReader::new(&data, 0);
            reader.fill();
            reader.skip(used);
            assert!({ reader }.skip_marker(0xD3));
            assert!(!{ reader }.skip_marker(0xD4));
            reader.skip_marker(0xD3);
            reader.fill();
            assert_eq!(reader.read_bits(8), 0x5A);
        }
        assert!(!BitReader::new(&data, 0).skip_marker(0xD3), "an unread byte precedes the marker");
    }
}
