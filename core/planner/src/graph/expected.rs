//! The expected nodes and edges of a batch.

use feedline_data::pipeline::GraphBatchCounts;

/// The expected size of a batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExpectedBatch {
    /// The nodes that each hop adds, by type and hop. Hop 0 are the seeds.
    pub nodes: Vec<Vec<f64>>,
    /// The nodes that each hop expands, by relation and hop. Hop 0 expands the seeds.
    pub targets: Vec<Vec<f64>>,
    /// The edges that each hop draws, by relation and hop.
    pub edges: Vec<Vec<f64>>,
}

impl ExpectedBatch {
    pub(super) fn new(node_types: usize, relations: usize) -> Self {
        Self {
            nodes: vec![Vec::new(); node_types],
            targets: vec![Vec::new(); relations],
            edges: vec![Vec::new(); relations],
        }
    }

    /// The number of hops whose nodes are known, in addition to the seeds.
    pub(super) fn hop_count(&self) -> usize {
        self.nodes.first().map_or(0, |hops| hops.len().saturating_sub(1))
    }

    /// The nodes of all types, with the seeds.
    pub fn node_total(&self) -> f64 {
        self.nodes.iter().flatten().sum()
    }

    /// The edges of all relations.
    pub fn edge_total(&self) -> f64 {
        self.edges.iter().flatten().sum()
    }

    /// Returns the numbers of nodes, targets and edges, rounded up.
    pub fn counts(&self) -> GraphBatchCounts {
        let totals = |counts: &[Vec<f64>]| -> Vec<u64> {
            counts.iter().map(|hops| hops.iter().sum::<f64>().ceil() as u64).collect()
        };
        GraphBatchCounts {
            nodes: totals(&self.nodes),
            targets: totals(&self.targets),
            edges: totals(&self.edges),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_all_hops_are_rounded_up() {
        let expected = ExpectedBatch {
            nodes: vec![vec![2.0, 3.5], vec![0.0, 1.0]],
            targets: vec![vec![2.0, 3.5]],
            edges: vec![vec![4.0, 5.25]],
        };
        let counts = GraphBatchCounts { nodes: vec![6, 1], targets: vec![6], edges: vec![10] };
        assert_eq!(expected.counts(), counts);
        assert_eq!((expected.node_total(), expected.edge_total()), (6.5, 9.25));
        assert_eq!(expected.hop_count(), 1);
    }
}
