//! The only source of randomness of the simulation: a counter mixed with the seed.

use std::fmt;

use feedline_data::random::mix64;

/// Random choices of one run.
#[derive(Debug, Clone)]
pub(crate) struct Dice {
    state: u64,
}

impl Dice {
    /// Creates the choices that a seed determines.
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: mix64(seed ^ 0x5EED) }
    }

    /// Returns 64 random bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix64(self.state)
    }

    /// Returns a whole number in `low..=high`.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.next() % (high - low + 1)
    }

    /// Returns true with a probability of `per_mille` thousandths.
    pub(crate) fn chance(&mut self, per_mille: u64) -> bool {
        self.next() % 1000 < per_mille
    }

    /// Returns one of the options.
    pub(crate) fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.range(0, options.len() as u64 - 1) as usize]
    }
}

/// A hash of the trace of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Trace(pub(crate) u64);

impl fmt::Write for Trace {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3).rotate_left(23);
        }
        Ok(())
    }
}
