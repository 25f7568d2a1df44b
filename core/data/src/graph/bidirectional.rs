//! Bidirectional graphs: the reverse of each sampled edge is added, and duplicates are merged, as `to_bidirectional` of PyG does.

use super::sample_error::SampleError;
use super::sampled::{SampledEdges, SampledGraph};
use super::topology::RelationView;

/// The bit of an entry that marks the reverse of a sampled edge. The lower bits are the index of the sampled edge.
const REVERSED: u64 = 1 << 31;

/// Makes sampled graphs bidirectional. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct BidirectionalEdges {
    /// The merged edges of each relation.
    merged: Vec<SampledEdges>,
    /// The number of entries of each target, then the index of its next entry, and then the index after its last entry.
    ends: Vec<usize>,
    /// The edges by target. The upper half is the source, so that sorting an entry as a number sorts by source, and sampled edges
    /// are before reversed ones.
    entries: Vec<u64>,
}

impl BidirectionalEdges {
    /// The size of the memory that is kept for the next batch.
    pub(super) fn memory_bytes(&self) -> usize {
        let merged: usize = self.merged.iter().map(SampledEdges::memory_bytes).sum();
        merged + self.ends.capacity() * size_of::<usize>() + self.entries.capacity() * size_of::<u64>()
    }

