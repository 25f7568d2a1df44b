//! The map from the nodes of the graph to the nodes of a batch, for one node type.
//!
//! All three maps assign the same local ids: the order in which nodes first appear. Lookups are grouped, so that the processor
//! loads the slots of several nodes at the same time.

mod local_id_table;

use self::local_id_table::{LocalIdTable, NodeEntry, TreeEntry};
use super::sampled::SampledNodes;

/// Maximum number of nodes of all types whose maps are arrays. An array needs eight bytes per node and thread.
const DENSE_NODES_MAX: u32 = 4 << 20;

/// A map of one node type. Its memory is reused from batch to batch.
#[derive(Debug)]
pub(super) enum NodeMap {
    /// An array with a slot for each node of the graph.
    Dense(DenseMap),
    /// A hash table of the nodes of the batch.
    Hashed(LocalIdTable<NodeEntry>),
    /// A hash table of pairs of tree and node, for disjoint trees.
    Trees(LocalIdTable<TreeEntry>),
}

impl Default for NodeMap {
    fn default() -> Self {
        Self::Dense(DenseMap::default())
    }
}

impl NodeMap {
    /// Removes all nodes of all types, and selects the kinds of the maps.
    pub(super) fn begin_all(maps: &mut Vec<Self>, node_counts: &[u32], disjoint: bool) {
        maps.resize_with(node_counts.len(), Self::default);
        let mut dense_left = DENSE_NODES_MAX;
        for (map, &count) in maps.iter_mut().zip(node_counts) {
            let is_dense = count <= dense_left;
            if is_dense {
                dense_left -= count;
            }
            map.begin(count, disjoint, is_dense);
        }
    }

    fn begin(&mut self, node_count: u32, disjoint: bool, is_dense: bool) {
        match self {
            Self::Trees(table) if disjoint => table.clear(),
            Self::Hashed(table) if !disjoint && !is_dense => table.clear(),
            Self::Dense(map) if !disjoint && is_dense => map.begin(node_count),
            _ if disjoint => *self = Self::Trees(LocalIdTable::default()),
            _ if is_dense => {
                let mut map = DenseMap::default();
                map.begin(node_count);
                *self = Self::Dense(map);
            }
            _ => *self = Self::Hashed(LocalIdTable::default()),
        }
    }

    /// The size of the allocated memory.
    pub(super) fn memory_bytes(&self) -> usize {
        match self {
            Self::Dense(map) => map.slots.capacity() * size_of::<u64>(),
            Self::Hashed(table) => table.memory_bytes(),
            Self::Trees(table) => table.memory_bytes(),
        }
    }

    /// Appends the local id of each of `found` to `locals`, and the nodes that are new to `nodes`. With disjoint trees, `trees`
    /// contains the tree of each node. Every node is below the number of nodes.
    pub(super) fn resolve(
        &mut self,
        found: &[u32],
        trees: &[u32],
        nodes: &mut SampledNodes,
        locals: &mut Vec<u32>,
    ) {
        match self {
            Self::Dense(map) => map.resolve(found, &mut nodes.ids, locals),
            Self::Hashed(table) => {
                let ids = &mut nodes.ids;
                table.resolve(found.iter().copied(), locals, |node| push_node(ids, node));
            }
            Self::Trees(table) => {
                let keys = trees.iter().zip(found).map(|(tree, node)| (*tree, *node));
                table.resolve(keys, locals, |(tree, node)| {
                    nodes.trees.push(tree);
                    push_node(&mut nodes.ids, node)
                });
            }
        }
    }
}

/// Appends a node, and returns its local id.
fn push_node(ids: &mut Vec<u32>, node: u32) -> u32 {
    let local = ids.len() as u32;
    ids.push(node);
    local
}

/// An array with the local id of each node. A slot is valid if it was written in the current generation, so the array is not
/// cleared between batches.
#[derive(Debug, Default)]
pub(super) struct DenseMap {
    /// The generation in the upper half, and the local id in the lower half.
    slots: Vec<u64>,
    generation: u32,
}

impl DenseMap {
    fn begin(&mut self, node_count: u32) {
        let is_last_generation = self.generation == u32::MAX;
        if self.slots.len() != node_count as usize || is_last_generation {
            self.slots = vec![0; node_count as usize];
            self.generation = 0;
        }
        self.generation += 1;
    }

