//! Builds the folder of a graph in bounded memory.
//!
//! Ids that are text become numbers first. Then the edges of each relation are distributed to temporary files by their targets, and
//! sorted. Features, ids and seeds follow in the order of the stored nodes and edges.

mod bucket_map;
mod convert;
mod degree_order;
mod edge_input;
mod edge_record;
mod features;
mod ids;
mod labels;
mod node_counts;
mod node_ranking;
mod node_table;
mod output;
mod plan;
mod position_file;
mod relation;
mod relation_rows;
mod resolution;
mod run;
mod scatter;
mod seeds;
mod spec;
mod spill;
mod table;
#[cfg(test)]
mod tests;
mod text_sorter;
mod unpack;
mod values;
mod vip_order;
mod weights;

use std::path::Path;

use feedline_data::graph::description::{
    GRAPH_VERSION, GraphDescription, GraphFeature, GraphRelation, NodeNames, NodeOrder, NodeType, SeedKind,
    SeedSet, VipOrder,
};
use feedline_data::schema::ScalarType;

use self::degree_order::DegreeCounter;
use self::edge_input::EdgeInput;
use self::features::FeatureInput;
use self::labels::NodeLabels;
use self::node_counts::count_nodes;
use self::node_table::NodeTable;
use self::output::OutputFolder;
use self::plan::{GraphPlan, NodePlan, RelationPlan, SeedPlan};
use self::relation::RelationJob;
use self::relation_rows::RelationFiles;
use self::resolution::{ResolvedGraph, resolve_ids};
use self::seeds::SeedJob;
use self::unpack::unpack;
use self::vip_order::{VipOrdering, check_order};
use crate::error::GraphError;
use crate::hashed_file::ArrayWriter;

pub use self::node_ranking::{NodeRank, NodeRanking, RankedBatches, SeedNodeColumn};
pub use self::run::BuildSettings;
pub use self::spec::{
    ColumnName, ColumnRef, DEFAULT_NODE_TYPE, DEFAULT_RELATION, FeatureSpec, FilterValue, GraphSpec,
    LinkSeedSpec, NodeSpec, OneOrMore, OrderSpec, RelationSpec, SeedSpec, VipSpec,
};

/// Builds a graph at `out`, which must not exist or be an empty directory. The folder appears when it is complete.
///
/// # Errors
/// Returns an error if a setting or the input is invalid, or a file cannot be written. Then nothing is left at `out`.
pub fn build_graph(
    spec: &GraphSpec,
    out: &Path,
    settings: &BuildSettings,
) -> Result<GraphDescription, GraphError> {
    let output = OutputFolder::create(out)?;
    let no_files = NodeSpec::default();
    let spec = &unpack(spec, &output.spill(), settings)?;
    let plan = GraphPlan::open(spec, &no_files)?;
    if let OrderSpec::Vip(vip) = &spec.order {
        check_order(vip, &plan, settings)?;
    }
    let build = GraphBuild { settings, output: &output, order: &spec.order };
    let description = build.run(plan)?;
    description.check().map_err(GraphError::Setting)?;
    output.commit(&description)?;
    Ok(description)
}

/// A build that runs.
struct GraphBuild<'a> {
    settings: &'a BuildSettings,
    output: &'a OutputFolder,
    order: &'a OrderSpec,
}

/// The edges of a relation, and what remains of its plan.
struct OpenRelation<'a> {
    plan: RelationPlan<'a>,
    input: EdgeInput,
}

impl OpenRelation<'_> {
    /// The job that stores the edges in the direction of the input.
    fn job<'b>(&'b self, tables: &'b [NodeTable]) -> RelationJob<'b> {
        let Self { plan, input } = self;
        let [sources, targets] = plan.ends.map(|end| &tables[end]);
        RelationJob {
            key: &plan.key,
            input,
            is_reversed: false,
            undirected: plan.spec.undirected,
            edge_ids: plan.needs_edge_ids(),
            topology_only: false,
            sources,
            targets,
        }
    }
}

