//! Edges between uniformly distributed nodes.

use feedline_data::random::RowRandom;

use super::shape::{GraphShape, independent_label, without_loop};

/// A uniform graph.
pub(super) struct UniformShape {
    /// At most [`u32::MAX`].
    pub(super) nodes: u64,
}

impl GraphShape for UniformShape {
    fn draw(&self, random: &mut RowRandom) -> [u64; 2] {
        let mut node = || u64::from(random.below(self.nodes as u32));
        without_loop([node(), node()], self.nodes)
    }

    fn label(&self, rank: u64) -> u64 {
        independent_label(rank)
    }

    fn seed_candidates(&self) -> u64 {
        self.nodes
    }
}
