//! Huffman lookup tables that decode a code together with the value after it, and two short coefficients with one lookup.
//!
//! ITU-T T.81 defines codes and values in annex C and section F.2.2.

/// Number of bits per table lookup. A table has 2,048 pairs of eight bytes; the tables of luminance and chrominance fit in
/// the L1 cache.
pub(crate) const LOOKUP_BITS: u32 = 11;
const ENTRIES: usize = 1 << LOOKUP_BITS;

/// A Huffman table in a JPEG.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TableSpec {
    /// `bits[1..=16]`: number of codes of each length.
    pub(crate) bits: [u8; 17],
    /// Symbols in the order of the codes.
    pub(crate) values: [u8; 256],
}

/// The code at the start of a bit pattern.
///
/// Layout from the lowest bit: 6 bits for the length, 7 for the advance, 3 for the kind, and 16 for the value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct TableEntry(u32);

/// Kind of a [`TableEntry`] that ends a block. The kind of an ordinary coefficient is 0.
pub(crate) const END_OF_BLOCK: u32 = 1;
/// Kind of a [`TableEntry`] for sixteen zero coefficients.
pub(crate) const ZERO_RUN: u32 = 2;
/// Kind of a [`TableEntry`] whose code fits the lookup but whose value does not. The entry contains the size of the value.
pub(crate) const CODE_ONLY: u32 = 3;
/// Kind of a [`TableEntry`] whose code is longer than the lookup.
pub(crate) const LONG_CODE: u32 = 4;

impl TableEntry {
    fn new(length: u32, advance: u32, kind: u32, value: i16) -> Self {
        Self(length | advance << 6 | kind << 13 | u32::from(value as u16) << 16)
    }

    /// Returns the number of bits.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.0 & 63
    }

    /// Returns the distance from the previous coefficient.
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

/// The coefficients that one lookup decodes completely: none, one or two, and whether the block ends after them.
///
/// Bytes from the lowest: number of bits; advance of the last coefficient, plus 64 if the block ends or if the lookup decodes
/// nothing, so that one comparison detects the usual case; advance of the first coefficient; 1 if the block ends. Two values
/// of 16 bits follow. With only one coefficient, both advances are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CoefficientPair(u64);

/// Added to the advance of a [`CoefficientPair`] in the unusual cases; exceeds the size of a block.
const UNUSUAL_ADVANCE: u64 = 64 << 8;

impl CoefficientPair {
    /// Returns the fields of the second coefficient.
    fn second_fields(entry: TableEntry) -> u64 {
        u64::from(entry.length()) | (entry.advance() as u64) << 8 | u64::from(entry.value() as u16) << 48
    }

    /// Returns the fields of the first coefficient.
    fn first_fields(entry: TableEntry) -> u64 {
        let advance = entry.advance() as u64;
        u64::from(entry.length()) | advance << 8 | advance << 16 | u64::from(entry.value() as u16) << 32
    }

    /// Returns the fields of the end of the block.
    fn end_fields(entry: TableEntry) -> u64 {
        u64::from(entry.length()) | UNUSUAL_ADVANCE | 1 << 24
    }

    /// Returns the number of bits.
    #[inline(always)]
    pub(crate) fn length(self) -> u32 {
        self.0 as u32 & 255
    }

    /// Returns the distance from the previous coefficient to the last coefficient of this pair. At least 64 in the
    /// unusual cases.
    #[inline(always)]
    pub(crate) fn advance(self) -> usize {
        usize::from((self.0 >> 8) as u8)
    }

    /// Returns the advance if the block ends.
    #[inline(always)]
    pub(crate) fn end_advance(self) -> Option<usize> {
        ((self.0 >> 24) as u8 != 0).then(|| self.advance() & 63)
    }

    /// Returns the distance from the previous coefficient to the first coefficient of this pair. 0 if the pair has no
    /// coefficients.
    #[inline(always)]
    pub(crate) fn first_advance(self) -> usize {
        usize::from((self.0 >> 16) as u8)
    }

    #[inline(always)]
    pub(crate) fn first_value(self) -> i16 {
        (self.0 >> 32) as i16
    }

    /// Returns the second value, which is undefined if there is only one coefficient.
    #[inline(always)]
    pub(crate) fn second_value(self) -> i16 {
        (self.0 >> 48) as i16
    }
}

/// Codes by length, for codes that are longer than a lookup.
#[derive(Debug, Clone)]
struct CanonicalCode {
    spec: TableSpec,
    /// First code after the codes of each length, left-aligned in 16 bits.
    limit: [u32; 17],
    /// Number to add to a code of each length to obtain the index of its symbol.
    offset: [i32; 17],
}

