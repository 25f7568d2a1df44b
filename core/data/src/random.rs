//! Counter-based random numbers. A draw is a pure function of seed, operator, pass, row id and draw number, so no generator
//! state is shared between rows.

use std::array;

/// Multipliers and Weyl constants of Philox4x32 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
/// 1, 2, 3", SC 2011).
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Philox4x32-10: 128 random bits for a 128-bit counter and a 64-bit key.
#[inline]
pub fn philox4x32(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let low = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let high = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// Computes blocks of [`philox4x32`] whose counters differ only in the last word, which begins with that of `counter`. Each operation
/// is on one word of all blocks, so the compiler can use vector instructions.
#[inline]
pub fn philox4x32_blocks<const BLOCKS: usize>(counter: [u32; 4], mut key: [u32; 2]) -> [[u32; 4]; BLOCKS] {
    let mut words = counter.map(|word| [word; BLOCKS]);
    for (word, number) in words[3].iter_mut().zip(0..) {
        *word = word.wrapping_add(number);
    }
    for _ in 0..10 {
        let low = words[0].map(|word| u64::from(MULTIPLIERS[0]) * u64::from(word));
        let high = words[2].map(|word| u64::from(MULTIPLIERS[1]) * u64::from(word));
        words = [
            array::from_fn(|block| (high[block] >> 32) as u32 ^ words[1][block] ^ key[0]),
            high.map(|product| product as u32),
            array::from_fn(|block| (low[block] >> 32) as u32 ^ words[3][block] ^ key[1]),
            low.map(|product| product as u32),
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    array::from_fn(|block| words.map(|word| word[block]))
}

/// The random draws of one operator for one row.
///
/// The draws of different operators, rows and passes are independent. The draws of one row in one pass are the same on
/// every worker.
#[derive(Debug, Clone)]
pub struct RowRandom {
    key: [u32; 2],
    row: u64,
    pass: u32,
    draws: u32,
    buffered_draws: [u32; 4],
    used_draws: usize,
}

impl RowRandom {
    /// Creates the draws of operator number `operator` for row `row_id`. `pass` is counted over all epochs.
    pub fn new(seed: u64, operator: u32, pass: u32, row_id: u64) -> Self {
        let mixed = mix64(seed ^ mix64(u64::from(operator) + 1));
        Self {
            key: [mixed as u32, (mixed >> 32) as u32],
            row: row_id,
            pass,
            draws: 0,
            buffered_draws: [0; 4],
            used_draws: 4,
        }
    }

    /// Returns the next 32 random bits.
    pub fn next_u32(&mut self) -> u32 {
        if self.used_draws == 4 {
            let counter = [self.row as u32, (self.row >> 32) as u32, self.pass, self.draws];
            self.buffered_draws = philox4x32(counter, self.key);
            self.draws += 1;
            self.used_draws = 0;
        }
        self.used_draws += 1;
        self.buffered_draws[self.used_draws - 1]
    }

    /// Returns a uniform number in [0, 1) with 53 random bits.
    pub fn next_f64(&mut self) -> f64 {
        let high = u64::from(self.next_u32());
        let low = u64::from(self.next_u32());
        ((high << 32 | low) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns a uniform number in [low, high).
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next_f64()
    }

    /// Returns a uniform integer in [0, bound); `bound` must not be 0. The bias is below 2^-32.
    pub fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        let wide = u64::from(self.next_u32()) << 32 | u64::from(self.next_u32());
        ((u128::from(wide) * u128::from(bound)) >> 64) as u32
    }
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", OOPSLA 2014):
/// a bijection of 64 bits in which every input bit reaches every output bit.
pub fn mix64(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are from Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn philox_matches_the_known_answer_tests() {
        assert_eq!(philox4x32([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox4x32([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox4x32([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], [0xa409_3822, 0x299f_31d0]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn several_blocks_are_those_of_single_calls() {
        for (counter, key) in [([1, 2, 3, 0], [4, 5]), ([u32::MAX, 7, 9, u32::MAX - 1], [0, u32::MAX])] {
            let [first, second, third, block] = counter;
            let single = |number: u32| philox4x32([first, second, third, block.wrapping_add(number)], key);
            assert_eq!(philox4x32_blocks::<4>(counter, key), [0, 1, 2, 3].map(single));
            assert_eq!(philox4x32_blocks::<2>(counter, key), [0, 1].map(single));
        }
    }

    #[test]
    fn draws_are_uniform_and_differ_by_row_pass_and_operator() {
        let mut sum = 0.0;
        for row in 0..20_000 {
            sum += RowRandom::new(7, 1, 0, row).next_f64();
        }
        assert!((sum / 20_000.0 - 0.5).abs() < 0.01);
        let first = |operator, pass, row| RowRandom::new(7, operator, pass, row).next_u32();
        assert_ne!(first(1, 0, 0), first(2, 0, 0));
        assert_ne!(first(1, 0, 0), first(1, 1, 0));
        assert_ne!(first(1, 0, 0), first(1, 0, 1));
        assert_eq!(first(1, 0, 5), first(1, 0, 5));
    }

    #[test]
    fn below_returns_every_value_under_the_bound() {
        let mut seen = [0u32; 7];
        let mut random = RowRandom::new(1, 0, 0, 0);
        for _ in 0..7_000 {
            seen[random.below(7) as usize] += 1;
        }
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
