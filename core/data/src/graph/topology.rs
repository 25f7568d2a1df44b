//! The topology of a graph as slices: for each relation, the sources of the edges of each target node (compressed sparse
//! columns). The owner of the slices may be a file, a memory map or an array of the user.

use std::ops::Range;

/// The node types and relations of a graph.
#[derive(Debug, Clone, Copy)]
pub struct GraphView<'a> {
    /// The number of nodes of each type.
    pub node_counts: &'a [u32],
    /// The relations.
    pub relations: &'a [RelationView<'a>],
}

/// The edges of one relation, by target. A position is the index of an edge in this order.
#[derive(Debug, Clone, Copy)]
pub struct RelationView<'a> {
    /// The type of the source nodes.
    pub source_type: u16,
    /// The type of the target nodes.
    pub target_type: u16,
    /// The position of the first edge of each target node, and the number of edges.
    pub offsets: &'a [u64],
    /// The source of each edge. The edges of a target are in ascending order of their sources, or of times and sources if the
    /// relation has times.
    pub sources: &'a [u32],
    /// The sums of the weights of the edges of a target, up to and including each edge. `None` for uniform sampling.
    pub weights: Option<&'a [u32]>,
    /// The time of each edge. Must be present if the edges are in the order of their times.
    pub times: Option<&'a [i64]>,
}