impl GraphBuild<'_> {
    fn run(&self, plan: GraphPlan<'_>) -> Result<GraphDescription, GraphError> {
        let (folder, spill) = (self.output.path(), self.output.spill());
        let ResolvedGraph { nodes: node_plans, relations, names } =
            resolve_ids(plan, (folder, &spill), self.settings)?;
        let relations: Vec<OpenRelation<'_>> =
            relations.into_iter().map(|(plan, input)| OpenRelation { plan, input }).collect();
        (self.settings.on_step)("counting nodes");
        let ends = relations.iter().map(|relation| (&relation.input, relation.plan.ends));
        let counts = count_nodes(&node_plans, &ends.collect::<Vec<_>>(), self.settings)?;
        let table = |(plan, &count): (&NodePlan<'_>, &u32)| NodeTable {
            name: plan.name.to_owned(),
            count,
            order: None,
        };
        let mut tables: Vec<NodeTable> = node_plans.iter().zip(&counts).map(table).collect();
        let (order, vip) = match self.order {
            OrderSpec::None => (NodeOrder::None, None),
            OrderSpec::Degree => {
                self.sort_nodes(&relations, &mut tables)?;
                (NodeOrder::Degree, None)
            }
            OrderSpec::Vip(vip) => {
                let ordering = VipOrdering::new(vip, &spill, self.settings);
                (NodeOrder::Vip, Some(self.rank_nodes(ordering, &node_plans, &relations, &mut tables)?))
            }
        };
        let mut stored = Vec::new();
        for relation in &relations {
            self.store_relation(relation, &tables, &mut stored)?;
        }
        let mut seeds = Vec::new();
        for relation in &relations {
            let nodes = relation.plan.ends.map(|end| &tables[end]).to_vec();
            self.store_seeds(&relation.plan.seeds, &nodes, &[], &mut seeds)?;
        }
        let mut nodes = Vec::new();
        for ((plan, table), names) in node_plans.iter().zip(&tables).zip(names) {
            nodes.push(self.store_nodes(plan, table, names)?);
            let labels = self.load_labels(plan, table)?;
            self.store_seeds(&plan.seeds, &[table], &labels, &mut seeds)?;
        }
        Ok(GraphDescription { version: GRAPH_VERSION, order, vip, nodes, relations: stored, seeds })
    }

    fn sort_nodes(&self, relations: &[OpenRelation<'_>], tables: &mut [NodeTable]) -> Result<(), GraphError> {
        (self.settings.on_step)("counting edges");
        let counter = DegreeCounter::new(tables, self.settings)?;
        for OpenRelation { plan, input } in relations {
            let [source, target] = plan.ends;
            let both = plan.spec.undirected || plan.spec.reverse.is_some();
            counter.add(input, (source, target), both, self.settings)?;
        }
        counter.finish(tables);
        Ok(())
    }

    fn rank_nodes(
        &self,
        mut ordering: VipOrdering<'_>,
        node_plans: &[NodePlan<'_>],
        relations: &[OpenRelation<'_>],
        tables: &mut [NodeTable],
    ) -> Result<VipOrder, GraphError> {
        for relation in relations {
            let [source, target] = relation.plan.ends;
            let job = relation.job(tables);
            ordering.add_relation(&job, [source, target], tables)?;
            if let Some(key) = relation.plan.reverse_key() {
                let (sources, targets) = (job.targets, job.sources);
                let reversed = RelationJob { key: &key, is_reversed: true, sources, targets, ..job };
                ordering.add_relation(&reversed, [target, source], tables)?;
            }
        }
        for (end, plan) in node_plans.iter().enumerate() {
            for seeds in &plan.seeds {
                ordering.add_seeds(seeds, &[end], tables)?;
            }
        }
        for OpenRelation { plan, .. } in relations {
            for seeds in &plan.seeds {
                ordering.add_seeds(seeds, &plan.ends, tables)?;
            }
        }
        ordering.finish(tables)
    }

    fn store_relation(
        &self,
        relation: &OpenRelation<'_>,
        tables: &[NodeTable],
        stored: &mut Vec<GraphRelation>,
    ) -> Result<(), GraphError> {
        let plan = &relation.plan;
        let job = relation.job(tables);
        let (source, target) = (job.sources, job.targets);
        let mut relation = self.store_edges(&job, &plan.spec.name)?;
        if let Some(ids) = &relation.edge_ids {
            let ids_path = self.output.path().join(&ids.path);
            for feature in &plan.features {
                relation.features.push(self.store_edge_feature(
                    feature,
                    &plan.key,
                    relation.edges,
                    &ids_path,
                )?);
            }
            if !plan.spec.edge_ids {
                std::fs::remove_file(&ids_path)
                    .map_err(|error| GraphError::io("remove", &ids_path, &error))?;
                relation.edge_ids = None;
            }
        }
        stored.push(relation);
        if let (Some(name), Some(key)) = (&plan.spec.reverse, plan.reverse_key()) {
            let reversed = RelationJob {
                key: &key,
                is_reversed: true,
                edge_ids: plan.spec.edge_ids,
                sources: target,
                targets: source,
                ..job
            };
            stored.push(self.store_edges(&reversed, name)?);
        }
        Ok(())
    }

    fn store_edges(&self, job: &RelationJob<'_>, name: &str) -> Result<GraphRelation, GraphError> {
        (self.settings.on_step)(&format!("sorting the edges of {}", job.key));
        let RelationFiles { edges, offsets, sources, weights, times, rows } =
            job.store(self.output.path(), &self.output.spill(), self.settings)?;
        Ok(GraphRelation {
            source: job.sources.name.clone(),
            name: name.to_owned(),
            target: job.targets.name.clone(),
            edges,
            undirected: job.undirected,
            offsets,
            sources,
            weights,
            times,
            edge_ids: rows,
            features: Vec::new(),
        })
    }

    fn store_edge_feature(
        &self,
        feature: &FeatureInput,
        key: &str,
        edges: u64,
        edge_ids: &Path,
    ) -> Result<GraphFeature, GraphError> {
        (self.settings.on_step)(&format!("storing the features of {key}"));
        let spill = self.output.spill();
        feature.store_edges(key, (edges, edge_ids), (self.output.path(), &spill), self.settings)
    }

    fn store_nodes(
        &self,
        plan: &NodePlan<'_>,
        table: &NodeTable,
        names: Option<NodeNames>,
    ) -> Result<NodeType, GraphError> {
        (self.settings.on_step)(&format!("storing the nodes of type {}", plan.name));
        let (folder, spill) = (self.output.path(), self.output.spill());
        let order = table.order.as_ref();
        let mut features = Vec::new();
        for feature in &plan.features {
            let ids = order.map(|order| order.ids.as_slice());
            features.push(feature.store_nodes(plan.name, ids, (folder, &spill), self.settings)?);
        }
        let positions = match order {
            Some(order) => {
                let path = format!("ids/{}.positions.npy", plan.name);
                let mut writer = ArrayWriter::create(folder, path, ScalarType::UInt32, &[])?;
                writer.write_numbers(&order.positions)?;
                Some(writer.finish()?)
            }
            None => None,
        };
        Ok(NodeType { name: plan.name.to_owned(), count: table.count, positions, names, features })
    }

    fn load_labels(&self, plan: &NodePlan<'_>, table: &NodeTable) -> Result<Vec<NodeLabels>, GraphError> {
        let labels = plan.spec.labels.iter();
        labels.map(|(name, from)| NodeLabels::load(name, from, table.count, self.settings)).collect()
    }

    fn store_seeds(
        &self,
        plans: &[SeedPlan<'_>],
        nodes: &[&NodeTable],
        labels: &[NodeLabels],
        seeds: &mut Vec<SeedSet>,
    ) -> Result<(), GraphError> {
        for SeedPlan { name, kind, input } in plans {
            (self.settings.on_step)(&format!("storing the seeds {name}"));
            let labels = if matches!(kind, SeedKind::Nodes(_)) { labels } else { &[] };
            let job = SeedJob { name, kind: kind.clone(), input, nodes: nodes.to_vec(), labels };
            seeds.push(job.store(self.output.path(), self.settings)?);
        }
        Ok(())
    }
}
