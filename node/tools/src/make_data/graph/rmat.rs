//! R-MAT graphs (Chakrabarti, Zhan, Faloutsos: "R-MAT: a recursive model for graph mining", SDM 2004) with the parameters of
//! Graph500: each bit of the two nodes of an edge selects a quadrant of the adjacency matrix.

use feedline_data::random::RowRandom;

use super::shape::{GraphShape, independent_label, without_loop};

/// The ends of the first three quadrants, whose probabilities are 0.57, 0.19 and 0.19, as numbers of 16 bits.
const QUADRANT_ENDS: [u32; 3] = [37_356, 49_807, 62_259];

/// An R-MAT graph. If the number of nodes is not a power of two, neighboring rows and columns of the matrix are merged.
pub(super) struct RMatShape {
    /// At most [`u32::MAX`].
    nodes: u64,
    /// The number of bits of a row of the matrix.
    scale: u32,
}

impl RMatShape {
    pub(super) fn new(nodes: u64) -> Self {
        Self { nodes, scale: u64::BITS - nodes.saturating_sub(1).leading_zeros() }
    }
}

impl GraphShape for RMatShape {
    fn draw(&self, random: &mut RowRandom) -> [u64; 2] {
        let (mut source, mut target, mut word) = (0_u64, 0_u64, 0);
        for level in 0..self.scale {
            word = if level % 2 == 0 { random.next_u32() } else { word >> 16 };
            let quadrant = QUADRANT_ENDS.partition_point(|end| *end <= word & 0xFFFF) as u64;
            source = 2 * source + quadrant / 2;
            target = 2 * target + quadrant % 2;
        }
        without_loop([source, target].map(|node| (node * self.nodes) >> self.scale), self.nodes)
    }

    fn label(&self, rank: u64) -> u64 {
        independent_label(rank)
    }

    fn seed_candidates(&self) -> u64 {
        self.nodes
    }
}
