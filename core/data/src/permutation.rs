//! A seeded permutation of `0..len` that can be computed at any index: a Feistel network with cycle walking. Memory use
//! does not depend on `len`.
//!
//! Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), the generalised-Feistel and
//! cycle-walking constructions.

use crate::random::mix64;

const FEISTEL_ROUNDS: usize = 6;
/// A Feistel network shuffles domains below 2^6 poorly. Cycle walking from a larger domain costs little.
const MIN_HALF_BITS: u32 = 3;

/// A bijection of `0..len`.
#[derive(Debug, Clone)]
pub struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; FEISTEL_ROUNDS],
}

impl Permutation {
    /// Creates the permutation of `0..len` that `key` selects.
    pub fn new(len: u64, key: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let half_bits = bits.div_ceil(2).max(MIN_HALF_BITS);
        let mut keys = [0; FEISTEL_ROUNDS];
        for (round, slot) in keys.iter_mut().enumerate() {
            *slot = mix64(key ^ mix64(round as u64 + 1));
        }
        Self { len, half_bits, keys }
    }

    /// Returns the value that the permutation maps `index` to. `index` must be below `len`.
    pub fn apply(&self, index: u64) -> u64 {
        debug_assert!(index < self.len);
        let mut value = index;
        loop {
            value = self.encrypt(value);
            if value < self.len {
                return value;
            }
        }
    }

    /// Returns the index that the permutation maps to `value`. `value` must be below `len`.
    pub fn invert(&self, value: u64) -> u64 {
        debug_assert!(value < self.len);
        let mut index = value;
        loop {
            index = self.decrypt(index);
            if index < self.len {
                return index;
            }
        }
    }

    fn encrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys {
            (left, right) = (right, left ^ (mix64(right ^ key) & mask));
        }
        left << self.half_bits | right
    }

    fn decrypt(&self, value: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut left, mut right) = (value >> self.half_bits, value & mask);
        for key in self.keys.into_iter().rev() {
            (left, right) = (right ^ (mix64(left ^ key) & mask), left);
        }
        left << self.half_bits | right
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_value_appears_exactly_once(len in 1u64..3_000, key: u64) {
            let permutation = Permutation::new(len, key);
            let mut seen = vec![false; len as usize];
            for index in 0..len {
                let value = permutation.apply(index) as usize;
                prop_assert!(!seen[value]);
                seen[value] = true;
                prop_assert_eq!(permutation.invert(value as u64), index);
            }
        }
    }

    #[test]
    fn values_are_uniform_for_tiny_domains() {
        for len in [2u64, 3, 5, 17] {
            let mut counts = vec![0u32; len as usize];
            let keys = 6_000;
            for key in 0..keys {
                counts[Permutation::new(len, key).apply(0) as usize] += 1;
            }
            let expected = keys as f64 / len as f64;
            for count in counts {
                assert!((f64::from(count) - expected).abs() < 6.0 * expected.sqrt(), "{len}: {count}");
            }
        }
    }

    #[test]
    fn large_domains_are_computed_at_any_index() {
        let permutation = Permutation::new(1 << 50, 3);
        assert!(permutation.apply(123_456_789_012) < 1 << 50);
    }
}
