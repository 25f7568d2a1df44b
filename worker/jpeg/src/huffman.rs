//! Huffman tables in forms that decode several things with one look: codes with the values that follow them, two at once
//! where they are short.
//!
//! Codes and values are those of ITU-T T.81, sections C and F.2.2.

/// Bits that a look sees. 2,048 pairs of eight bytes: those of luminance and chrominance fit a first-level cache.
pub(crate) const LOOK_BITS: u32 = 11;
const ENTRIES: usize = 1 << LOOK_BITS;

/// A table as a JPEG gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableSpec {
    /// `bits[1..=16]`: codes of each length.
    pub(crate) bits: [u8; 17],
    /// Their symbols, in the order of the codes.
    pub(crate) values: [u8; 256],
}

/// What the next bits begin with.
///
/// Layout from the lowest bit: 6 bits of length, 7 of advance, 3 of kind, 16 of value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TableEntry(u32);

/// Kinds of [`TableEntry`]; a plain coefficient, which is nearly all, is 0.
pub(crate) const END_OF_BLOCK: u32 = 1;
pub(crate) const ZEROES: u32 = 2;
/// The code is seen, the value that follows it is not all: the entry's value is the value's bits.
pub(crate) const CODE_ONLY: u32 = 3;
/// The code is longer than a look.
pub(crate) const LONG: u32 = 4;

impl TableEntry {
    fn new(length: u32, advance: u32, kind: u32, value: i16) -> Self {
        Self(length | advance << 6 | kind << 13 | u32::from(value as u16) << 16)
    }

    /// Bits that it takes.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.0 & 63
    }

    /// Places from the coefficient before to this one.
    #[inline(always)]
    pub(crate) fn advance(self) -> usize {
        (self.0 >> 6 & 127) as usize
    }

    #[inline(always)]
    pub(crate) fn kind(self) -> u32 {
        self.0 >> 13 & 7
    }

    #[inline(always)]
    pub(crate) fn value(self) -> i16 {
        (self.0 >> 16) as i16
    }
}

/// Two coefficients, or one, or none, and whether the block ends after them: all that a look sees whole.
///
/// By bytes from the lowest: bits that it takes; the advance of both, and 64 more where the block ends or where it says
/// nothing, so that one comparison tells the usual case; the advance of the first; 1 where the block ends. Then 16 bits of the
/// first value and 16 of the second. Where there is one coefficient, both advances are its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pair(u64);

/// The advance of a [`Pair`] that is not usual: beyond any block.
const UNUSUAL: u64 = 64 << 8;

impl Pair {
    /// What one coefficient adds to the one before it.
    fn second(entry: TableEntry) -> u64 {
        u64::from(entry.length()) | (entry.advance() as u64) << 8 | u64::from(entry.value() as u16) << 48
    }

    fn first(entry: TableEntry) -> u64 {
        let advance = entry.advance() as u64;
        u64::from(entry.length()) | advance << 8 | advance << 16 | u64::from(entry.value() as u16) << 32
    }

    fn end(entry: TableEntry) -> u64 {
        u64::from(entry.length()) | UNUSUAL | 1 << 24
    }

    /// Bits that it takes.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.0 as u32 & 255
    }

    /// Places from the coefficient before to the last of these; 64 and more where it is not usual.
    #[inline(always)]
    pub(crate) fn advance(self) -> usize {
        usize::from((self.0 >> 8) as u8)
    }

    /// Where the block ends: the advance.
    #[inline(always)]
    pub(crate) fn end_advance(self) -> Option<usize> {
        ((self.0 >> 24) as u8 != 0).then(|| self.advance() & 63)
    }

    /// Places from the coefficient before to the first of these; 0 where there is none.
    #[inline(always)]
    pub(crate) fn first_advance(self) -> usize {
        usize::from((self.0 >> 16) as u8)
    }

    #[inline(always)]
    pub(crate) fn first_value(self) -> i16 {
        (self.0 >> 32) as i16
    }

    /// Means nothing where there is one coefficient.
    #[inline(always)]
    pub(crate) fn second_value(self) -> i16 {
        (self.0 >> 48) as i16
    }
}

/// Codes by length, for those that a look does not see whole.
#[derive(Debug, Clone)]
struct Canonical {
    spec: TableSpec,
    /// For each length the first code beyond those of it, left-aligned in 16 bits.
    limit: [u32; 17],
    /// For each length, what to add to a code of it to get its symbol's place.
    offset: [i32; 17],
}