    /// The loop has no branch that depends on whether a node is new, because the processor could not predict it.
    fn resolve(&mut self, found: &[u32], ids: &mut Vec<u32>, locals: &mut Vec<u32>) {
        let first = ids.len();
        // One more element than needed, because each step writes the node to the end of the list.
        ids.resize(first + found.len() + 1, 0);
        let mut next = first as u32;
        let generation = self.generation;
        let slots = self.slots.as_mut_slice();
        let list = ids.as_mut_slice();
        locals.extend(found.iter().map(|&node| {
            let slot = &mut slots[node as usize];
            let is_known = (*slot >> 32) as u32 == generation;
            let local = if is_known { *slot as u32 } else { next };
            *slot = u64::from(generation) << 32 | u64::from(local);
            list[next as usize] = node;
            next += u32::from(!is_known);
            local
        }));
        ids.truncate(next as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Assigns local ids in the order of the first appearance.
    fn simple_ids(keys: &[(u32, u32)]) -> (Vec<u32>, Vec<(u32, u32)>) {
        let (mut map, mut order) = (HashMap::new(), Vec::new());
        let mut local_id = |key: &(u32, u32)| {
            *map.entry(*key).or_insert_with(|| {
                order.push(*key);
                order.len() as u32 - 1
            })
        };
        let locals = keys.iter().map(&mut local_id).collect();
        (locals, order)
    }

    fn check(map: &mut NodeMap, keys: &[(u32, u32)], disjoint: bool) {
        let keys: Vec<(u32, u32)> =
            keys.iter().map(|&(tree, node)| (if disjoint { tree } else { 0 }, node)).collect();
        let (expected, order) = simple_ids(&keys);
        let (mut nodes, mut locals) = (SampledNodes::default(), Vec::new());
        for part in keys.chunks(50) {
            let (trees, found): (Vec<u32>, Vec<u32>) = part.iter().copied().unzip();
            map.resolve(&found, &trees, &mut nodes, &mut locals);
        }
        assert_eq!(locals, expected);
        assert_eq!(nodes.ids, order.iter().map(|(_, node)| *node).collect::<Vec<_>>());
        let trees: Vec<u32> = order.iter().map(|(tree, _)| *tree).collect();
        assert_eq!(nodes.trees, if disjoint { trees } else { Vec::new() });
    }

    proptest! {
        #[test]
        fn all_maps_assign_ids_in_the_order_of_first_appearance(
            batches in prop::collection::vec(prop::collection::vec((0u32..6, 0u32..300), 0..400), 1..6),
        ) {
            for (disjoint, is_dense) in [(false, true), (false, false), (true, true)] {
                let mut map = NodeMap::default();
                for keys in &batches {
                    map.begin(300, disjoint, is_dense);
                    check(&mut map, keys, disjoint);
                }
            }
        }
    }

    #[test]
    fn the_kinds_of_maps_follow_the_graph() {
        let mut maps = Vec::new();
        let keys: Vec<(u32, u32)> = (0..100).map(|index| (index % 3, index * 7 % 50)).collect();
        let mut kinds = |node_counts: &[u32], disjoint: bool| {
            NodeMap::begin_all(&mut maps, node_counts, disjoint);
            let kind = |map: &mut NodeMap| {
                check(map, &keys, disjoint);
                match map {
                    NodeMap::Dense(_) => "dense",
                    NodeMap::Hashed(_) => "hashed",
                    NodeMap::Trees(_) => "trees",
                }
            };
            maps.iter_mut().map(kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(&[50], false), ["dense"]);
        assert_eq!(kinds(&[60, 70], false), ["dense", "dense"]);
        assert_eq!(kinds(&[DENSE_NODES_MAX + 1, 70], false), ["hashed", "dense"]);
        assert_eq!(kinds(&[50, 50], true), ["trees", "trees"]);
        // The arrays of all types together have a limit.
        assert_eq!(kinds(&[1 << 20, DENSE_NODES_MAX, 1 << 20], false), ["dense", "hashed", "dense"]);
        assert_eq!(kinds(&[50], false), ["dense"]);
    }

    #[test]
    fn the_array_is_cleared_after_the_last_generation() {
        let mut map =
            DenseMap { slots: vec![u64::from(u32::MAX) << 32 | 9, 1 << 32 | 5], generation: u32::MAX - 1 };
        let resolve = |map: &mut DenseMap| {
            let (mut ids, mut locals) = (Vec::new(), Vec::new());
            map.begin(2);
            map.resolve(&[1, 0, 1], &mut ids, &mut locals);
            (ids, locals)
        };
        // Node 0 has a slot of the last generation, which the test wrote.
        assert_eq!(resolve(&mut map), (vec![1], vec![0, 9, 0]));
        assert_eq!(map.generation, u32::MAX);
        assert_eq!(resolve(&mut map), (vec![1, 0], vec![0, 1, 0]));
        assert_eq!(map.generation, 1);
    }
}
