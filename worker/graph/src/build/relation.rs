//! Stores the edges of one relation. The first pass over the input distributes edges to buckets by their targets. Then each bucket
//! is sorted, and the arrays of the relation are written in the order of the buckets.

use std::path::Path;
use std::sync::Mutex;

use super::bucket_map::{BucketMap, MAX_BUCKETS};
use super::edge_input::{EdgeChunk, EdgeInput};
use super::edge_record::{BucketEdge, EdgeRecord, NarrowEdge, WideEdge};
use super::node_table::{NodeTable, UnknownNode};
use super::relation_rows::{EdgeColumns, RelationFiles, RelationRows, RelationWriter};
use super::run::{BuildSettings, Turns, lock};
use super::spill::{EdgeSpill, SpillBuffers};
use crate::error::GraphError;

/// Number of edges in a bucket if memory allows more. The buffers of the sort then fit in the cache of a processor.
const BUCKET_EDGES: u64 = 1 << 20;
/// Number of edges in a part of a bucket that is not in memory.
const PART_EDGES: usize = 1 << 16;
/// Maximum number of sampled targets.
const MAX_SAMPLE: usize = 1 << 21;

/// A relation to store.
#[derive(Debug, Clone, Copy)]
pub(super) struct RelationJob<'a> {
    pub(super) key: &'a str,
    pub(super) input: &'a EdgeInput,
    /// Whether sources of the input are targets of the relation.
    pub(super) is_reversed: bool,
    pub(super) undirected: bool,
    /// Whether to store the position of each edge in the input.
    pub(super) edge_ids: bool,
    /// Whether to store neither weights nor times.
    pub(super) topology_only: bool,
    /// The nodes at the ends of the stored edges.
    pub(super) sources: &'a NodeTable,
    pub(super) targets: &'a NodeTable,
}