impl CanonicalCode {
    /// Returns `None` if the counts do not form a Huffman code.
    fn new(spec: &TableSpec) -> Option<Self> {
        let mut canonical = Self { spec: *spec, limit: [0; 17], offset: [0; 17] };
        let (mut code, mut index) = (0u32, 0u32);
        for length in 1..=16u32 {
            let count = u32::from(spec.bits[length as usize]);
            canonical.offset[length as usize] = index as i32 - code as i32;
            code += count;
            index += count;
            // No code consists of ones only.
            if index > 256 || (count > 0 && code >= 1 << length) {
                return None;
            }
            canonical.limit[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Some(canonical)
    }

    /// Returns length and symbol of the code at the start of 16 bits.
    fn find_code(&self, bits: u32) -> Option<(u32, u8)> {
        let length = (1..=16).find(|&length| bits < self.limit[length as usize])?;
        let index = (bits >> (16 - length)) as i32 + self.offset[length as usize];
        Some((length, *self.spec.values.get(usize::try_from(index).ok()?)?))
    }
}

/// Returns the value of `size` bits (T.81, figure F.12).
#[inline(always)]
pub(crate) fn extend_sign(bits: u32, size: u32) -> i32 {
    let bits = bits as i32;
    if size > 0 && bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
}

/// A lookup table of AC codes.
#[derive(Debug, Clone)]
pub(crate) struct AcTable {
    canonical: CanonicalCode,
    entries: Box<[TableEntry; ENTRIES]>,
    pairs: Box<[CoefficientPair; ENTRIES]>,
}

impl AcTable {
    fn new(spec: &TableSpec) -> Option<Self> {
        let canonical = CanonicalCode::new(spec)?;
        let long = TableEntry::new(0, 0, LONG_CODE, 0);
        let mut table = Self {
            canonical,
            entries: Box::new([long; ENTRIES]),
            pairs: Box::new([CoefficientPair(UNUSUAL_ADVANCE); ENTRIES]),
        };
        table.fill_entries();
        table.fill_pairs();
        Some(table)
    }

    fn fill_entries(&mut self) {
        let spec = self.canonical.spec;
        let (mut code, mut index) = (0usize, 0);
        for length in 1..=LOOKUP_BITS {
            for _ in 0..spec.bits[length as usize] {
                let symbol = spec.values[index];
                let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
                let rest = LOOKUP_BITS - length;
                let entries = &mut self.entries[code << rest..(code + 1) << rest];
                if size == 0 {
                    entries.fill(match run {
                        15 => TableEntry::new(length, 16, ZERO_RUN, 0),
                        _ => TableEntry::new(length, 0, END_OF_BLOCK, 0),
                    });
                } else if size <= rest {
                    for (bits, entries) in entries.chunks_exact_mut(1 << (rest - size)).enumerate() {
                        let value = extend_sign(bits as u32, size);
                        entries.fill(TableEntry::new(length + size, run + 1, 0, value as i16));
                    }
                } else {
                    entries.fill(TableEntry::new(length, run + 1, CODE_ONLY, size as i16));
                }
                code += 1;
                index += 1;
            }
            code <<= 1;
        }
    }

    fn fill_pairs(&mut self) {
        for (lookup, pair) in self.pairs.iter_mut().enumerate() {
            let first = self.entries[lookup];
            let second = self.entries[lookup << first.length() & (ENTRIES - 1)];
            let third_offset = first.length() + second.length();
            let is_whole = third_offset <= LOOKUP_BITS;
            pair.0 = match (first.kind(), second.kind()) {
                (END_OF_BLOCK, _) => CoefficientPair::end_fields(first),
                (0, END_OF_BLOCK) if is_whole => {
                    CoefficientPair::first_fields(first) + CoefficientPair::end_fields(second)
                }
                (0, 0) if is_whole => {
                    let third = self.entries[lookup << third_offset & (ENTRIES - 1)];
                    let ends = third.kind() == END_OF_BLOCK && third_offset + third.length() <= LOOKUP_BITS;
                    let end = if ends { CoefficientPair::end_fields(third) } else { 0 };
                    CoefficientPair::first_fields(first) + CoefficientPair::second_fields(second) + end
                }
                (0, _) => CoefficientPair::first_fields(first),
                _ => UNUSUAL_ADVANCE,
            };
        }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, lookup: usize) -> TableEntry {
        self.entries[lookup & (ENTRIES - 1)]
    }

    #[inline(always)]
    pub(crate) fn pair(&self, lookup: usize) -> CoefficientPair {
        self.pairs[lookup & (ENTRIES - 1)]
    }

    /// Returns length and symbol of a code that is longer than a lookup, at the start of 16 bits.
    #[cold]
    pub(crate) fn find_long_code(&self, bits: u32) -> Option<(u32, u8)> {
        self.canonical.find_code(bits)
    }
}

/// A lookup table of DC codes. The symbols are the sizes of differences.
#[derive(Debug, Clone)]
pub(crate) struct DcTable {
    canonical: CanonicalCode,
    /// Number of bits of a code and its difference in the lower half, and the difference in the upper half; 0 if they are
    /// longer than a lookup.
    lookups: Box<[u32; 1 << DC_LOOKUP_BITS]>,
}

const DC_LOOKUP_BITS: u32 = 10;

impl DcTable {
    fn new(spec: &TableSpec) -> Option<Self> {
        let canonical = CanonicalCode::new(spec)?;
        let codes: usize = spec.bits[1..].iter().map(|&count| usize::from(count)).sum();
        // Lossy images have differences of up to 15 bits. libjpeg-turbo rejects larger ones too.
        if spec.values[..codes].iter().any(|&size| size > 15) {
            return None;
        }
        let mut lookups = Box::new([0; 1 << DC_LOOKUP_BITS]);
        for (lookup, entry) in lookups.iter_mut().enumerate() {
            let bits = (lookup as u32) << (16 - DC_LOOKUP_BITS);
            if let Some((length, size)) = canonical.find_code(bits)
                && length + u32::from(size) <= DC_LOOKUP_BITS
            {
                let size = u32::from(size);
                let difference = extend_sign(bits >> (16 - length - size) & ((1 << size) - 1), size);
                *entry = (length + size) | u32::from(difference as i16 as u16) << 16;
            }
        }
        Some(Self { canonical, lookups })
    }

    /// Returns the length of a code with its difference at the start of 16 bits, and the difference. The length is 0 if both are
    /// longer than a lookup.
    #[inline(always)]
    pub(crate) fn find_difference(&self, bits: u32) -> (u32, i16) {
        let entry = self.lookups[(bits >> (16 - DC_LOOKUP_BITS)) as usize & ((1 << DC_LOOKUP_BITS) - 1)];
        (entry & 0xFFFF, (entry >> 16) as i16)
    }

    /// Returns the length of the code at the start of 16 bits, and the size of the difference after it.
    #[cold]
    pub(crate) fn find_code(&self, bits: u32) -> Option<(u32, u32)> {
        self.canonical.find_code(bits).map(|(length, size)| (length, u32::from(size)))
    }
}

/// Number of AC tables of previous images that are kept, enough for two images.
const SPARE_TABLES: usize = 4;

/// The tables of an image, and tables of previous images for reuse, because most encoders write the standard tables.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    pub(crate) dc: [Option<DcTable>; 4],
    pub(crate) ac: [Option<AcTable>; 4],
    /// Tables of previous images, the most recently used last.
    spare_ac: Vec<AcTable>,
}

impl Tables {
    /// Sets a DC table. Returns `None` if the specification is not a Huffman code.
    pub(crate) fn set_dc(&mut self, index: usize, spec: &TableSpec) -> Option<()> {
        if self.dc[index].as_ref().is_none_or(|table| table.canonical.spec != *spec) {
            self.dc[index] = Some(DcTable::new(spec)?);
        }
        Some(())
    }

