//! `sample_neighbors` for one graph: the settings of the sampler, the seeds, and the columns of batches.

use serde::Serialize;

use super::columns::ColumnScope;
use super::graph_column::{GraphColumn, GraphColumnContent};
use super::link_columns::LABEL_COLUMN;
use super::row_columns::{lists_of_rows, seed_columns};
use super::{ExcludedSeedEdges, NegativeSampling, SampleNeighbors, SubgraphEdges};
use crate::graph::description::SeedKind;
use crate::graph::{Fanout, GraphLayout, GraphSummary, SamplingSettings, TemporalRule};
use crate::pipeline::check_error::operator_path;
use crate::pipeline::{Format, OperatorKind, Pipeline, Source, infer, join_names};
use crate::schema::Schema;

/// `sample_neighbors` for one graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphBatchPlan {
    /// The settings of the sampler.
    pub settings: SamplingSettings,
    /// Whether the weights of edges are used.
    pub weighted: bool,
    /// The columns of the rows with the ids of the seeds, each with its node type: `node`, or `source` and `target`.
    pub seeds: Vec<(String, u16)>,
    /// The column of the rows with the time of each seed.
    pub time_column: Option<String>,
    /// The edges that samples must not contain.
    pub excluded: Option<ExcludedRelations>,
    /// The columns of batches.
    pub columns: Vec<GraphColumn>,
    /// The layout and the parts of the graph as JSON, which is metadata of the Arrow schema.
    pub metadata: String,
}

/// The edges between the nodes of a link that samples must not contain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExcludedRelations {
    /// The relation of the links.
    pub relation: u16,
    /// The relation with the reverse edges, if they are excluded too.
    pub reverse: Option<u16>,
}

/// The form of [`GraphBatchPlan::metadata`].
#[derive(Serialize)]
struct BatchMetadata<'a> {
    layout: GraphLayout,
    hops: usize,
    disjoint: bool,
    #[serde(skip_serializing_if = "is_sampled")]
    subgraph: SubgraphEdges,
    #[serde(skip_serializing_if = "Option::is_none")]
    negatives: Option<&'a NegativeSampling>,
    /// Whether names of columns have no prefix.
    homogeneous: bool,
    node_types: Vec<&'a str>,
    /// Source type, name and target type.
    relations: Vec<[&'a str; 3]>,
    seeds: &'a SeedKind,
    /// The columns of the rows. The other columns belong to the sampled graph.
    rows: Vec<&'a str>,
    /// The column of the rows with the time of each seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
}

/// Whether batches contain only the sampled edges, which the metadata does not mention.
fn is_sampled(subgraph: &SubgraphEdges) -> bool {
    *subgraph == SubgraphEdges::Sampled
}

/// The seeds of a job: nodes of a type, or links of a relation.
enum SeedTarget {
    Nodes(usize),
    Links(usize),
}

impl GraphBatchPlan {
    /// Plans the batches of a pipeline that ends with `sample_neighbors`. `source` are the columns of the source. Returns `None` for
    /// other pipelines.
    ///
    /// # Errors
    /// Returns a message that names the operator, the invalid part and the fix.
    pub fn new(pipeline: &Pipeline, source: &Schema, graph: &GraphSummary) -> Result<Option<Self>, String> {
        let Some(last) = pipeline.operators.len().checked_sub(1) else { return Ok(None) };
        let kind = &pipeline.operators[last].kind;
        let OperatorKind::SampleNeighbors(operator) = kind else { return Ok(None) };
        let schemas = infer(pipeline, source).map_err(|error| error.to_string())?;
        let plan = Self::of_operator(operator, pipeline, &schemas[last], graph);
        plan.map(Some).map_err(|sentence| format!("{}: {sentence}", operator_path(last, kind)))
    }