    /// Adds to the edges of each relation the reverse of the edges of its reverse relation. `reverses` contains the reverse
    /// relation of each relation; relations without one do not change. A relation has at most `max_edges` edges.
    pub(super) fn add(
        &mut self,
        relations: &[RelationView<'_>],
        reverses: &[Option<u16>],
        max_edges: u32,
        output: &mut SampledGraph,
    ) -> Result<(), SampleError> {
        self.merged.resize_with(relations.len(), SampledEdges::default);
        for (relation, (view, reverse)) in relations.iter().zip(reverses).enumerate() {
            let own = &output.edges[relation];
            let Some(reverse) = reverse.map(usize::from) else {
                self.merged[relation].clone_from(own);
                continue;
            };
            let targets = output.nodes[usize::from(view.target_type)].ids.len();
            self.sort(own, &output.edges[reverse], targets);
            self.merge(relation, own, &output.edges[reverse]);
            if self.merged[relation].sources.len() > max_edges as usize {
                return Err(SampleError::EdgeLimit { relation: relation as u16, limit: max_edges });
            }
        }
        std::mem::swap(&mut self.merged, &mut output.edges);
        Ok(())
    }

    /// Sorts the edges of a relation and the reverse of other edges by target, and then by source.
    fn sort(&mut self, own: &SampledEdges, reverse: &SampledEdges, targets: usize) {
        self.ends.clear();
        self.ends.resize(targets, 0);
        for hop in own.hops() {
            for (target, edges) in hop.edges_by_target() {
                self.ends[target as usize] += edges.len();
            }
        }
        for target in &reverse.sources {
            self.ends[*target as usize] += 1;
        }
        let mut first = 0;
        for end in &mut self.ends {
            first += std::mem::replace(end, first);
        }
        self.entries.clear();
        self.entries.resize(first, 0);
        for hop in own.hops() {
            for (target, edges) in hop.edges_by_target() {
                for edge in edges {
                    let source = u64::from(own.sources[edge as usize]);
                    self.push(target, source << 32 | u64::from(edge));
                }
            }
        }
        for hop in reverse.hops() {
            for (source, edges) in hop.edges_by_target() {
                for edge in edges {
                    let target = reverse.sources[edge as usize];
                    self.push(target, u64::from(source) << 32 | REVERSED | u64::from(edge));
                }
            }
        }
        let mut start = 0;
        for end in &self.ends {
            self.entries[start..*end].sort_unstable();
            start = *end;
        }
    }

    fn push(&mut self, target: u32, entry: u64) {
        let next = &mut self.ends[target as usize];
        self.entries[*next] = entry;
        *next += 1;
    }

    /// Writes the sorted edges of a relation without duplicates.
    fn merge(&mut self, relation: usize, own: &SampledEdges, reverse: &SampledEdges) {
        let SampledEdges { sources, ends, positions, hop_counts, hop_targets } = &mut self.merged[relation];
        sources.clear();
        ends.clear();
        positions.clear();
        hop_counts.clear();
        hop_targets.clear();
        let mut start = 0;
        for end in &self.ends {
            let mut last = None;
            for entry in &self.entries[start..*end] {
                let source = (entry >> 32) as u32;
                if last.replace(source) == Some(source) {
                    continue;
                }
                sources.push(source);
                let edge = (entry & (REVERSED - 1)) as usize;
                let from = if entry & REVERSED == 0 { own } else { reverse };
                positions.extend(from.positions.get(edge));
            }
            ends.push(sources.len() as u32);
            start = *end;
        }
        hop_counts.push(sources.len() as u32);
        hop_targets.push(0..ends.len() as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::SampledNodes;

    const VIEW: RelationView<'static> = RelationView {
        source_type: 0,
        target_type: 0,
        offsets: &[0],
        sources: &[],
        weights: None,
        times: None,
    };

    fn nodes(count: u32) -> SampledNodes {
        SampledNodes { ids: (0..count).collect(), ..SampledNodes::default() }
    }

    /// Edges from 1 and 2 to 0, from 0 and 2 to 1, and two parallel edges from 3 to 1, in two hops.
    fn edges() -> SampledEdges {
        SampledEdges {
            sources: vec![2, 1, 0, 3, 3, 2],
            ends: vec![2, 6],
            positions: vec![7, 5, 9, 12, 11, 13],
            hop_counts: vec![2, 4],
            hop_targets: vec![0..1, 1..2],
        }
    }

    #[test]
    fn each_edge_has_a_reverse_edge_and_duplicates_are_merged() {
        let mut graph = SampledGraph { nodes: vec![nodes(4)], edges: vec![edges()], seed_locals: Vec::new() };
        let mut bidirectional = BidirectionalEdges::default();
        assert_eq!(bidirectional.memory_bytes(), 0);
        assert_eq!(bidirectional.add(&[VIEW], &[Some(0)], 8, &mut graph), Ok(()));
        // At least 8 bytes for each of 12 edges in both directions, and for each of 4 targets.
        assert!(bidirectional.memory_bytes() >= 8 * (12 + 4), "{}", bidirectional.memory_bytes());
        let targets = 0..4;
        let expected = SampledEdges {
            sources: vec![1, 2, 0, 2, 3, 0, 1, 1],
            ends: vec![2, 5, 7, 8],
            // An edge that was sampled has its own position, and an added edge that of the first edge that it reverses.
            positions: vec![5, 7, 9, 13, 12, 7, 13, 12],
            hop_counts: vec![8],
            hop_targets: vec![targets],
        };
        assert_eq!(graph.edges, [expected]);
        graph.edges = vec![edges()];
        let error = SampleError::EdgeLimit { relation: 0, limit: 7 };
        assert_eq!(bidirectional.add(&[VIEW], &[Some(0)], 7, &mut graph), Err(error));
    }

    #[test]
    fn relations_and_their_reverse_are_merged() {
        let edges = |sources: &[u32], ends: &[u32]| {
            let targets = 0..ends.len() as u32;
            SampledEdges {
                sources: sources.to_vec(),
                ends: ends.to_vec(),
                hop_counts: vec![sources.len() as u32],
                hop_targets: vec![targets],
                ..SampledEdges::default()
            }
        };
        let forward = RelationView { target_type: 1, ..VIEW };
        let backward = RelationView { source_type: 1, ..VIEW };
        let mut graph = SampledGraph {
            nodes: vec![nodes(3), nodes(2)],
            edges: vec![edges(&[2, 0], &[1, 2]), edges(&[1, 0], &[1, 2]), edges(&[1], &[1])],
            seed_locals: Vec::new(),
        };
        let kept = graph.edges[2].clone();
        let mut bidirectional = BidirectionalEdges::default();
        let reverses = [Some(1), Some(0), None];
        assert_eq!(bidirectional.add(&[forward, backward, VIEW], &reverses, 9, &mut graph), Ok(()));
        // 2 -> 0 and 0 -> 1 forward; 1 -> 0 and 0 -> 1 backward, which is 0 -> 1 and 1 -> 0 forward.
        let all = [edges(&[1, 2, 0], &[2, 3]), edges(&[1, 0, 0], &[1, 2, 3]), kept];
        assert_eq!(graph.edges, all);
    }
}