    /// Sets an AC table. Returns `None` if the specification is not a Huffman code.
    pub(crate) fn set_ac(&mut self, index: usize, spec: &TableSpec) -> Option<()> {
        if self.ac[index].as_ref().is_some_and(|table| table.canonical.spec == *spec) {
            return Some(());
        }
        let table = match self.spare_ac.iter().position(|table| table.canonical.spec == *spec) {
            Some(found) => self.spare_ac.remove(found),
            None => AcTable::new(spec)?,
        };
        if let Some(displaced) = self.ac[index].replace(table) {
            if self.spare_ac.len() == SPARE_TABLES {
                self.spare_ac.remove(0);
            }
            self.spare_ac.push(displaced);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::{AcTable, TableSpec, Tables};

    /// Returns the specification of a code with one symbol.
    fn spec(symbol: u8) -> TableSpec {
        let mut spec = TableSpec { bits: [0; 17], values: [0; 256] };
        spec.bits[1] = 1;
        spec.values[0] = symbol;
        spec
    }

    fn symbol(table: Option<&AcTable>) -> u8 {
        table.expect("the table was set").canonical.spec.values[0]
    }

    #[test]
    fn reused_and_new_tables_match_their_specification() {
        let mut tables = Tables::default();
        for turn in [1u8, 2, 1, 3, 4, 5, 6, 7, 8, 1, 1, 7, 2] {
            for index in [0, 1] {
                tables.set_ac(index, &spec(turn + 16 * index as u8)).expect("the code is valid");
                assert_eq!(symbol(tables.ac[index].as_ref()), turn + 16 * index as u8);
            }
            assert!(tables.spare_ac.len() <= super::SPARE_TABLES);
        }
    }

    #[test]
    fn a_table_of_an_earlier_image_is_reused() {
        let mut tables = Tables::default();
        tables.set_ac(0, &spec(1)).expect("the code is valid");
        let made = tables.ac[0].as_ref().map(|table| table.pairs.as_ptr());
        tables.set_ac(0, &spec(2)).expect("the code is valid");
        tables.set_ac(0, &spec(1)).expect("the code is valid");
        assert_eq!(tables.ac[0].as_ref().map(|table| table.pairs.as_ptr()), made);
    }
}