impl Canonical {
    /// `None` where the counts are those of no Huffman code.
    fn new(spec: &TableSpec) -> Option<Self> {
        let mut canonical = Self { spec: *spec, limit: [0; 17], offset: [0; 17] };
        let (mut code, mut place) = (0u32, 0u32);
        for length in 1..=16u32 {
            let count = u32::from(spec.bits[length as usize]);
            canonical.offset[length as usize] = place as i32 - code as i32;
            code += count;
            place += count;
            // No code is all ones.
            if place > 256 || (count > 0 && code >= 1 << length) {
                return None;
            }
            canonical.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(canonical)
    }

    /// The code at the front of 16 bits: its length and symbol.
    fn find(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=16).find(|&length| bits < self.limit[length as usize])?;
        let place = (bits >> (16 - length)) as i32 + self.offset[length as usize];
        Some((length, *self.spec.values.get(usize::try_from(place).ok()?)?))
    }
}

/// The value of `size` bits (T.81, table F.12 and figure F.12).
#[inline(always)]
pub(crate) fn extend(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    if size > 0 && bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
}

/// A table of AC codes.
#[derive(Debug, Clone)]
pub(crate) struct AcTable {
    canonical: Canonical,
    entries: Box<[TableEntry; ENTRIES]>,
    pairs: Box<[Pair; ENTRIES]>,
}

impl AcTable {
    fn new(spec: &TableSpec) -> Option<Self> {
        let canonical = Canonical::new(spec)?;
        let long = TableEntry::new(0, 0, LONG, 0);
        let mut table =
            Self { canonical, entries: Box::new([long; ENTRIES]), pairs: Box::new([Pair(UNUSUAL); ENTRIES]) };
        table.fill_entries();
        table.fill_pairs();
        Some(table)
    }

    fn fill_entries(&mut self) {
        let spec = self.canonical.spec;
        let (mut code, mut place) = (0usize, 0);
        for length in 1..=LOOK_BITS {
            for _ in 0..spec.bits[length as usize] {
                let symbol = spec.values[place];
                let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                let rest = LOOK_BITS - length;
                let entries = &mut self.entries[code << rest..(code + 1) << rest];
                if size == 0 {
                    entries.fill(match run {
                        15 => TableEntry::new(length, 16, ZEROES, 0),
                        _ => TableEntry::new(length, 0, END_OF_BLOCK, 0),
                    });
                } else if size <= rest {
                    for (bits, entries) in entries.chunks_exact_mut(1 << (rest - size)).enumerate() {
                        let value = extend(bits as u32, size);
                        entries.fill(TableEntry::new(length + size, run + 1, 0, value as i16));
                    }
                } else {
                    entries.fill(TableEntry::new(length, run + 1, CODE_ONLY, size as i16));
                }
                code += 1;
                place += 1;
            }
            code <<= 1;
        }
    }

    fn fill_pairs(&mut self) {
        for (look, pair) in self.pairs.iter_mut().enumerate() {
            let first = self.entries[look];
            let second = self.entries[look << first.length() & (ENTRIES - 1)];
            let third_at = first.length() + second.length();
            let is_whole = third_at <= LOOK_BITS;
            pair.0 = match (first.kind(), second.kind()) {
                (END_OF_BLOCK, _) => Pair::end(first),
                (0, END_OF_BLOCK) if is_whole => Pair::first(first) + Pair::end(second),
                (0, 0) if is_whole => {
                    let third = self.entries[look << third_at & (ENTRIES - 1)];
                    let ends = third.kind() == END_OF_BLOCK && third_at + third.length() <= LOOK_BITS;
                    let end = if ends { Pair::end(third) } else { 0 };
                    Pair::first(first) + Pair::second(second) + end
                }
                (0, _) => Pair::first(first),
                _ => UNUSUAL,
            };
        }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, look: usize) -> TableEntry {
        self.entries[look & (ENTRIES - 1)]
    }

    #[inline(always)]
    pub(crate) fn pair(&self, look: usize) -> Pair {
        self.pairs[look & (ENTRIES - 1)]
    }

    /// The length and symbol of a code that is longer than a look, at the front of 16 bits.
    #[cold]
    pub(crate) fn long(&self, bits: u32) -> Option<(u32, u8)> {
        self.canonical.find(bits)
    }
}

/// A table of DC codes: symbols are the sizes of differences.
#[derive(Debug, Clone)]
pub(crate) struct DcTable {
    canonical: Canonical,
    /// Bits of a code with its difference in the lower half, the difference in the upper; 0 where a look does not see
    /// all of them.
    looks: Box<[u32; 1 << DC_LOOK_BITS]>,
}

const DC_LOOK_BITS: u32 = 10;

