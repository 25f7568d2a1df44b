//! Draws of a node for a negative: uniform, or by the number of its edges.

use super::draws::DrawStream;
use super::sample_error::SampleError;
use super::topology::RelationView;

/// The distribution of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeDraws<'a> {
    /// The number of nodes.
    count: u32,
    /// The relation whose targets are the nodes, with its index, if the draws depend on the degrees.
    degrees: Option<(u16, RelationView<'a>)>,
}

impl<'a> NodeDraws<'a> {
    /// All nodes have the same probability.
    pub(super) fn uniform(count: u32) -> Self {
        Self { count, degrees: None }
    }

    /// The probability of a target of a relation is proportional to the power 3/4 of its number of edges.
    pub(super) fn by_degree(relation: u16, view: RelationView<'a>) -> Result<Self, SampleError> {
        if view.sources.is_empty() {
            return Err(SampleError::NoDegrees { relation });
        }
        let count = view.offsets.len().saturating_sub(1) as u32;
        Ok(Self { count, degrees: Some((relation, view)) })
    }

    /// The number of nodes.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Whether a node has a probability above 0.
    pub(super) fn can_draw(&self, node: u32) -> bool {
        match &self.degrees {
            None => node < self.count,
            Some((_, view)) => view.edges_of(node).is_some_and(|edges| !edges.is_empty()),
        }
    }

    /// Draws a node.
    pub(super) fn draw(&self, draws: &mut DrawStream) -> Result<u32, SampleError> {
        let Some((relation, view)) = &self.degrees else { return Ok(draws.below(self.count)) };
        loop {
            // The target of a uniform edge has a probability proportional to its degree. It is accepted with the probability
            // degree^(-1/4).
            let position = draws.below_u64(view.sources.len() as u64);
            let after = view.offsets.partition_point(|offset| *offset <= position);
            let node = after.saturating_sub(1) as u32;
            let edges = view.edges_of(node).filter(|edges| edges.contains(&position));
            let edges = edges.ok_or(SampleError::NodeOffsets { relation: *relation, node })?;
            if is_accepted(draws.next_word(), edges.end - edges.start) {
                return Ok(node);
            }
        }
    }
}

/// Whether `word / 2^32` is less than `degree^(-1/4)`, exactly: whether `word^4 * degree` is less than 2^128.
fn is_accepted(word: u32, degree: u64) -> bool {
    u128::from(word).pow(4).checked_mul(u128::from(degree)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_accepted_with_the_fourth_root_of_its_degree() {
        for (degree, accepted) in [(1_u64, 1_u64 << 32), (16, 1 << 31), (256, 1 << 30), (1 << 32, 1 << 24)] {
            let last = (accepted - 1) as u32;
            assert!(is_accepted(0, degree) && is_accepted(last, degree), "{degree}");
            assert!(last == u32::MAX || !is_accepted(last + 1, degree), "{degree}");
        }
        // 2^32 * 3^(-1/4) is 3,263,469,420.2.
        assert!(is_accepted(3_263_469_420, 3) && !is_accepted(3_263_469_421, 3));
        assert!(!is_accepted(u32::MAX, 2));
    }

    #[test]
    fn invalid_offsets_cause_an_error() {
        let view = RelationView {
            source_type: 0,
            target_type: 0,
            offsets: &[0, 9, 3],
            sources: &[0, 1, 0],
            weights: None,
            times: None,
        };
        let nodes = NodeDraws::by_degree(4, view).expect("there are edges");
        let mut draws = DrawStream::of_negative([1, 2], [3, 4], 0);
        assert_eq!(nodes.draw(&mut draws), Err(SampleError::NodeOffsets { relation: 4, node: 0 }));
        assert!(!nodes.can_draw(0) && !nodes.can_draw(7));
        let empty = NodeDraws::by_degree(4, RelationView { sources: &[], ..view });
        assert_eq!(empty.err(), Some(SampleError::NoDegrees { relation: 4 }));
    }
}