impl RelationJob<'_> {
    /// Writes the files of the relation to `folder`. `spill` is a folder for temporary files.
    ///
    /// # Errors
    /// Returns an error if the input is invalid, or a file cannot be written.
    pub(super) fn store(
        &self,
        folder: &Path,
        spill: &Path,
        settings: &BuildSettings,
    ) -> Result<RelationFiles, GraphError> {
        if self.columns().is_narrow() {
            self.store_records::<NarrowEdge>(folder, spill, settings)
        } else {
            self.store_records::<WideEdge>(folder, spill, settings)
        }
    }

    fn columns(&self) -> EdgeColumns {
        let has_values = !self.topology_only;
        EdgeColumns {
            weights: has_values && self.input.has_weights(),
            times: has_values && self.input.has_times(),
            rows: self.edge_ids,
        }
    }

    fn store_records<R: EdgeRecord>(
        &self,
        folder: &Path,
        spill: &Path,
        settings: &BuildSettings,
    ) -> Result<RelationFiles, GraphError> {
        let map = self.bucket_map::<R>(settings)?;
        let spill = EdgeSpill::<R>::create(spill, map, u64::from(self.sources.count))?;
        let buffers = || spill.buffers(settings.thread_bytes() / 4);
        let states = self.input.scan(settings, buffers, |buffers, edges, rows| {
            self.push(&spill, buffers, edges)
                .map_err(|error| error.in_row(|edge, node| rows.invalid_row(edges.row_in_chunk(edge), node)))
        })?;
        for buffers in states {
            spill.flush(buffers)?;
        }
        self.write(folder, &spill, settings)
    }

    /// Divides the targets into buckets.
    fn bucket_map<R: EdgeRecord>(&self, settings: &BuildSettings) -> Result<BucketMap, GraphError> {
        let mut sample = Vec::new();
        self.input.sample(&mut |edges| {
            let (_, targets) = self.ends(edges);
            let both = if self.undirected { edges.sources.as_slice() } else { &[] };
            let ids = targets.iter().chain(both).filter_map(|&position| self.targets.id(position).ok());
            let free = MAX_SAMPLE - sample.len();
            sample.extend(ids.take(free));
        })?;
        let edges = self.input.estimated_edges().saturating_mul(if self.undirected { 2 } else { 1 });
        // Some buckets are larger than others.
        let by_memory = edges.saturating_mul(R::SORT_BYTES * 2) / sort_bytes(settings).max(1);
        let buckets = (edges / BUCKET_EDGES).max(by_memory).clamp(1, MAX_BUCKETS as u64);
        Ok(BucketMap::new(u64::from(self.targets.count), buckets as usize, &sample))
    }

    /// The sources and targets of the relation.
    fn ends<'e>(&self, edges: &'e EdgeChunk) -> (&'e [u64], &'e [u64]) {
        if self.is_reversed { (&edges.targets, &edges.sources) } else { (&edges.sources, &edges.targets) }
    }

    fn push<R: EdgeRecord>(
        &self,
        spill: &EdgeSpill<R>,
        buffers: &mut SpillBuffers,
        edges: &EdgeChunk,
    ) -> Result<(), PushError> {
        let (sources, targets) = self.ends(edges);
        for (index, (&source, &target)) in sources.iter().zip(targets).enumerate() {
            let unknown = |node: UnknownNode| PushError::Node(index, node);
            let edge = BucketEdge {
                source: self.sources.id(source).map_err(unknown)?,
                target: self.targets.id(target).map_err(unknown)?,
                time: edges.times.get(index).copied().unwrap_or(0),
                row: edges.row(index),
                weight: edges.weights.get(index).copied().unwrap_or(0.0),
            };
            spill.push(buffers, edge)?;
            if self.undirected {
                spill.push(buffers, BucketEdge { source: edge.target, target: edge.source, ..edge })?;
            }
        }
        Ok(())
    }

    /// Sorts the buckets and writes the arrays.
    fn write<R: EdgeRecord>(
        &self,
        folder: &Path,
        spill: &EdgeSpill<R>,
        settings: &BuildSettings,
    ) -> Result<RelationFiles, GraphError> {
        let columns = self.columns();
        let writer = Mutex::new(RelationWriter::create(folder, self.key, columns, self.targets.count)?);
        let turns = Turns::default();
        settings.for_each_index(
            settings.threads,
            spill.len(),
            || (),
            |(), bucket| {
                let turn = turns.turn(bucket);
                settings.check_stop()?;
                let mut sorted = spill.sort(bucket, sort_bytes(settings))?;
                let in_memory = sorted.count_in_memory();
                let part_edges = if in_memory.is_some() { usize::MAX } else { PART_EDGES };
                let first_target = spill.first_target(bucket);
                let mut part = RelationRows::new(columns, self.undirected);
                part.reserve(in_memory.unwrap_or(PART_EDGES));
                while let Some(edge) = sorted.next()? {
                    let edge = BucketEdge { target: edge.target + first_target, ..edge };
                    if part.len() >= part_edges && part.may_end_before(edge.target) {
                        let next = part.continuation();
                        let full = std::mem::replace(&mut part, next);
                        turn.wait()?;
                        lock(&writer).append(full)?;
                    }
                    part.push(edge);
                    self.check_memory(&part, settings)?;
                }
                turn.wait()?;
                lock(&writer).append(part)?;
                turn.finish();
                Ok(())
            },
        )?;
        writer.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).finish()
    }

    /// The weights of a target must fit in memory.
    fn check_memory(&self, part: &RelationRows, settings: &BuildSettings) -> Result<(), GraphError> {
        /// The weight, its sum, and the other columns of an edge.
        const EDGE_BYTES: u64 = 40;
        /// A target with fewer edges always fits.
        const MIN_EDGES: u64 = 1 << 16;
        let edges = part.open_weights() as u64;
        if edges <= MIN_EDGES || edges * EDGE_BYTES <= settings.memory_bytes {
            return Ok(());
        }
        Err(GraphError::Setting(format!(
            "a node has more than {edges} edges with weights in the relation `{}`, which do not fit in memory: pass a larger `--memory`",
            self.key
        )))
    }
}

/// The memory in which a thread sorts a bucket.
fn sort_bytes(settings: &BuildSettings) -> u64 {
    settings.thread_bytes() / 2
}

/// Why an edge cannot be stored.
enum PushError {
    /// The edge with this index refers to an unknown node.
    Node(usize, UnknownNode),
    Graph(GraphError),
}

impl PushError {
    fn in_row(self, invalid: impl FnOnce(usize, UnknownNode) -> GraphError) -> GraphError {
        match self {
            Self::Node(edge, node) => invalid(edge, node),
            Self::Graph(error) => error,
        }
    }
}

impl From<GraphError> for PushError {
    fn from(error: GraphError) -> Self {
        Self::Graph(error)
    }
}
