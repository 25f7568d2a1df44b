//! Decoding tables of Huffman codes.
//!
//! A table has a main part, indexed by the next bits of the stream, and subtables for longer codes. An entry contains
//! everything that decoding a symbol needs:
//!
//! | bits | content |
//! |---|---|
//! | 0-5 | number of bits to consume: the code and the extra bits; in a subtable, without the bits of the main part |
//! | 8-11 | length of the code in bits, without the extra bits; in a pointer, the number of bits of the subtable |
//! | 12 | the end of the block |
//! | 13 | a pointer to a subtable |
//! | 14 | a code that does not exist |
//! | 15 | any of bits 12 to 14 |
//! | 16-30 | the literal, the base of the length or distance, or the start of the subtable |
//! | 31 | a literal |

pub(super) const LITERAL: u32 = 1 << 31;
pub(super) const EXCEPTIONAL: u32 = 1 << 15;
pub(super) const INVALID: u32 = 1 << 14 | EXCEPTIONAL;
pub(super) const SUBTABLE: u32 = 1 << 13 | EXCEPTIONAL;
pub(super) const END_OF_BLOCK: u32 = 1 << 12 | EXCEPTIONAL;

/// Maximum length of a code in bits.
pub(super) const MAX_CODE_BITS: usize = 15;
/// Number of symbols of the literal and length code, including 2 symbols that may not occur.
pub(super) const LITLEN_SYMBOLS: usize = 288;
/// Number of symbols of the distance code, including 2 symbols that may not occur.
pub(super) const DISTANCE_SYMBOLS: usize = 32;

pub(super) const LITLEN_BITS: u32 = 11;
pub(super) const DISTANCE_BITS: u32 = 9;
/// Sizes of the tables, which are powers of two above the sizes that zlib's program `enough` computes.
pub(super) const LITLEN_ENTRIES: usize = 4096;
pub(super) const DISTANCE_ENTRIES: usize = 1024;

/// The table of the literal and length code.
pub(super) type LitlenTable = [u32; LITLEN_ENTRIES];
/// The table of the distance code.
pub(super) type DistanceTable = [u32; DISTANCE_ENTRIES];

/// The entry of a literal or length symbol, without the length of its code.
pub(super) const fn litlen_entry(symbol: usize) -> u32 {
    const EXTRA: [u32; 29] =
        [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 0];
    const BASE: [u32; 29] = [
        3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99, 115, 131, 163,
        195, 227, 258,
    ];
    match symbol {
        0..=255 => LITERAL | (symbol as u32) << 16,
        256 => END_OF_BLOCK,
        257..=285 => BASE[symbol - 257] << 16 | EXTRA[symbol - 257],
        _ => INVALID,
    }
}

/// The entry of a distance symbol, without the length of its code.
pub(super) const fn distance_entry(symbol: usize) -> u32 {
    if symbol >= 30 {
        return INVALID;
    }
    if symbol < 4 {
        return (symbol as u32 + 1) << 16;
    }
    let extra = symbol as u32 / 2 - 1;
    (((2 + (symbol as u32 & 1)) << extra) + 1) << 16 | extra
}

/// The entry of a symbol of the code of code lengths.
pub(super) const fn code_length_entry(symbol: usize) -> u32 {
    (symbol as u32) << 16
}

/// Builds the table of a code from the code lengths of its symbols. `main_bits` is the number of bits that index the main
/// part. A code of a single symbol may be incomplete, as in zlib.
pub(super) fn build(
    table: &mut [u32],
    main_bits: u32,
    lengths: &[u8],
    entry: impl Fn(usize) -> u32,
) -> Result<(), &'static str> {
    let mut counts = [0_u32; MAX_CODE_BITS + 1];
    for &length in lengths {
        counts[usize::from(length)] += 1;
    }
    let used = lengths.len() as u32 - counts[0];
    counts[0] = 0;
    let mut space = 1_i32 << MAX_CODE_BITS;
    for (length, &count) in counts.iter().enumerate().skip(1) {
        space -= (count as i32) << (MAX_CODE_BITS - length);
    }
    if space < 0 {
        return Err("a Huffman code is oversubscribed");
    }
    if space > 0 && (used > 1 || used == 1 && counts[1] != 1) {
        return Err("a Huffman code is incomplete");
    }
    table[..1 << main_bits].fill(INVALID);
    // Symbols in the order of their codes: by length, then by value.
    let mut offsets = [0_usize; MAX_CODE_BITS + 2];
    for length in 1..=MAX_CODE_BITS {
        offsets[length + 1] = offsets[length] + counts[length] as usize;
    }
    let mut sorted = [0_u16; LITLEN_SYMBOLS];
    for (symbol, &length) in lengths.iter().enumerate().filter(|(_, length)| **length > 0) {
        sorted[offsets[usize::from(length)]] = symbol as u16;
        offsets[usize::from(length)] += 1;
    }
    fill(table, main_bits, &counts, &sorted[..used as usize], entry)
}

/// Writes the entries of symbols that are sorted by code.
fn fill(
    table: &mut [u32],
    main_bits: u32,
    counts: &[u32; MAX_CODE_BITS + 1],
    sorted: &[u16],
    entry: impl Fn(usize) -> u32,
) -> Result<(), &'static str> {
    let mut symbols = sorted.iter();
    let mut code = 0_u32;
    let mut end = 1_usize << main_bits;
    // The main entry, the start and the bits of the current subtable.
    let (mut prefix, mut subtable, mut subtable_bits) = (u32::MAX, 0, 0);
    for length in 1..=MAX_CODE_BITS as u32 {
        code <<= 1;
        for number in 0..counts[length as usize] {
            let Some(&symbol) = symbols.next() else { return Ok(()) };
            let base = entry(usize::from(symbol));
            // The stream contains the highest bit of a code first.
            let reversed = code.reverse_bits() >> (32 - length);
            code += 1;
            if length <= main_bits {
                let value = base + (length << 8 | length);
                let mut at = reversed as usize;
                while at < 1 << main_bits {
                    table[at] = value;
                    at += 1 << length;
                }
                continue;
            }
            let main = reversed & ((1 << main_bits) - 1);
            if main != prefix {
                prefix = main;
                subtable = end;
                subtable_bits = subtable_size(counts, length, number, main_bits);
                end += 1 << subtable_bits;
                if end > table.len() {
                    return Err("a Huffman code is too large");
                }
                table[main as usize] = (subtable as u32) << 16 | SUBTABLE | subtable_bits << 8 | main_bits;
            }
            let rest = length - main_bits;
            let value = base + (rest << 8 | rest);
            let mut at = (reversed >> main_bits) as usize;
            while at < 1 << subtable_bits {
                table[subtable + at] = value;
                at += 1 << rest;
            }
        }
    }
    Ok(())
}

/// Number of bits of the subtable for codes with the prefix of the code of this length and number within its length.
fn subtable_size(counts: &[u32; MAX_CODE_BITS + 1], length: u32, number: u32, main_bits: u32) -> u32 {
    let mut bits = length - main_bits;
    let mut used = counts[length as usize] - number;
    while used < 1 << bits && bits + main_bits < MAX_CODE_BITS as u32 {
        bits += 1;
        used = (used << 1) + counts[(bits + main_bits) as usize];
    }
    bits
}
