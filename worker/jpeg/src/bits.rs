//! Bits of entropy-coded JPEG data, most significant first, without the zero byte that follows each 0xFF.

/// A place in the data: the byte that holds the next bit, and how many of its bits are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BitPlace {
    pub(crate) byte: usize,
    pub(crate) bit: u32,
}

/// Bits that are there after [`BitReader::fill`], at least.
pub(crate) const FILLED_BITS: u32 = 56;

#[derive(Debug, Clone, Copy)]
pub(crate) struct BitReader<'a> {
    data: &'a [u8],
    /// The next byte to take in.
    next: usize,
    /// Bits taken in and not used, from the top. Below `count` are zeros, or bits of the byte at `next`.
    bits: u64,
    count: u32,
    /// Zero bits at the end of `count` that the data does not have: it has ended, or a marker stands there.
    made_up: u32,
}

impl<'a> BitReader<'a> {
    /// Reads from byte `start` on.
    pub(crate) fn new(data: &'a [u8], start: usize) -> Self {
        Self { data, next: start, bits: 0, count: 0, made_up: 0 }
    }

    /// Makes sure that [`FILLED_BITS`] bits are there, zeros beyond the end.
    #[inline(always)]
    pub(crate) fn fill(&mut self) {
        if let Some(bytes) = self.data.get(self.next..self.next + 8) {
            let word = bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
            if !has_ff(word) {
                // Whole bytes; a part of the next one comes with them, and once more with the next fill.
                self.bits |= word >> (self.count & 63);
                self.next += (!self.count >> 3 & 7) as usize;
                self.count |= FILLED_BITS;
                return;
            }
        }
        // By value, so that the caller's stays in registers.
        *self = self.filled_slowly();
    }

    #[cold]
    #[inline(never)]
    fn filled_slowly(mut self) -> Self {
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
                    self.made_up += 8;
                    0
                }
            };
            // What lies beyond `count` may be the front of a marker, or of a byte that comes now.
            self.bits &= !(u64::MAX >> self.count);
            self.bits |= u64::from(byte) << (FILLED_BITS - self.count);
            self.count += 8;
        }
        self
    }

    /// The next `count` bits, 1 to 32, in the lowest place; [`Self::fill`] must have come before.
    #[inline(always)]
    pub(crate) fn peek(&self, count: u32) -> u32 {
        (self.bits >> (64 - count)) as u32
    }

    #[inline(always)]
    pub(crate) fn skip(&mut self, count: u32) {
        self.bits <<= count;
        debug_assert!(count <= self.count, "a fill came before");
        self.count -= count;
    }

    /// Takes `count` bits, 0 to 16.
    #[inline(always)]
    pub(crate) fn take(&mut self, count: u32) -> u32 {
        // Two shifts, for a count of 0.
        let bits = (self.bits >> 1 >> (63 - count)) as u32;
        self.skip(count);
        bits
    }

    /// Whether bits were used that the data does not have.
    pub(crate) fn is_overrun(&self) -> bool {
        self.made_up > self.count
    }

    /// Where the next bit lies; `None` when it is beyond the data.
    pub(crate) fn place(&self) -> Option<BitPlace> {
        if self.is_overrun() {
            return None;
        }
        let mut left = self.count - self.made_up;
        let mut byte = self.next;
        while left >= 8 {
            byte -= if byte >= 2 && self.data[byte - 2..byte] == [0xFF, 0] { 2 } else { 1 };
            left -= 8;
        }
        if left == 0 {
            return Some(BitPlace { byte, bit: 0 });
        }
        byte -= if byte >= 2 && self.data[byte - 2..byte] == [0xFF, 0] { 2 } else { 1 };
        Some(BitPlace { byte, bit: 8 - left })
    }

    /// Goes on at another place.
    pub(crate) fn seek(&mut self, place: BitPlace) {
        *self = Self::new(self.data, place.byte);
        self.fill();
        self.skip(place.bit);
    }

    /// Drops what is left of the present byte and passes the marker that must stand there.
    pub(crate) fn pass_marker(&mut self, marker: u8) -> bool {
        let Some(place) = self.place() else { return false };
        let mut at = match place.bit {
            0 => place.byte,
            _ if self.data.get(place.byte..place.byte + 2) == Some(&[0xFF, 0]) => place.byte + 2,
            _ => place.byte + 1,
        };
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
}

/// Whether one of the bytes is 0xFF.
#[inline(always)]
fn has_ff(word: u64) -> bool {
    const LOW: u64 = 0x0101_0101_0101_0101;
    let inverted = !word;
    inverted.wrapping_sub(LOW) & !inverted & (LOW << 7) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random bytes, some of them 0xFF, and the same with a zero after each 0xFF.
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
    fn bits_places_and_seeks_agree_with_single_bits() {
        for seed in 0..200 {
            let (plain, stuffed) = data(seed, 60);
            let mut reader = BitReader::new(&stuffed, 0);
            let (mut at, mut width) = (0, 1);
            let mut places = Vec::new();
            while at + width <= plain.len() * 8 {
                places.push((at, reader.place().expect("inside the data")));
                reader.fill();
                let expected = (at..at + width).fold(0, |bits, at| bits << 1 | bit(&plain, at));
                assert_eq!(reader.take(width as u32), expected, "seed {seed} at {at}");
                at += width;
                width = (width * 5 + seed as usize) % 16 + 1;
            }
            assert!(!reader.is_overrun());
            for (at, place) in places {
                reader.seek(place);
                assert_eq!(reader.place(), Some(place));
                reader.fill();
                assert_eq!(reader.take(1), bit(&plain, at));
            }
        }
    }

    #[test]
    fn an_end_and_a_marker_are_noticed_when_bits_beyond_are_used() {
        for data in [&[0xAB, 0xCD][..], &[0xAB, 0xCD, 0xFF, 0xD9, 1, 2, 3, 4, 5, 6, 7, 8]] {
            let mut reader = BitReader::new(data, 0);
            reader.fill();
            assert_eq!(reader.take(16), 0xABCD);
            assert!(!reader.is_overrun());
            assert_eq!(reader.place(), Some(BitPlace { byte: 2, bit: 0 }));
            reader.fill();
            assert_eq!(reader.take(1), 0);
            assert!(reader.is_overrun());
            assert_eq!(reader.place(), None);
        }
    }

    #[test]
    fn a_marker_is_passed_from_inside_the_byte_before() {
        let data = [0xAB, 0xFF, 0, 0xFF, 0xFF, 0xD3, 0x5A];
        for used in 9..=16 {
            let mut reader = BitReader::new(&data, 0);
            reader.fill();
            reader.skip(used);
            assert!({ reader }.pass_marker(0xD3));
            assert!(!{ reader }.pass_marker(0xD4));
            reader.pass_marker(0xD3);
            reader.fill();
            assert_eq!(reader.take(8), 0x5A);
        }
        assert!(!BitReader::new(&data, 0).pass_marker(0xD3), "a whole byte is left");
    }
}
