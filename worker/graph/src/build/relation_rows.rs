//! Sorted edges of a relation as arrays: first in parts, and then in files.

use std::path::Path;

use feedline_data::graph::description::StoredFile;
use feedline_data::schema::ScalarType;

use super::edge_record::BucketEdge;
use super::weights::append_sums;
use crate::error::GraphError;
use crate::hashed_file::ArrayWriter;

/// Maximum number of offsets that are written at a time.
const MAX_OFFSETS: usize = 1 << 16;

/// The arrays of a relation besides offsets and sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct EdgeColumns {
    pub(super) weights: bool,
    pub(super) times: bool,
    pub(super) rows: bool,
}

impl EdgeColumns {
    /// Whether an edge consists of a target and a source only.
    pub(super) fn is_narrow(self) -> bool {
        self == Self::default()
    }
}

/// A part of the edges of a relation, in order.
#[derive(Debug, Default)]
pub(super) struct RelationRows {
    columns: EdgeColumns,
    /// Whether edges with equal targets, times and sources become one edge, whose weight is the sum.
    merges: bool,
    /// The targets with edges, and their numbers of edges.
    degrees: Vec<(u32, u32)>,
    sources: Vec<u32>,
    /// The sums of the weights of finished targets.
    sums: Vec<u32>,
    times: Vec<i64>,
    rows: Vec<u64>,
    /// The weights of the last target.
    weights: Vec<f64>,
    /// The last edge, if duplicates are merged.
    last: Option<BucketEdge>,
}

impl RelationRows {
    pub(super) fn new(columns: EdgeColumns, merges: bool) -> Self {
        Self { columns, merges, ..Self::default() }
    }

    /// Returns an empty part for the edges after this part.
    pub(super) fn continuation(&self) -> Self {
        // A duplicate of the last edge may follow.
        Self { last: self.last, ..Self::new(self.columns, self.merges) }
    }

    /// Prepares for this number of edges.
    pub(super) fn reserve(&mut self, edges: usize) {
        self.sources.reserve(edges);
        if self.columns.weights {
            self.sums.reserve(edges);
        }
        if self.columns.times {
            self.times.reserve(edges);
        }
        if self.columns.rows {
            self.rows.reserve(edges);
        }
    }

    /// Appends an edge. Its target is an id of the graph.
    pub(super) fn push(&mut self, edge: BucketEdge) {
        if self.merges {
            if let Some(last) = &self.last
                && (last.target, last.time, last.source) == (edge.target, edge.time, edge.source)
            {
                if let Some(weight) = self.weights.last_mut() {
                    // A sum that is too large becomes the largest weight.
                    *weight = (*weight + edge.weight).min(f64::MAX);
                }
                return;
            }
            self.last = Some(edge);
        }
        match self.degrees.last_mut() {
            Some((target, degree)) if *target == edge.target => *degree += 1,
            _ => {
                self.finish_target();
                self.degrees.push((edge.target, 1));
            }
        }
        self.sources.push(edge.source);
        if self.columns.weights {
            self.weights.push(edge.weight);
        }
        if self.columns.times {
            self.times.push(edge.time);
        }
        if self.columns.rows {
            self.rows.push(edge.row);
        }
    }

    /// The number of edges.
    pub(super) fn len(&self) -> usize {
        self.sources.len()
    }

    /// The number of edges of the last target whose weights have not been summed.
    pub(super) fn open_weights(&self) -> usize {
        self.weights.len()
    }

    /// Whether an edge to `target` may begin another part. The weights of a target are summed together.
    pub(super) fn may_end_before(&self, target: u32) -> bool {
        let is_same = self.degrees.last().is_some_and(|(last, _)| *last == target);
        !(is_same && self.columns.weights)
    }

    fn finish_target(&mut self) {
        append_sums(&self.weights, &mut self.sums);
        self.weights.clear();
    }
}

/// Writes the arrays of a relation.
pub(super) struct RelationWriter {
    offsets: ArrayWriter,
    sources: ArrayWriter,
    weights: Option<ArrayWriter>,
    times: Option<ArrayWriter>,
    rows: Option<ArrayWriter>,
    /// The key of the relation.
    key: String,
    targets: u32,
    /// The target whose edges are being written. All earlier targets have offsets.
    target: u32,
    /// The number of edges, and of those of the current target.
    edges: u64,
    degree: u64,
}