impl RelationView<'_> {
    /// Whether the types exist, and the lengths of the slices match. Takes constant time.
    pub(super) fn has_matching_lengths(&self, node_counts: &[u32]) -> bool {
        let count = |node_type: u16| node_counts.get(usize::from(node_type)).copied();
        let Some(targets) = count(self.target_type) else { return false };
        count(self.source_type).is_some()
            && self.offsets.len() as u64 == u64::from(targets) + 1
            && self.weights.is_none_or(|weights| weights.len() == self.sources.len())
            && self.times.is_none_or(|times| times.len() == self.sources.len())
    }

    /// Returns the positions of the edges of a target. `None` if the offsets are invalid.
    #[inline]
    pub(super) fn edges_of(&self, target: u32) -> Option<Range<u64>> {
        let start = *self.offsets.get(target as usize)?;
        let end = *self.offsets.get(target as usize + 1)?;
        let is_valid = start <= end && end <= self.sources.len() as u64 && end - start <= u64::from(u32::MAX);
        is_valid.then_some(start..end)
    }

    /// Checks all edges. A sampler also accepts slices that are not checked: it returns an error if it finds an invalid entry, and
    /// samples that are not random if edges are in the wrong order.
    ///
    /// # Errors
    /// Returns a message that names the first invalid entry.
    pub fn check(&self, node_counts: &[u32]) -> Result<(), String> {
        self.check_ends(node_counts)?;
        let source_count = node_counts[usize::from(self.source_type)];
        if let Some(position) = self.sources.iter().position(|source| *source >= source_count) {
            return Err(format!(
                "invalid source {} at position {position}: the source type has {source_count} nodes",
                self.sources[position]
            ));
        }
        self.targets().try_for_each(|target| self.check_target(target))
    }

    /// Checks the lengths of the slices and the offsets, but neither the sources nor the order of the edges.
    ///
    /// # Errors
    /// Returns a message that names the first invalid entry.
    pub fn check_offsets(&self, node_counts: &[u32]) -> Result<(), String> {
        self.check_ends(node_counts)?;
        self.targets().try_for_each(|target| self.checked_edges_of(target).map(drop))
    }

    /// Checks the lengths of the slices, and the first and the last offset.
    fn check_ends(&self, node_counts: &[u32]) -> Result<(), String> {
        if !self.has_matching_lengths(node_counts) {
            return Err(format!(
                "the lengths of the arrays do not match: {} offsets, {} sources, {} weights and {} times for {} target nodes",
                self.offsets.len(),
                self.sources.len(),
                self.weights.map_or(0, <[u32]>::len),
                self.times.map_or(0, <[i64]>::len),
                node_counts.get(usize::from(self.target_type)).copied().unwrap_or(0)
            ));
        }
        let (first, last) = (self.offsets[0], self.offsets[self.offsets.len() - 1]);
        if first != 0 || last != self.sources.len() as u64 {
            return Err(format!(
                "invalid offsets: they range from {first} to {last}, but the relation has {} edges",
                self.sources.len()
            ));
        }
        Ok(())
    }

    /// The target nodes. The lengths of the slices match.
    fn targets(&self) -> Range<u32> {
        0..(self.offsets.len() - 1) as u32
    }

    fn checked_edges_of(&self, target: u32) -> Result<Range<u64>, String> {
        self.edges_of(target).ok_or_else(|| {
            format!(
                "invalid offset at index {}: the offsets must ascend to the number of edges, and a node has at most {} edges",
                u64::from(target) + 1,
                u32::MAX
            )
        })
    }

    fn check_target(&self, target: u32) -> Result<(), String> {
        let edges = self.checked_edges_of(target)?;
        let edges = edges.start as usize..edges.end as usize;
        let sources = &self.sources[edges.clone()];
        let unsorted = match self.times {
            None => sources.windows(2).position(|pair| pair[0] > pair[1]),
            Some(times) => {
                let times = &times[edges.clone()];
                let key = |index: usize| (times[index], sources[index]);
                (1..sources.len()).position(|index| key(index - 1) > key(index))
            }
        };
        if let Some(index) = unsorted {
            let position = edges.start + index + 1;
            return Err(format!(
                "the edges of node {target} are not sorted: position {position} must be before its predecessor"
            ));
        }
        let sums = self.weights.map(|weights| &weights[edges.clone()]).unwrap_or_default();
        match sums.windows(2).position(|pair| pair[0] > pair[1]) {
            Some(index) => Err(format!(
                "the weights of node {target} are invalid: the sum at position {} is smaller than the sum before it",
                edges.start + index + 1
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: RelationView<'static> = RelationView {
        source_type: 0,
        target_type: 1,
        offsets: &[0, 2, 2, 5],
        sources: &[1, 3, 0, 0, 2],
        weights: Some(&[4, 9, 0, 7, 7]),
        times: None,
    };

    #[test]
    fn a_valid_relation_passes_the_check() {
        assert_eq!(VALID.check(&[4, 3]), Ok(()));
        let times: &[i64] = &[-5, 7, 1, 1, 1];
        assert_eq!(RelationView { times: Some(times), ..VALID }.check(&[4, 3]), Ok(()));
        assert_eq!(VALID.edges_of(2), Some(2..5));
        assert_eq!(VALID.edges_of(3), None);
        assert_eq!(VALID.edges_of(u32::MAX), None);
    }

    #[test]
    fn the_first_invalid_entry_is_named() {
        let message = |relation: RelationView<'_>| relation.check(&[4, 3]).unwrap_err();
        assert_eq!(
            message(RelationView { offsets: &[0, 2, 5], ..VALID }),
            "the lengths of the arrays do not match: 3 offsets, 5 sources, 5 weights and 0 times for 3 target nodes"
        );
        assert_eq!(
            message(RelationView { offsets: &[0, 2, 2, 4], ..VALID }),
            "invalid offsets: they range from 0 to 4, but the relation has 5 edges"
        );
        assert_eq!(
            message(RelationView { offsets: &[0, 2, 1, 5], ..VALID }),
            "invalid offset at index 2: the offsets must ascend to the number of edges, and a node has at most 4294967295 edges"
        );
        assert_eq!(
            message(RelationView { sources: &[1, 4, 0, 0, 2], ..VALID }),
            "invalid source 4 at position 1: the source type has 4 nodes"
        );
        assert_eq!(
            message(RelationView { sources: &[1, 3, 0, 2, 0], ..VALID }),
            "the edges of node 2 are not sorted: position 4 must be before its predecessor"
        );
        let times: &[i64] = &[2, 1, 0, 0, 0];
        assert_eq!(
            message(RelationView { times: Some(times), ..VALID }),
            "the edges of node 0 are not sorted: position 1 must be before its predecessor"
        );
        let weights: &[u32] = &[4, 9, 0, 7, 6];
        assert_eq!(
            message(RelationView { weights: Some(weights), ..VALID }),
            "the weights of node 2 are invalid: the sum at position 4 is smaller than the sum before it"
        );
        assert!(RelationView { target_type: 2, ..VALID }.check(&[4, 3]).is_err());
    }

    #[test]
    fn a_check_of_the_offsets_ignores_sources() {
        let check = |relation: RelationView<'_>| relation.check_offsets(&[4, 3]);
        assert_eq!(check(RelationView { sources: &[9, 3, 0, 2, 0], ..VALID }), Ok(()));
        for offsets in [&[0_u64, 2, 5][..], &[0, 2, 2, 4], &[0, 2, 1, 5]] {
            let invalid = RelationView { offsets, ..VALID };
            assert_eq!(check(invalid), invalid.check(&[4, 3]));
            assert!(check(invalid).is_err());
        }
    }
}
