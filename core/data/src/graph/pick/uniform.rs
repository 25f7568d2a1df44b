//! Uniform draws without replacement: Floyd's algorithm (Bentley, Floyd: "A sample of brilliance", CACM 1987). It draws one
//! number for each element, whatever the size of the population.

use super::super::draws::DrawStream;

/// Words of the filter of drawn numbers.
const FILTER_WORDS: usize = 8;
/// Bits of the filter. The filter of a smaller population is exact.
const FILTER_BITS: u32 = 64 * FILTER_WORDS as u32;
/// Maximum number of drawn numbers that are compared one by one if the filter has a hit.
const SCAN_MAX: usize = 64;
/// An unused slot of the table. A drawn number is smaller, because it is below a 32-bit size.
const EMPTY: u32 = u32::MAX;

/// Draws distinct numbers. Its buffers are reused.
#[derive(Debug)]
pub(super) struct DistinctDraws {
    /// The numbers drawn so far, for at most [`SCAN_MAX`] numbers.
    drawn: [u32; SCAN_MAX],
    /// The numbers drawn so far as a hash table, for more numbers.
    table: Vec<u32>,
}

impl Default for DistinctDraws {
    fn default() -> Self {
        Self { drawn: [0; SCAN_MAX], table: Vec::new() }
    }
}

impl DistinctDraws {
    /// Draws `count` distinct numbers below `size`, and passes them to `push` in the order of the draws. `count` is less than
    /// `size`. The three methods return the same numbers.
    #[inline]
    pub(super) fn draw(&mut self, size: u32, count: u32, draws: &mut DrawStream, push: impl FnMut(u32)) {
        debug_assert!(count < size);
        if size <= FILTER_BITS {
            draw_with_bits(size, count, draws, push);
        } else if count as usize <= SCAN_MAX {
            self.draw_with_filter(size, count, draws, push);
        } else {
            self.draw_with_table(size, count, draws, push);
        }
    }

    /// Finds repeated numbers with a filter that rarely has a false hit, because drawn numbers are uniform.
    #[inline]
    fn draw_with_filter(&mut self, size: u32, count: u32, draws: &mut DrawStream, mut push: impl FnMut(u32)) {
        let mut filter = [0_u64; FILTER_WORDS];
        for (index, last) in (size - count..size).enumerate() {
            let number = draws.below(last + 1);
            let (word, bit) = filter_bit(number);
            let is_drawn = filter[word] & bit != 0 && self.drawn[..index].contains(&number);
            let chosen = if is_drawn { last } else { number };
            let (word, bit) = filter_bit(chosen);
            filter[word] |= bit;
            self.drawn[index] = chosen;
            push(chosen);
        }
    }

    fn draw_with_table(&mut self, size: u32, count: u32, draws: &mut DrawStream, mut push: impl FnMut(u32)) {
        self.table.clear();
        self.table.resize((count as usize * 2).next_power_of_two(), EMPTY);
        for last in size - count..size {
            let number = draws.below(last + 1);
            let chosen = if self.insert(number) { number } else { last };
            if chosen != number {
                self.insert(last);
            }
            push(chosen);
        }
    }

    /// Adds a number to the table. Returns whether it is new. At most half of the slots are used.
    fn insert(&mut self, number: u32) -> bool {
        let mask = self.table.len() - 1;
        let mut slot = number.wrapping_mul(0x9E37_79B1) as usize & mask;
        while self.table[slot] != EMPTY {
            if self.table[slot] == number {
                return false;
            }
            slot = (slot + 1) & mask;
        }
        self.table[slot] = number;
        true
    }
}

/// Marks the drawn numbers of a small population in a bit set.
#[inline]
fn draw_with_bits(size: u32, count: u32, draws: &mut DrawStream, mut push: impl FnMut(u32)) {
    let mut drawn = [0_u64; FILTER_WORDS];
    for last in size - count..size {
        let number = draws.below(last + 1);
        let (word, bit) = filter_bit(number);
        let chosen = if drawn[word] & bit != 0 { last } else { number };
        let (word, bit) = filter_bit(chosen);
        drawn[word] |= bit;
        push(chosen);
    }
}

/// Returns the word and the bit of a number.
#[inline]
fn filter_bit(number: u32) -> (usize, u64) {
    ((number / 64) as usize % FILTER_WORDS, 1 << (number % 64))
}
