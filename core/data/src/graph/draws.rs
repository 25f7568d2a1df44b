//! The random draws of graph batches. A draw is a pure function of the job's seed, the operator, the position of a seed row,
//! the node, the relation, the hop, and the number of the draw. `docs/graphs.md` defines the draws.

use serde::{Deserialize, Serialize};

use super::seeds::SeedRow;
use crate::random::{mix64, philox4x32_blocks};

/// When the neighbors of a node are drawn again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resample {
    /// In each batch. With disjoint trees, in each tree.
    #[default]
    Batch,
    /// In each epoch. All batches of an epoch contain the same neighbors of a node.
    Epoch,
    /// Never. All batches of all epochs contain the same neighbors of a node.
    Never,
}

impl Resample {
    /// The hop in the counter of the draws. If a node keeps its neighbors, they do not depend on the hop either.
    pub(super) fn hop_in_counter(self, hop: usize) -> u8 {
        if self == Self::Batch { hop as u8 } else { 0 }
    }
}

/// The part of the key that all batches of a job share.
#[derive(Debug, Clone, Copy)]
pub(super) struct DrawScope {
    pub(super) seed: u64,
    /// The number of the operator in the pipeline.
    pub(super) operator: u32,
    pub(super) resample: Resample,
}

impl DrawScope {
    /// Returns the key of a batch whose first seed row is `row`. With disjoint trees, returns the key of the tree of one seed
    /// of the row, and `slot` is the number of the seed in its row.
    pub(super) fn key(self, row: &SeedRow, slot: Option<u16>) -> [u32; 2] {
        let mut key = mix64(self.seed ^ mix64(u64::from(self.operator) + 1));
        if self.resample != Resample::Never {
            key = mix64(key ^ mix64(u64::from(row.epoch) + 1));
        }
        if self.resample == Resample::Batch {
            key = mix64(key ^ mix64(row.position.wrapping_add(1)));
            if let Some(slot) = slot {
                key = mix64(key ^ mix64(u64::from(slot) + 1));
            }
        }
        [key as u32, (key >> 32) as u32]
    }
}

/// The bit of the third word of a counter that distinguishes the draws of negatives from those of neighbors.
const NEGATIVE: u32 = 1 << 31;

/// The words of a block.
const BLOCK_WORDS: usize = 4;
/// Number of blocks that are computed together for few draws.
const FEW_BLOCKS: usize = 2;
/// Number of blocks that are computed together for many draws.
const MANY_BLOCKS: usize = 4;

/// The draws for the neighbors of one node in one relation and hop, or for one negative of a link.
#[derive(Debug, Clone)]
pub(super) struct DrawStream {
    key: [u32; 2],
    counter: [u32; 4],
    /// Whether many blocks are computed together.
    expects_many: bool,
    /// The blocks that were computed last.
    blocks: [[u32; BLOCK_WORDS]; MANY_BLOCKS],
    used_words: usize,
    filled_words: usize,
}

impl DrawStream {
    /// Creates the draws. `hop` is the result of [`Resample::hop_in_counter`].
    #[inline]
    pub(super) fn new(key: [u32; 2], node: u32, relation: u16, hop: u8) -> Self {
        // The second word is the upper half of a 64-bit node id.
        Self::with_counter(key, [node, 0, u32::from(relation) | u32::from(hop) << 16, 0])
    }

    /// Creates the draws of a negative of a link. `number` is the number of the negative, below 2^31.
    pub(super) fn of_negative(key: [u32; 2], [source, target]: [u32; 2], number: u32) -> Self {
        Self::with_counter(key, [source, target, NEGATIVE | number, 0])
    }

    #[inline]
    fn with_counter(key: [u32; 2], counter: [u32; 4]) -> Self {
        let blocks = [[0; BLOCK_WORDS]; MANY_BLOCKS];
        Self { key, counter, expects_many: false, blocks, used_words: 0, filled_words: 0 }
    }

    /// Prepares for this number of draws. The draws do not depend on it.
    #[inline]
    pub(super) fn prepare(&mut self, draws: u32) {
        self.expects_many = draws as usize > FEW_BLOCKS * BLOCK_WORDS;
    }

    /// Returns the next 32 random bits.
    #[inline]
    pub(super) fn next_word(&mut self) -> u32 {
        if self.used_words == self.filled_words {
            self.fill();
        }
        let word = self.blocks[self.used_words / BLOCK_WORDS % MANY_BLOCKS][self.used_words % BLOCK_WORDS];
        self.used_words += 1;
        word
    }

    #[inline]
    fn fill(&mut self) {
        let blocks = if self.expects_many {
            self.blocks = many_blocks(self.counter, self.key);
            MANY_BLOCKS
        } else {
            [self.blocks[0], self.blocks[1]] = few_blocks(self.counter, self.key);
            FEW_BLOCKS
        };
        self.counter[3] = self.counter[3].wrapping_add(blocks as u32);
        self.filled_words = blocks * BLOCK_WORDS;
        self.used_words = 0;
    }

    /// Returns a uniform integer in [0, bound) without bias; `bound` must not be 0. Rejects words as Lemire does ("Fast random
    /// integer generation in an interval", 2019).
    #[inline]
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        debug_assert!(bound > 0);
        let mut product = u64::from(self.next_word()) * u64::from(bound);
        if (product as u32) < bound {
            let threshold = bound.wrapping_neg() % bound;
            while (product as u32) < threshold {
                product = u64::from(self.next_word()) * u64::from(bound);
            }
        }
        (product >> 32) as u32
    }

    /// Returns a uniform integer in [0, bound) without bias, as [`below`](Self::below) does; `bound` must not be 0.
    pub(super) fn below_u64(&mut self, bound: u64) -> u64 {
        debug_assert!(bound > 0);
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let low = u64::from(self.next_word());
            let word = u64::from(self.next_word()) << 32 | low;
            let product = u128::from(word) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }
}

/// Not inline, because many loops draw, and the code of all blocks is long.
#[inline(never)]
fn few_blocks(counter: [u32; 4], key: [u32; 2]) -> [[u32; BLOCK_WORDS]; FEW_BLOCKS] {
    philox4x32_blocks(counter, key)
}

/// Not inline, as [`few_blocks`].
#[inline(never)]
fn many_blocks(counter: [u32; 4], key: [u32; 2]) -> [[u32; BLOCK_WORDS]; MANY_BLOCKS] {
    philox4x32_blocks(counter, key)
}
