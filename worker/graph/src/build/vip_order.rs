//! The order of nodes by the probability that a batch contains them. The edges are first sorted in the user's order, and loaded
//! for the model. Weights and times do not affect the order.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use feedline_data::graph::description::{StoredFile, VipOrder};
use feedline_data::graph::{GraphView, RelationView};

use super::node_ranking::{NodeRanking, RankedBatches, SeedNodeColumn};
use super::node_table::{NodePermutation, NodeTable};
use super::plan::{GraphPlan, SeedPlan};
use super::relation::RelationJob;
use super::relation_rows::RelationFiles;
use super::run::BuildSettings;
use super::spec::VipSpec;
use crate::error::GraphError;

/// The number of seeds in the batches of the model.
const BATCH_ROWS: u32 = 1_024;
/// Size of the reads of an array: a multiple of the size of a number.
const READ_BYTES: usize = 1 << 20;

/// The nodes of a graph that are being ordered.
pub(super) struct VipOrdering<'a> {
    vip: &'a VipSpec,
    settings: &'a BuildSettings,
    /// The folder for edges in the user's order.
    folder: PathBuf,
    spill: &'a Path,
    columns: Vec<SeedNodeColumn>,
    relations: Vec<UnorderedEdges>,
    /// The memory that the seeds and edges need.
    needed_bytes: u64,
}

/// The files with the edges of a relation in the user's order. They are loaded when all relations are sorted, because a sort uses the
/// whole memory.
struct UnorderedEdges {
    ends: [u16; 2],
    offsets: StoredFile,
    offset_count: u64,
    sources: StoredFile,
    edges: u64,
}

/// The same edges in memory.
struct LoadedEdges {
    ends: [u16; 2],
    offsets: Vec<u64>,
    sources: Vec<u32>,
}

/// Rejects an order that the build cannot compute, before it reads edges.
pub(super) fn check_order(
    vip: &VipSpec,
    plan: &GraphPlan<'_>,
    settings: &BuildSettings,
) -> Result<(), GraphError> {
    let of_nodes = plan.nodes.iter().flat_map(|node| &node.seeds);
    let of_relations = plan.relations.iter().flat_map(|relation| &relation.seeds);
    if !of_nodes.chain(of_relations).any(|seeds| seeds.name == vip.seeds) {
        return Err(GraphError::Setting(format!(
            "the order `vip` refers to the seed set `{}`, which does not exist: add it to the seeds of the graph",
            vip.seeds.escape_debug()
        )));
    }
    ranking(settings)?;
    Ok(())
}

fn ranking(settings: &BuildSettings) -> Result<&dyn NodeRanking, GraphError> {
    settings.ranking.as_deref().ok_or_else(|| {
        GraphError::Setting(
            "this program cannot compute the order `vip`: use `feedline graph build`".to_owned(),
        )
    })
}

impl<'a> VipOrdering<'a> {
    pub(super) fn new(vip: &'a VipSpec, spill: &'a Path, settings: &'a BuildSettings) -> Self {
        let folder = spill.join("unordered");
        Self { vip, settings, folder, spill, columns: Vec::new(), relations: Vec::new(), needed_bytes: 0 }
    }

    /// Adds a seed set, if it is that of the order. `ends` are the indexes of the types of its nodes.
    pub(super) fn add_seeds(
        &mut self,
        seeds: &SeedPlan<'_>,
        ends: &[usize],
        tables: &[NodeTable],
    ) -> Result<(), GraphError> {
        if seeds.name != self.vip.seeds {
            return Ok(());
        }
        (self.settings.on_step)(&format!("reading the seeds {}", seeds.name));
        let nodes: Vec<&NodeTable> = ends.iter().map(|&end| &tables[end]).collect();
        for (nodes, &end) in seeds.input.nodes(&nodes, self.settings)?.into_iter().zip(ends) {
            self.needed_bytes += size_of_val(nodes.as_slice()) as u64;
            self.columns.push(SeedNodeColumn { node_type: type_index(end), nodes });
        }
        Ok(())
    }

    /// Adds a relation. `job` stores its edges in the user's order, and `ends` are the indexes of its node types.
    pub(super) fn add_relation(
        &mut self,
        job: &RelationJob<'_>,
        ends: [usize; 2],
        tables: &[NodeTable],
    ) -> Result<(), GraphError> {
        (self.settings.on_step)(&format!("sorting the edges of {} for the order", job.key));
        let job = RelationJob { topology_only: true, edge_ids: false, ..*job };
        let offset_count = u64::from(job.targets.count) + 1;
        self.needed_bytes += offset_count * size_of::<u64>() as u64;
        if let Some(edges) = job.input.known_edges()
            && !job.undirected
        {
            // Fail before the edges are sorted.
            self.check_memory(edges, tables)?;
        }
        let RelationFiles { edges, offsets, sources, .. } =
            job.store(&self.folder, self.spill, self.settings)?;
        self.check_memory(edges, tables)?;
        self.needed_bytes += edges * size_of::<u32>() as u64;
        let ends = ends.map(type_index);
        self.relations.push(UnorderedEdges { ends, offsets, offset_count, sources, edges });
        Ok(())
    }