/// The files of a relation.
#[derive(Debug)]
pub(super) struct RelationFiles {
    pub(super) edges: u64,
    pub(super) offsets: StoredFile,
    pub(super) sources: StoredFile,
    pub(super) weights: Option<StoredFile>,
    pub(super) times: Option<StoredFile>,
    pub(super) rows: Option<StoredFile>,
}

impl RelationWriter {
    /// Creates the files of a relation with this number of target nodes.
    pub(super) fn create(
        folder: &Path,
        key: &str,
        columns: EdgeColumns,
        targets: u32,
    ) -> Result<Self, GraphError> {
        let array = |name: &str, dtype: ScalarType| {
            ArrayWriter::create(folder, format!("topology/{key}.{name}.npy"), dtype, &[])
        };
        let optional = |is_wanted: bool, name: &str, dtype: ScalarType| {
            if is_wanted { array(name, dtype).map(Some) } else { Ok(None) }
        };
        let mut offsets = array("offsets", ScalarType::UInt64)?;
        offsets.write_numbers(&[0_u64])?;
        Ok(Self {
            offsets,
            sources: array("sources", ScalarType::UInt32)?,
            weights: optional(columns.weights, "weights", ScalarType::UInt32)?,
            times: optional(columns.times, "times", ScalarType::Int64)?,
            rows: optional(columns.rows, "edge_ids", ScalarType::UInt64)?,
            key: key.to_owned(),
            targets,
            target: 0,
            edges: 0,
            degree: 0,
        })
    }

    /// Writes the next part. The first target may be the last target of the previous part.
    pub(super) fn append(&mut self, mut part: RelationRows) -> Result<(), GraphError> {
        part.finish_target();
        let mut offsets = Vec::new();
        for &(target, degree) in &part.degrees {
            while self.target < target {
                offsets.push(self.edges);
                self.target += 1;
                self.degree = 0;
                if offsets.len() == MAX_OFFSETS {
                    self.offsets.write_numbers(&offsets)?;
                    offsets.clear();
                }
            }
            self.edges += u64::from(degree);
            self.degree += u64::from(degree);
            if self.degree > u64::from(u32::MAX) {
                return Err(GraphError::Setting(format!(
                    "node {target} has more than {} edges in the relation `{}`: remove edges",
                    u32::MAX,
                    self.key
                )));
            }
        }
        self.offsets.write_numbers(&offsets)?;
        self.sources.write_numbers(&part.sources)?;
        if let Some(weights) = &mut self.weights {
            weights.write_numbers(&part.sums)?;
        }
        if let Some(times) = &mut self.times {
            times.write_numbers(&part.times)?;
        }
        if let Some(rows) = &mut self.rows {
            rows.write_numbers(&part.rows)?;
        }
        Ok(())
    }

    /// Writes the offsets of the remaining targets.
    pub(super) fn finish(mut self) -> Result<RelationFiles, GraphError> {
        while self.target < self.targets {
            let count = (self.targets - self.target).min(MAX_OFFSETS as u32);
            self.offsets.write_numbers(&vec![self.edges; count as usize])?;
            self.target += count;
        }
        let finish = |writer: Option<ArrayWriter>| writer.map(ArrayWriter::finish).transpose();
        Ok(RelationFiles {
            edges: self.edges,
            offsets: self.offsets.finish()?,
            sources: self.sources.finish()?,
            weights: finish(self.weights)?,
            times: finish(self.times)?,
            rows: finish(self.rows)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_are_merged_across_parts() {
        let edge = |source: u32| BucketEdge { target: 3, source, ..BucketEdge::default() };
        let mut first = RelationRows::new(EdgeColumns::default(), true);
        [1, 2].into_iter().for_each(|source| first.push(edge(source)));
        assert!(first.may_end_before(3), "a target with many edges is stored in several parts");
        let mut second = first.continuation();
        [2, 4].into_iter().for_each(|source| second.push(edge(source)));
        assert_eq!((first.sources, second.sources), (vec![1, 2], vec![4]));
        assert_eq!(second.degrees, [(3, 1)]);
    }

    #[test]
    fn the_weights_of_a_target_are_in_one_part() {
        let columns = EdgeColumns { weights: true, ..EdgeColumns::default() };
        let mut part = RelationRows::new(columns, false);
        part.push(BucketEdge { target: 3, weight: 1.0, ..BucketEdge::default() });
        assert!(!part.may_end_before(3) && part.may_end_before(4));
    }
}
