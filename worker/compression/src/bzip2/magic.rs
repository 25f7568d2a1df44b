//! Finds the magic numbers of bzip2 blocks, which begin at any bit.

/// The magic of a block: the digits of pi.
pub(super) const BLOCK_MAGIC: u64 = 0x3141_5926_5359;
/// The magic of the end of a stream: the digits of the square root of pi.
pub(super) const END_MAGIC: u64 = 0x1772_4538_5090;
pub(super) const MAGIC_BITS: u64 = 48;

const WINDOW_BYTES: usize = 8;
const MAGIC_MASK: u64 = (1 << MAGIC_BITS) - 1;

/// The bits of a value are the shifts at which its byte is the third byte of a window that begins with a magic. A window begins with
/// `shift` other bits.
static THIRD_BYTES: [u8; 256] = third_bytes();

const fn third_bytes() -> [u8; 256] {
    let mut shifts = [0; 256];
    let mut shift = 0;
    while shift < 8 {
        shifts[third_byte(BLOCK_MAGIC, shift)] |= 1 << shift;
        shifts[third_byte(END_MAGIC, shift)] |= 1 << shift;
        shift += 1;
    }
    shifts
}

const fn third_byte(magic: u64, shift: u32) -> usize {
    ((magic << (16 - shift)) >> 40) as usize & 0xff
}

/// Returns the first bit at or after `from_bit` at which a magic begins. `position` is the offset of `input` in the file. Windows of
/// less than 8 bytes at the end of the input are not searched.
pub(super) fn find_magic(input: &[u8], position: u64, from_bit: u64) -> Option<u64> {
    let start = usize::try_from((from_bit / 8).checked_sub(position)?).ok()?;
    let windows = input.get(start..)?.windows(WINDOW_BYTES);
    for (at, window) in (position + start as u64..).zip(windows) {
        let shifts = THIRD_BYTES[usize::from(window[2])];
        if shifts == 0 {
            continue;
        }
        let window = window.iter().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
        for shift in (0..8).filter(|shift| shifts & (1 << shift) != 0) {
            let magic = window >> (16 - shift) & MAGIC_MASK;
            let bit = at * 8 + shift;
            if (magic == BLOCK_MAGIC || magic == END_MAGIC) && bit >= from_bit {
                return Some(bit);
            }
        }
    }
    None
}

/// Returns a number of at most 48 bits at a bit of the input. `None` if the input ends before.
pub(super) fn number_at(input: &[u8], bit: u64, bits: u64) -> Option<u64> {
    let start = usize::try_from(bit / 8).ok()?;
    let end = usize::try_from((bit + bits).div_ceil(8)).ok()?;
    let bytes = input.get(start..end)?;
    let value = bytes.iter().fold(0, |value: u64, &byte| value << 8 | u64::from(byte));
    let unused = end as u64 * 8 - (bit + bits);
    Some(value >> unused & ((1 << bits) - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes with a number of 48 bits at a bit.
    fn with_number(mut bytes: Vec<u8>, bit: usize, number: u64) -> Vec<u8> {
        for at in 0..48 {
            let (byte, mask) = ((bit + at) / 8, 0x80 >> ((bit + at) % 8));
            bytes[byte] &= !mask;
            if number >> (47 - at) & 1 == 1 {
                bytes[byte] |= mask;
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_magic_is_found_at_every_bit(
            noise in proptest::collection::vec(any::<u8>(), 40..80),
            bit in 0usize..200,
            is_end in any::<bool>(),
            position in 0u64..1000,
        ) {
            let magic = if is_end { END_MAGIC } else { BLOCK_MAGIC };
            let bytes = with_number(noise, bit, magic);
            let wanted = position * 8 + bit as u64;
            prop_assert_eq!(find_magic(&bytes, position, position * 8), Some(wanted));
            prop_assert_eq!(find_magic(&bytes, position, wanted), Some(wanted));
            prop_assert_eq!(find_magic(&bytes, position, wanted + 1), None);
            prop_assert_eq!(number_at(&bytes, bit as u64, 48), Some(magic));
            prop_assert_eq!(number_at(&bytes, bytes.len() as u64 * 8 - 47, 48), None);
        }
    }
}