    /// The model needs the seeds, the edges, and numbers for each node. `edges` are in addition to those of all relations so far.
    fn check_memory(&self, edges: u64, tables: &[NodeTable]) -> Result<(), GraphError> {
        /// The probabilities of a node in one hop, also by reverse edges.
        const HOP_BYTES: u64 = 8;
        /// The sums of the current hop, the sort by probability, and the positions in both directions.
        const NODE_BYTES: u64 = 40;
        let node_bytes = HOP_BYTES * (self.vip.fanouts.len() as u64 + 1) + NODE_BYTES;
        let nodes: u64 = tables.iter().map(|table| u64::from(table.count)).sum();
        let edge_bytes = edges.saturating_mul(size_of::<u32>() as u64);
        let needed = self.needed_bytes.saturating_add(edge_bytes).saturating_add(nodes * node_bytes);
        if needed <= self.settings.memory_bytes {
            return Ok(());
        }
        Err(GraphError::Setting(format!(
            "the order `vip` needs at least {needed} bytes of memory for the edges and {nodes} nodes: pass `--memory` with a larger \
             size, or use the order `degree`"
        )))
    }

    /// Reads an array, and removes its file.
    fn load<const N: usize, T>(
        &self,
        file: &StoredFile,
        count: u64,
        convert: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GraphError> {
        let path = self.folder.join(&file.path);
        let opened = File::open(&path).map_err(|error| GraphError::io("open", &path, &error))?;
        let mut numbers = Vec::with_capacity(count as usize);
        let mut bytes = vec![0; READ_BYTES];
        let mut offset = file.bytes - count * N as u64;
        while offset < file.bytes {
            self.settings.check_stop()?;
            let length = (file.bytes - offset).min(READ_BYTES as u64);
            let chunk = &mut bytes[..length as usize];
            opened.read_exact_at(chunk, offset).map_err(|error| GraphError::io("read", &path, &error))?;
            numbers.extend(chunk.as_chunks::<N>().0.iter().map(|number| convert(*number)));
            offset += length;
        }
        std::fs::remove_file(&path).map_err(|error| GraphError::io("remove", &path, &error))?;
        Ok(numbers)
    }

    /// Orders the nodes of each type, after all seeds and relations are added.
    pub(super) fn finish(self, tables: &mut [NodeTable]) -> Result<VipOrder, GraphError> {
        (self.settings.on_step)("ordering nodes");
        self.check_memory(0, tables)?;
        let counts: Vec<u32> = tables.iter().map(|table| table.count).collect();
        let mut loaded = Vec::new();
        for relation in &self.relations {
            loaded.push(LoadedEdges {
                ends: relation.ends,
                offsets: self.load(&relation.offsets, relation.offset_count, u64::from_le_bytes)?,
                sources: self.load(&relation.sources, relation.edges, u32::from_le_bytes)?,
            });
        }
        let views: Vec<RelationView<'_>> = loaded.iter().map(LoadedEdges::view).collect();
        let graph = GraphView { node_counts: &counts, relations: &views };
        let batches = RankedBatches {
            seed_rows: self.columns.first().map_or(0, |column| column.nodes.len() as u64),
            columns: &self.columns,
            batch_rows: BATCH_ROWS,
            fanouts: &self.vip.fanouts,
        };
        let invalid = |reason: String| GraphError::Setting(format!("the order `vip`: {reason}"));
        let ranks = ranking(self.settings)?.rank(&graph, &batches, self.settings.threads).map_err(invalid)?;
        let mut curves = Vec::new();
        for (table, rank) in tables.iter_mut().zip(ranks) {
            table.order = Some(NodePermutation::new(rank.nodes));
            curves.push(rank.curve);
        }
        Ok(VipOrder {
            seeds: self.vip.seeds.clone(),
            fanouts: self.vip.fanouts.clone(),
            batch_rows: BATCH_ROWS,
            curves,
        })
    }
}

impl LoadedEdges {
    fn view(&self) -> RelationView<'_> {
        let [source_type, target_type] = self.ends;
        let (offsets, sources) = (self.offsets.as_slice(), self.sources.as_slice());
        RelationView { source_type, target_type, offsets, sources, weights: None, times: None }
    }
}

/// The description of a graph limits the number of node types.
fn type_index(index: usize) -> u16 {
    index as u16
}