    fn of_operator(
        operator: &SampleNeighbors,
        pipeline: &Pipeline,
        rows: &Schema,
        graph: &GraphSummary,
    ) -> Result<Self, String> {
        let names = seed_columns(rows);
        let kind = seed_kind(operator, &pipeline.source, names.len() > 1, graph)?;
        let target = seed_target(&kind, graph)?;
        let seed_types = match target {
            SeedTarget::Nodes(node_type) => vec![node_type],
            SeedTarget::Links(relation) => {
                let (source, target) = graph.node_types_of(relation).ok_or(INVALID_SUMMARY)?;
                vec![source, target]
            }
        };
        let fanouts = operator.fanouts.resolve(graph)?;
        let mut scope = column_scope(graph, &fanouts, &seed_types, names.len() > 1)?;
        check_relations(operator, &scope)?;
        let reverses = match operator.is_bidirectional() {
            true => reverse_relations(&mut scope)?,
            false => Vec::new(),
        };
        let negatives = match (&operator.negatives, &target) {
            (Some(negatives), SeedTarget::Links(relation)) => Some(negatives.resolve(*relation, graph)?),
            _ => None,
        };
        let settings = SamplingSettings {
            seed: pipeline.seed,
            operator: operator_number(pipeline),
            resample: operator.resample,
            layout: operator.layout,
            replace: operator.replace,
            disjoint: operator.disjoint,
            temporal: operator
                .time
                .as_ref()
                .map(|time| TemporalRule { strategy: time.strategy, window: time.window }),
            merge_seeds: names.len() > 1,
            edge_positions: operator.edge_ids || !operator.edge_features.is_empty(),
            reverses,
            negatives,
            fanouts,
            ..SamplingSettings::default()
        };
        settings.check()?;
        let lists = lists_of_rows(rows)?;
        let metadata = BatchMetadata {
            layout: operator.layout,
            hops: operator.fanouts.hops(),
            disjoint: operator.disjoint,
            subgraph: operator.subgraph,
            negatives: operator.negatives.as_ref(),
            homogeneous: graph.is_homogeneous(),
            node_types: scope.node_types.iter().map(|&index| graph.nodes[index].name.as_str()).collect(),
            relations: scope
                .relations
                .iter()
                .map(|&index| &graph.relations[index])
                .map(|relation| [relation.source.as_str(), &relation.name, &relation.target])
                .collect(),
            seeds: &kind,
            rows: lists.names().collect(),
            time: operator.time_column(),
        };
        Ok(Self {
            columns: scope.columns(operator, &lists)?,
            metadata: serde_json::to_string(&metadata).map_err(|error| error.to_string())?,
            weighted: operator.weighted,
            // The check of a description limits the number of node types.
            seeds: names
                .iter()
                .map(|&name| name.to_owned())
                .zip(seed_types.iter().map(|&index| index as u16))
                .collect(),
            time_column: operator.time.as_ref().map(|time| time.column.clone()),
            excluded: excluded_edges(operator.exclude_seed_edges, &target, graph)?,
            settings,
        })
    }

    /// The number of seed nodes of a row, with the nodes of its negatives.
    pub fn seeds_per_row(&self) -> u32 {
        self.settings.negatives.map_or(self.seeds.len() as u32, |rule| rule.seeds_per_link())
    }

    /// The index of the column with the labels of links among the columns of the rows.
    pub fn label_column(&self) -> Option<usize> {
        let mut rows = self.columns.iter().filter(|column| column.content == GraphColumnContent::RowColumn);
        rows.position(|column| column.name == LABEL_COLUMN)
    }

    /// The columns of batches.
    pub fn schema(&self) -> Schema {
        Schema::new(self.columns.iter().map(|column| (column.name.as_str(), column.column_type.clone())))
    }
}

/// The error of a summary that a valid description cannot have.
const INVALID_SUMMARY: &str = "the summary of the graph is invalid; index the dataset again";

/// The number of the operator for its random draws. Operators of the engine and operators that change only the encoding do not
/// count, so that a `cache` does not change the draws.
fn operator_number(pipeline: &Pipeline) -> u32 {
    let counts = |kind: &OperatorKind| !kind.is_engine_operator() && !kind.definition().is_encoding_only();
    pipeline.operators.iter().filter(|operator| counts(&operator.kind)).count() as u32
}

/// Returns the nodes or links that the seeds of a pipeline are.
fn seed_kind(
    operator: &SampleNeighbors,
    source: &Source,
    has_links: bool,
    graph: &GraphSummary,
) -> Result<SeedKind, String> {
    let kind = |name: String| if has_links { SeedKind::Links(name) } else { SeedKind::Nodes(name) };
    if let Some(name) = &operator.seed_type {
        return Ok(kind(name.clone()));
    }
    let mut kinds = Vec::new();
    for dataset in source.datasets().into_iter().filter(|dataset| dataset.format == Format::Graph) {
        let sets =
            graph.seeds.iter().filter(|seeds| dataset.seeds.as_ref().is_none_or(|name| *name == seeds.name));
        kinds.extend(sets.map(|seeds| &seeds.of).filter(|of| matches!(of, SeedKind::Links(_)) == has_links));
    }
    kinds.dedup();
    if let [only] = kinds.as_slice() {
        return Ok((*only).clone());
    }
    let names: Vec<String> = match has_links {
        true => graph.relations.iter().map(|relation| relation.key()).collect(),
        false => graph.nodes.iter().map(|node_type| node_type.name.clone()).collect(),
    };
    match names.as_slice() {
        [only] => Ok(kind(only.clone())),
        _ => Err(format!(
            "seed_type is missing, and the seeds do not determine it; set it to one of {}",
            join_names(names.iter().map(String::as_str))
        )),
    }
}