impl DcTable {
    fn new(spec: &TableSpec) -> Option<Self> {
        let canonical = Canonical::new(spec)?;
        let codes: usize = spec.bits[1..].iter().map(|&count| usize::from(count)).sum();
        // Lossy images have differences of up to 15 bits; libjpeg-turbo refuses others too.
        if spec.values[..codes].iter().any(|&size| size > 15) {
            return None;
        }
        let mut looks = Box::new([0; 1 << DC_LOOK_BITS]);
        for (look, entry) in looks.iter_mut().enumerate() {
            let bits = (look as u32) << (16 - DC_LOOK_BITS);
            if let Some((length, size)) = canonical.find(bits)
                && length + u32::from(size) <= DC_LOOK_BITS
            {
                let size = u32::from(size);
                let difference = extend(bits >> (16 - length - size) & ((1 << size) - 1), size);
                *entry = (length + size) | u32::from(difference as i16 as u16) << 16;
            }
        }
        Some(Self { canonical, looks })
    }

    /// The length of a code with its difference at the front of 16 bits, and the difference; a length of 0 where it is
    /// one of the longer ones.
    #[inline(always)]
    pub(crate) fn whole(&self, bits: u32) -> (u32, i16) {
        let entry = self.looks[(bits >> (16 - DC_LOOK_BITS)) as usize & ((1 << DC_LOOK_BITS) - 1)];
        (entry & 0xFFFF, (entry >> 16) as i16)
    }

    /// The length of the code at the front of 16 bits, and the size of the difference that follows it.
    #[cold]
    pub(crate) fn find(&self, bits: u32) -> Option<(u32, u32)> {
        self.canonical.find(bits).map(|(length, size)| (length, u32::from(size)))
    }
}

/// AC tables that are kept although the present image has others: those of two images.
const SPARE_TABLES: usize = 4;

/// The tables of an image; those that the images just before it had as well are kept, since encoders mostly write the
/// standard ones, with some images of other encoders between them.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dc: [Option<DcTable>; 4],
    pub(crate) ac: [Option<AcTable>; 4],
    /// Last used last.
    spare: Vec<AcTable>,
}

impl Tables {
    /// `None` where the specification is that of no Huffman code.
    pub(crate) fn set_dc(&mut self, place: usize, spec: &TableSpec) -> Option<()> {
        if self.dc[place].as_ref().is_none_or(|table| table.canonical.spec != *spec) {
            self.dc[place] = Some(DcTable::new(spec)?);
        }
        Some(())
    }

    /// As [`Self::set_dc`].
    pub(crate) fn set_ac(&mut self, place: usize, spec: &TableSpec) -> Option<()> {
        if self.ac[place].as_ref().is_some_and(|table| table.canonical.spec == *spec) {
            return Some(());
        }
        let table = match self.spare.iter().position(|table| table.canonical.spec == *spec) {
            Some(found) => self.spare.remove(found),
            None => AcTable::new(spec)?,
        };
        if let Some(displaced) = self.ac[place].replace(table) {
            if self.spare.len() == SPARE_TABLES {
                self.spare.remove(0);
            }
            self.spare.push(displaced);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{AcTable, TableSpec, Tables};

    /// A code of one symbol.
    fn spec(symbol: u8) -> TableSpec {
        let mut spec = TableSpec { bits: [0; 17], values: [0; 256] };
        spec.bits[1] = 1;
        spec.values[0] = symbol;
        spec
    }

    fn symbol(table: Option<&AcTable>) -> u8 {
        table.expect("it was set").canonical.spec.values[0]
    }

    #[test]
    fn tables_follow_their_specification_whether_kept_or_made() {
        let mut tables = Tables::default();
        for turn in [1u8, 2, 1, 3, 4, 5, 6, 7, 8, 1, 1, 7, 2] {
            for place in [0, 1] {
                tables.set_ac(place, &spec(turn + 16 * place as u8)).expect("the code is sound");
                assert_eq!(symbol(tables.ac[place].as_ref()), turn + 16 * place as u8);
            }
            assert!(tables.spare.len() <= super::SPARE_TABLES);
        }
    }

    #[test]
    fn a_table_that_comes_back_is_not_made_again() {
        let mut tables = Tables::default();
        tables.set_ac(0, &spec(1)).expect("the code is sound");
        let made = tables.ac[0].as_ref().map(|table| table.pairs.as_ptr());
        tables.set_ac(0, &spec(2)).expect("the code is sound");
        tables.set_ac(0, &spec(1)).expect("the code is sound");
        assert_eq!(tables.ac[0].as_ref().map(|table| table.pairs.as_ptr()), made);
    }
}
