//! The order of nodes by the number of edges that begin at them. Samplers read the features of sources, so nodes with many such
//! edges are read most often.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering};

use super::edge_input::EdgeInput;
use super::node_table::{NodePermutation, NodeTable};
use super::run::BuildSettings;
use crate::error::GraphError;

/// The memory for each node: its number of edges, its position and its id.
const NODE_BYTES: u64 = 8 + 4 + 4;

/// Counts the edges that begin at each node of each type.
#[derive(Debug)]
pub(super) struct DegreeCounter {
    counts: Vec<Vec<AtomicU64>>,
}

impl DegreeCounter {
    /// Creates counters for all nodes.
    ///
    /// # Errors
    /// Returns an error if the order needs more than half of the memory.
    pub(super) fn new(nodes: &[NodeTable], settings: &BuildSettings) -> Result<Self, GraphError> {
        let total: u64 = nodes.iter().map(|table| u64::from(table.count)).sum();
        let needed = total * NODE_BYTES;
        if needed > settings.memory_bytes / 2 {
            return Err(GraphError::Setting(format!(
                "the order `degree` of {total} nodes needs {} bytes of memory: pass `--memory` with at least this size",
                needed * 2
            )));
        }
        let counters = |table: &NodeTable| (0..table.count).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { counts: nodes.iter().map(counters).collect() })
    }

    /// Adds the edges of a relation. `both` also counts the edges that end at a node, which are stored in both directions.
    ///
    /// # Errors
    /// Returns an error if the input is invalid.
    pub(super) fn add(
        &self,
        input: &EdgeInput,
        (source, target): (usize, usize),
        both: bool,
        settings: &BuildSettings,
    ) -> Result<(), GraphError> {
        let add = |counts: &[AtomicU64], positions: &[u64]| {
            for &position in positions {
                // The pass that stores the edges rejects unknown nodes.
                if let Some(count) = usize::try_from(position).ok().and_then(|index| counts.get(index)) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        };
        input.scan(
            settings,
            || (),
            |(), edges, _| {
                add(&self.counts[source], &edges.sources);
                if both {
                    add(&self.counts[target], &edges.targets);
                }
                Ok(())
            },
        )?;
        Ok(())
    }

    /// Sorts the nodes of each type.
    pub(super) fn finish(self, nodes: &mut [NodeTable]) {
        for (counts, table) in self.counts.into_iter().zip(nodes) {
            let counts: Vec<u64> = counts.into_iter().map(AtomicU64::into_inner).collect();
            table.order = Some(by_count(&counts));
        }
    }
}

/// Returns the order from many to few. Equal nodes are in the user's order.
fn by_count(counts: &[u64]) -> NodePermutation {
    let mut positions: Vec<u32> = (0..counts.len() as u32).collect();
    positions.sort_unstable_by_key(|&position| (Reverse(counts[position as usize]), position));
    NodePermutation::new(positions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_many_edges_come_first() {
        let order = by_count(&[2, 9, 0, 9]);
        assert_eq!(order.positions, [1, 3, 0, 2]);
        assert_eq!(order.ids, [2, 0, 3, 1]);
        let table = NodeTable { name: "n".to_owned(), count: 4, order: Some(order) };
        assert_eq!(table.id(3), Ok(1));
        assert_eq!(
            table.id(u64::MAX).unwrap_err().to_string(),
            "the node -1 does not exist: there are 4 nodes, which are counted from 0"
        );
    }

    #[test]
    fn the_order_must_fit_in_memory() {
        let nodes = [NodeTable { count: 1_000, ..NodeTable::default() }];
        let error = DegreeCounter::new(&nodes, &BuildSettings::new(31_999, 1)).unwrap_err();
        assert!(error.to_string().contains("needs 32000 bytes of memory"), "{error}");
        assert!(DegreeCounter::new(&nodes, &BuildSettings::new(32_000, 1)).is_ok());
    }
}