/// Finds the node type or relation of the seeds.
fn seed_target(kind: &SeedKind, graph: &GraphSummary) -> Result<SeedTarget, String> {
    let (what, name, found) = match kind {
        SeedKind::Nodes(name) => ("node type", name, graph.node_type(name).map(SeedTarget::Nodes)),
        SeedKind::Links(name) => ("relation", name, graph.relation(name).map(SeedTarget::Links)),
    };
    found.ok_or_else(|| {
        let names: Vec<String> = match kind {
            SeedKind::Nodes(_) => graph.nodes.iter().map(|node_type| node_type.name.clone()).collect(),
            SeedKind::Links(_) => graph.relations.iter().map(|relation| relation.key()).collect(),
        };
        format!(
            "seed_type is `{name}`, but the graph has no such {what}; set it to one of {}",
            join_names(names.iter().map(String::as_str))
        )
    })
}

/// Returns the node types and relations that batches contain: the sampled relations, their node types, and those of the seeds.
fn column_scope<'a>(
    graph: &'a GraphSummary,
    fanouts: &[Vec<Fanout>],
    seed_types: &[usize],
    has_links: bool,
) -> Result<ColumnScope<'a>, String> {
    let is_sampled = |relation: &usize| {
        fanouts.iter().any(|hop| hop.get(*relation).is_some_and(|fanout| *fanout != Fanout::Limit(0)))
    };
    let relations: Vec<usize> = (0..graph.relations.len()).filter(is_sampled).collect();
    let mut node_types = seed_types.to_vec();
    for &relation in &relations {
        let (source, target) = graph.node_types_of(relation).ok_or(INVALID_SUMMARY)?;
        node_types.extend([source, target]);
    }
    node_types.sort_unstable();
    node_types.dedup();
    Ok(ColumnScope { graph, node_types, relations, has_links })
}

/// Checks that the sampled relations have the weights and times that the operator uses.
fn check_relations(operator: &SampleNeighbors, scope: &ColumnScope<'_>) -> Result<(), String> {
    let sampled = || scope.relations.iter().map(|&relation| &scope.graph.relations[relation]);
    if operator.weighted
        && let Some(relation) = sampled().find(|relation| !relation.has_weights)
    {
        return Err(format!(
            "weighted is true, but the relation `{}` has no weights; build the graph with weights, or remove weighted",
            relation.key()
        ));
    }
    if operator.time.is_some() && sampled().all(|relation| !relation.has_times) {
        return Err(
            "time is set, but the sampled relations have no times; build the graph with times, or remove time"
                .to_owned(),
        );
    }
    Ok(())
}

/// Returns the edges that samples must not contain.
fn excluded_edges(
    excluded: ExcludedSeedEdges,
    target: &SeedTarget,
    graph: &GraphSummary,
) -> Result<Option<ExcludedRelations>, String> {
    let SeedTarget::Links(relation) = target else { return Ok(None) };
    let reverse = match excluded {
        ExcludedSeedEdges::None => return Ok(None),
        ExcludedSeedEdges::Seeds => None,
        ExcludedSeedEdges::Both => Some(reverse_relation(*relation, graph)? as u16),
    };
    Ok(Some(ExcludedRelations { relation: *relation as u16, reverse }))
}

/// Returns the reverse relation of each relation of a bidirectional graph, and adds them to the relations of batches.
fn reverse_relations(scope: &mut ColumnScope<'_>) -> Result<Vec<Option<u16>>, String> {
    let graph = scope.graph;
    let mut reverses = vec![None; graph.relations.len()];
    for relation in scope.relations.clone() {
        let reverse = graph.reverse_of(relation);
        let Some(reverse) = reverse.filter(|reverse| graph.reverse_of(*reverse) == Some(relation)) else {
            let forward = &graph.relations[relation];
            return Err(format!(
                "subgraph is bidirectional, but the graph has no relation `rev_{}` from `{}` to `{}`; remove `{}` from fanouts, or remove subgraph",
                forward.name,
                forward.target,
                forward.source,
                forward.key()
            ));
        };
        // The check of a description limits the number of relations.
        reverses[relation] = Some(reverse as u16);
        reverses[reverse] = Some(relation as u16);
        scope.relations.push(reverse);
    }
    scope.relations.sort_unstable();
    scope.relations.dedup();
    Ok(reverses)
}

/// Returns the relation with the reverse edges of a relation.
fn reverse_relation(relation: usize, graph: &GraphSummary) -> Result<usize, String> {
    graph.reverse_of(relation).ok_or_else(|| {
        let forward = &graph.relations[relation];
        format!(
            "exclude_seed_edges is both, but the graph has no relation `rev_{}` from `{}` to `{}`; set it to seeds",
            forward.name, forward.target, forward.source
        )
    })
}
