//! Replaces ids of nodes by positions, in edges and seeds, before the edges are stored.

use std::path::Path;

use feedline_data::graph::description::NodeNames;

use super::edge_input::{EdgeInput, ResolvedNodes};
use super::ids::{IdResolver, ResolvedIds};
use super::plan::{GraphPlan, IdTable, NodePlan, RelationPlan, SeedPlan};
use super::run::BuildSettings;
use super::seeds::SeedInput;
use super::table::{ColumnChoice, Table};
use crate::error::GraphError;

/// A plan whose edges and seeds consist of positions.
pub(super) struct ResolvedGraph<'a> {
    pub(super) nodes: Vec<NodePlan<'a>>,
    pub(super) relations: Vec<(RelationPlan<'a>, EdgeInput)>,
    /// The ids of the nodes of each type, if they are not positions.
    pub(super) names: Vec<Option<NodeNames>>,
}

/// A column that identifies nodes by ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IdColumn {
    /// An end of a relation: the indexes of the relation and of the end.
    Edge(usize, usize),
    /// An end of a seed set of a relation: the indexes of the relation, of the seed set and of the end.
    LinkSeed(usize, usize, usize),
    /// A seed set of the node type, by its index.
    NodeSeed(usize),
}

/// Finds the positions of all nodes that are identified by ids.
///
/// # Errors
/// Returns an error if an id is unknown, or a file cannot be read or written.
pub(super) fn resolve_ids<'a>(
    mut plan: GraphPlan<'a>,
    (folder, spill): (&Path, &Path),
    settings: &BuildSettings,
) -> Result<ResolvedGraph<'a>, GraphError> {
    let mut names = Vec::new();
    let mut resolved: Vec<[Option<ResolvedNodes>; 2]> = plan.relations.iter().map(|_| [None, None]).collect();
    for index in 0..plan.nodes.len() {
        let columns = id_columns(&plan, index)?;
        if columns.is_empty() && plan.nodes[index].ids.is_none() {
            names.push(None);
            continue;
        }
        let name = plan.nodes[index].name;
        (settings.on_step)(&format!("numbering the ids of type {name}"));
        let mut resolver = IdResolver::new(settings, folder, spill, name)?;
        if let Some(IdTable { table, column, .. }) = &plan.nodes[index].ids {
            resolver.set_table(table, column)?;
        }
        for &column in &columns {
            let (table, choice) = find_column(&plan, index, column);
            resolver.add_use(table, choice, !matches!(column, IdColumn::Edge(..)))?;
        }
        let ResolvedIds { count, names: ids, columns: found } = resolver.finish()?;
        // The plan receives the number of nodes.
        plan.nodes[index].id_count = Some(count);
        names.push(Some(ids));
        for (column, found) in columns.into_iter().zip(found) {
            match column {
                IdColumn::Edge(relation, end) => resolved[relation][end] = Some(found),
                IdColumn::LinkSeed(relation, seeds, end) => {
                    set_resolved(&mut plan.relations[relation].seeds[seeds], end, found);
                }
                IdColumn::NodeSeed(seeds) => set_resolved(&mut plan.nodes[index].seeds[seeds], 0, found),
            }
        }
    }
    let inputs = plan.tables.into_iter().zip(resolved).map(|(tables, resolved)| tables.into_input(resolved));
    let relations = plan.relations.into_iter().zip(inputs).collect();
    Ok(ResolvedGraph { nodes: plan.nodes, relations, names })
}

/// Returns the columns that identify nodes of a type by ids: text, or integers if the table of ids contains integers.
fn id_columns(plan: &GraphPlan<'_>, node_type: usize) -> Result<Vec<IdColumn>, GraphError> {
    let has_integer_ids = plan.nodes[node_type].ids.as_ref().is_some_and(|ids| !ids.has_text);
    let mut candidates = Vec::new();
    for (index, relation) in plan.relations.iter().enumerate() {
        let ends = (0..2).filter(|&end| relation.ends[end] == node_type);
        for end in ends {
            candidates.push(IdColumn::Edge(index, end));
            candidates.extend((0..relation.seeds.len()).map(|seeds| IdColumn::LinkSeed(index, seeds, end)));
        }
    }
    candidates.extend((0..plan.nodes[node_type].seeds.len()).map(IdColumn::NodeSeed));
    let mut columns = Vec::new();
    for candidate in candidates {
        let Some((table, choice)) = column_of(plan, node_type, candidate) else { continue };
        let is_position = *choice == ColumnChoice::Row || table.has_booleans(choice)?;
        if !is_position && (has_integer_ids || table.has_text(choice)?) {
            columns.push(candidate);
        }
    }
    Ok(columns)
}

/// Returns the table and the column; `None` for seeds that are all nodes.
fn column_of<'p>(
    plan: &'p GraphPlan<'_>,
    node_type: usize,
    column: IdColumn,
) -> Option<(&'p Table, &'p ColumnChoice)> {
    let of_seeds = |seeds: &'p SeedPlan<'_>, end: usize| match &seeds.input {
        SeedInput::All => None,
        SeedInput::Rows(rows) => Some((&rows.table, &rows.ends[end])),
    };
    match column {
        IdColumn::Edge(relation, end) => {
            let tables = &plan.tables[relation];
            Some((&tables.edges, &tables.choice.endpoints[end]))
        }
        IdColumn::LinkSeed(relation, seeds, end) => of_seeds(&plan.relations[relation].seeds[seeds], end),
        IdColumn::NodeSeed(seeds) => of_seeds(&plan.nodes[node_type].seeds[seeds], 0),
    }
}

fn find_column<'p>(
    plan: &'p GraphPlan<'_>,
    node_type: usize,
    column: IdColumn,
) -> (&'p Table, &'p ColumnChoice) {
    column_of(plan, node_type, column).expect("the column has been found before")
}

fn set_resolved(seeds: &mut SeedPlan<'_>, end: usize, found: ResolvedNodes) {
    if let SeedInput::Rows(rows) = &mut seeds.input {
        rows.resolved[end] = Some(found);
    }
}
