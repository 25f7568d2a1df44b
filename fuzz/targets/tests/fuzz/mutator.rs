//! A deterministic mutator: the same inputs and seed result in the same mutation.

use std::ops::Range;

/// Maximum size of a mutation.
const MAX_BYTES: usize = 64 << 10;
/// Maximum number of changes in a mutation.
const MAX_CHANGES: usize = 5;

/// Limits of integer types and of common checks.
const INTEGERS: [u64; 12] =
    [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 1 << 62, u64::MAX];
/// Bytes with a meaning in text formats, and limits of signed and unsigned bytes.
const BYTES: &[u8] = b"\0\x01\x7F\x80\xFF \t\r\n\"'\\,:;#-.[]{}";
/// Numbers that text formats may not be able to represent.
const NUMBERS: [&[u8]; 8] =
    [b"0", b"-1", b"2147483648", b"9223372036854775808", b"18446744073709551616", b"1e999", b"NaN", b"0.1"];

/// Mutates one of the inputs.
pub(super) fn mutate(inputs: &[Vec<u8>], seed: u64) -> Vec<u8> {
    let mut random = Random { state: seed };
    let mut bytes = random.choose(inputs).clone();
    // A single change often leaves the rest of the input valid.
    let changes = if random.is_true() { 1 } else { 1 + random.below(MAX_CHANGES) };
    for _ in 0..changes {
        change(&mut bytes, inputs, &mut random);
    }
    bytes.truncate(MAX_BYTES);
    bytes
}

/// Makes one random change.
fn change(bytes: &mut Vec<u8>, inputs: &[Vec<u8>], random: &mut Random) {
    match random.below(11) {
        0 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] ^= 1 << random.below(8);
        }
        1 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            bytes[at] = *random.choose(BYTES);
        }
        2 => overwrite_integer(bytes, random),
        3 if !bytes.is_empty() => {
            let at = random.below(bytes.len());
            let difference = 1 + random.below(16) as u8;
            bytes[at] = if random.is_true() {
                bytes[at].wrapping_add(difference)
            } else {
                bytes[at].wrapping_sub(difference)
            };
        }
        4 => drop(bytes.drain(random.range(bytes.len()))),
        5 => {
            let copy = bytes[random.range(bytes.len())].to_vec();
            insert(bytes, &copy, random);
        }
        6 => {
            let length = 1 + random.below(32);
            let inserted = if random.is_true() {
                vec![*random.choose(BYTES); length]
            } else {
                (0..length).map(|_| random.next() as u8).collect()
            };
            insert(bytes, &inserted, random);
        }
        7 => bytes.truncate(random.below(bytes.len() + 1)),
        8 => {
            let other = random.choose(inputs);
            bytes.truncate(random.below(bytes.len() + 1));
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        9 => {
            let other = random.choose(inputs);
            let part = &other[random.range(other.len())];
            insert(bytes, part, random);
        }
        _ => replace_number(bytes, random),
    }
}

fn insert(bytes: &mut Vec<u8>, inserted: &[u8], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    bytes.splice(at..at, inserted.iter().copied());
}

/// Overwrites 1, 2, 4 or 8 bytes with an integer, in either byte order.
fn overwrite_integer(bytes: &mut [u8], random: &mut Random) {
    let integer = random.choose(&INTEGERS).wrapping_add(random.below(3) as u64).wrapping_sub(1);
    let width = 1 << random.below(4);
    if bytes.len() < width {
        return;
    }
    let at = random.below(bytes.len() - width + 1);
    let target = &mut bytes[at..at + width];
    target.copy_from_slice(&integer.to_le_bytes()[..width]);
    if random.is_true() {
        target.reverse();
    }
}

/// Replaces a decimal number in a text.
fn replace_number(bytes: &mut Vec<u8>, random: &mut Random) {
    let start = random.below(bytes.len() + 1);
    let Some(first) = bytes[start..].iter().position(u8::is_ascii_digit) else { return };
    let first = start + first;
    let length = bytes[first..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    bytes.splice(first..first + length, random.choose(&NUMBERS).iter().copied());
}

/// The generator SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014).
struct Random {
    state: u64,
}

impl Random {
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below `bound`, which must be positive.
    fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    fn is_true(&mut self) -> bool {
        self.below(2) == 0
    }

    fn choose<'a, T>(&mut self, values: &'a [T]) -> &'a T {
        &values[self.below(values.len())]
    }

    /// Returns a range of positions below `length`. Short ranges are more probable.
    fn range(&mut self, length: usize) -> Range<usize> {
        let start = self.below(length + 1);
        let longest = if self.is_true() { 16.min(length - start) } else { length - start };
        start..start + self.below(longest + 1)
    }
}

#[test]
fn mutations_depend_only_on_the_inputs_and_the_seed() {
    let inputs = [b"12, three".to_vec(), Vec::new(), vec![0xFF; 100]];
    let mutations = |inputs: &[Vec<u8>]| (0..1_000).map(|seed| mutate(inputs, seed)).collect::<Vec<_>>();
    let first = mutations(&inputs);
    assert_eq!(first, mutations(&inputs));
    let mut different = first.clone();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() > 500, "only {} of 1,000 mutations are different", different.len());
    assert!(first.iter().any(|mutation| mutation.windows(5).any(|part| part == b"1e999")));
    assert!(mutations(&[Vec::new()]).iter().any(|mutation| !mutation.is_empty()));
}
