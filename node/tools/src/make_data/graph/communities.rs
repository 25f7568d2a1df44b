//! Communities with power-law degrees.
//!
//! The expected degree of a node is proportional to a weight (Chung, Lu: "Connected components in random graphs with given
//! expected degree sequences", 2002). The weight of the node of rank r in its community is (r + 1)^(-1 / (exponent - 1)),
//! so that the degrees have a power-law distribution. Sources and targets have the same weights.

use feedline_data::random::RowRandom;

use super::shape::GraphShape;

/// One of this number of edges is between communities.
const EDGES_PER_OUTSIDE_EDGE: u32 = 10;
/// The number of edges inside communities of degree exponent 2.2 is the integral of r^(-5 / 6), which is r^(1 / 6).
const ROOT: i32 = 6;

/// A graph of communities. Ranks number the nodes of one community after another.
pub(super) struct CommunitiesShape {
    nodes: u64,
    communities: u32,
    seeds_in: u32,
    /// The size of the smallest communities. The others have one node more.
    size: u64,
    /// The ends of the sixth roots of the ranks, for both sizes.
    root_spans: [f64; 2],
}

impl CommunitiesShape {
    /// Creates the structure. There are at most as many communities as nodes.
    pub(super) fn new(nodes: u64, communities: u32, seeds_in: u32) -> Self {
        let size = nodes / u64::from(communities);
        let root_span = |size: u64| ((size + 1) as f64).powf(1.0 / f64::from(ROOT)) - 1.0;
        Self { nodes, communities, seeds_in, size, root_spans: [root_span(size), root_span(size + 1)] }
    }

    /// The rank of the first node of a community.
    fn start(&self, community: u32) -> u64 {
        (u128::from(self.nodes) * u128::from(community) / u128::from(self.communities)) as u64
    }

    fn size_of(&self, community: u32) -> u64 {
        self.start(community + 1) - self.start(community)
    }

    /// Draws a node of a community by its weight.
    fn member(&self, community: u32, random: &mut RowRandom) -> u64 {
        let size = self.size_of(community);
        let root = 1.0 + random.next_f64() * self.root_spans[usize::from(size > self.size)];
        let square = root * root;
        let rank = (square * square * square - 1.0) as u64;
        self.start(community) + rank.min(size - 1)
    }
}

impl GraphShape for CommunitiesShape {
    fn draw(&self, random: &mut RowRandom) -> [u64; 2] {
        let community = random.below(self.communities);
        let target = self.member(community, random);
        let is_outside = random.below(EDGES_PER_OUTSIDE_EDGE) == 0 && self.communities > 1;
        let other = match is_outside {
            true => (community + 1 + random.below(self.communities - 1)) % self.communities,
            false => community,
        };
        let source = self.member(other, random);
        if source != target {
            return [source, target];
        }
        let start = self.start(community);
        [start + (source - start + 1) % self.size_of(community), target]
    }

    /// Returns the community.
    fn label(&self, rank: u64) -> u64 {
        let end = u128::from(rank + 1) * u128::from(self.communities) - 1;
        (end / u128::from(self.nodes)) as u64
    }

    fn seed_candidates(&self) -> u64 {
        self.start(self.seeds_in)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_is_in_the_community_that_contains_it() {
        for (nodes, communities) in [(10, 3), (64, 64), (1_000, 7), (5, 1)] {
            let shape = CommunitiesShape::new(nodes, communities, 1);
            for community in 0..communities {
                let ranks = shape.start(community)..shape.start(community + 1);
                assert!((shape.size..=shape.size + 1).contains(&(ranks.end - ranks.start)));
                assert!(ranks.into_iter().all(|rank| shape.label(rank) == u64::from(community)));
            }
            assert_eq!(shape.start(communities), nodes);
        }
    }

    #[test]
    fn edges_have_two_nodes() {
        for (nodes, communities) in [(2, 1), (3, 1), (7, 3), (40, 2)] {
            let shape = CommunitiesShape::new(nodes, communities, 1);
            for edge in 0..500 {
                let [source, target] = shape.draw(&mut RowRandom::new(1, 0, 0, edge));
                assert!(source < nodes && target < nodes && source != target, "{source} {target}");
            }
        }
    }
}
