//! The plan of a build: its node types and relations, with open tables. Rejects settings that contradict each other.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::graph::description::{SeedKind, check_name, relation_key};

use super::edge_input::{EdgeColumnsChoice, EdgeInput, ResolvedNodes};
use super::features::FeatureInput;
use super::seeds::{SeedInput, SeedRowsTable, SeedValues};
use super::spec::{
    ColumnName, ColumnRef, FeatureSpec, GraphSpec, LinkSeedSpec, NodeSpec, RelationSpec, SeedSpec,
};
use super::table::{ColumnChoice, NumpyAxes, Table};
use crate::error::GraphError;

/// The value of a seed set that contains all nodes.
const ALL_SEEDS: &str = "all";
/// The columns with the labels of seeds, if they are not labels of nodes.
const NODE_LABEL: &str = "y";
const LINK_LABEL: &str = "label";
/// Columns of seed sets that are not labels.
const RESERVED_COLUMNS: [&str; 5] = ["node", "source", "target", "time", "input_id"];

/// The plan of a build.
#[derive(Debug)]
pub(super) struct GraphPlan<'a> {
    pub(super) nodes: Vec<NodePlan<'a>>,
    pub(super) relations: Vec<RelationPlan<'a>>,
    /// The files of each relation.
    pub(super) tables: Vec<EdgeTables>,
}

/// A node type.
#[derive(Debug)]
pub(super) struct NodePlan<'a> {
    pub(super) name: &'a str,
    pub(super) spec: &'a NodeSpec,
    pub(super) ids: Option<IdTable>,
    /// The number of nodes with ids, after the ids are numbered.
    pub(super) id_count: Option<u64>,
    pub(super) features: Vec<FeatureInput>,
    pub(super) seeds: Vec<SeedPlan<'a>>,
}

/// The ids of the nodes of a type.
#[derive(Debug)]
pub(super) struct IdTable {
    pub(super) table: Table,
    pub(super) column: ColumnChoice,
    /// Whether ids are text. Integers in other tables are then positions.
    pub(super) has_text: bool,
}

/// A relation.
#[derive(Debug)]
pub(super) struct RelationPlan<'a> {
    pub(super) spec: &'a RelationSpec,
    pub(super) key: String,
    /// The indexes of the node types of the source and the target.
    pub(super) ends: [usize; 2],
    pub(super) features: Vec<FeatureInput>,
    pub(super) seeds: Vec<SeedPlan<'a>>,
}

/// The open files with the edges of a relation.
#[derive(Debug)]
pub(super) struct EdgeTables {
    pub(super) edges: Table,
    pub(super) choice: EdgeColumnsChoice,
    /// NumPy arrays that replace columns.
    pub(super) weight: Option<Table>,
    pub(super) time: Option<Table>,
}

/// A seed set.
#[derive(Debug)]
pub(super) struct SeedPlan<'a> {
    pub(super) name: &'a str,
    pub(super) kind: SeedKind,
    pub(super) input: SeedInput,
}

impl<'a> GraphPlan<'a> {
    /// Opens the files of a build.
    ///
    /// # Errors
    /// Returns an error if a setting is invalid, or a file cannot be read.
    pub(super) fn open(spec: &'a GraphSpec, no_files: &'a NodeSpec) -> Result<Self, GraphError> {
        if spec.relations.is_empty() {
            return Err(GraphError::Setting("the graph has no relations: list at least one".to_owned()));
        }
        let mut names: BTreeSet<&str> = spec.nodes.keys().map(String::as_str).collect();
        for relation in &spec.relations {
            names.insert(&relation.source);
            names.insert(&relation.target);
        }
        let mut nodes = Vec::new();
        for name in names {
            nodes.push(NodePlan::open(name, spec.nodes.get(name).unwrap_or(no_files))?);
        }
        let index = |name: &str| nodes.iter().position(|node: &NodePlan<'_>| node.name == name).unwrap_or(0);
        let (mut relations, mut tables) = (Vec::new(), Vec::new());
        for relation in &spec.relations {
            let ends = [index(&relation.source), index(&relation.target)];
            let plan = RelationPlan::open(relation, ends)?;
            let edges = EdgeTables::open(relation)?;
            plan.check_features(&edges.edges)?;
            relations.push(plan);
            tables.push(edges);
        }
        let plan = Self { nodes, relations, tables };
        plan.check_names()?;
        Ok(plan)
    }

    /// Rejects relations and seed sets with equal names.
    fn check_names(&self) -> Result<(), GraphError> {
        let mut keys = BTreeSet::new();
        for relation in &self.relations {
            for key in [Some(relation.key.clone()), relation.reverse_key()].into_iter().flatten() {
                if let Some(key) = keys.replace(key) {
                    return Err(GraphError::Setting(format!(
                        "the relation `{key}` is listed twice: list all its files in one relation, or rename one of them"
                    )));
                }
            }
        }
        let of_nodes = self.nodes.iter().flat_map(|node| &node.seeds);
        let of_relations = self.relations.iter().flat_map(|relation| &relation.seeds);
        let mut names = BTreeSet::new();
        for seeds in of_nodes.chain(of_relations) {
            if !names.insert(seeds.name) {
                return Err(GraphError::Setting(format!(
                    "the seed set `{}` is listed twice: rename one of them",
                    seeds.name
                )));
            }
        }
        Ok(())
    }
}

impl<'a> NodePlan<'a> {
    fn open(name: &'a str, spec: &'a NodeSpec) -> Result<Self, GraphError> {
        check_name("node type", name).map_err(GraphError::Setting)?;
        let ids = match &spec.ids {
            Some(ids) => {
                let (table, column) = open_column(ids)?;
                let has_text = table.has_text(&column)?;
                Some(IdTable { table, column, has_text })
            }
            None => None,
        };
        for label in spec.labels.keys() {
            check_column_name(label)?;
        }
        let mut seeds = Vec::new();
        for (seed_name, seed) in &spec.seeds {
            check_name("seed set", seed_name).map_err(GraphError::Setting)?;
            if seed.label.is_some() && spec.labels.contains_key(NODE_LABEL) {
                return Err(GraphError::Setting(format!(
                    "the seed set `{seed_name}` has a label, but the nodes have the label `{NODE_LABEL}` too: remove one of them"
                )));
            }
            let kind = SeedKind::Nodes(name.to_owned());
            seeds.push(SeedPlan { name: seed_name, kind, input: open_seeds(seed)? });
        }
        Ok(Self { name, spec, ids, id_count: None, features: open_features(&spec.features)?, seeds })
    }
}

impl<'a> RelationPlan<'a> {
    fn open(spec: &'a RelationSpec, ends: [usize; 2]) -> Result<Self, GraphError> {
        check_settings(spec)?;
        let key = spec.key();
        let mut seeds = Vec::new();
        for (name, seed) in &spec.seeds {
            check_name("seed set", name).map_err(GraphError::Setting)?;
            let kind = SeedKind::Links(key.clone());
            seeds.push(SeedPlan { name, kind, input: open_link_seeds(seed)? });
        }
        let features = open_features(&spec.features)?;
        Ok(Self { spec, key, ends, features, seeds })
    }

    /// Features have one row for each row of the edges. The rows of CSV files are not counted here.
    fn check_features(&self, edges: &Table) -> Result<(), GraphError> {
        let Some(rows) = edges.rows() else { return Ok(()) };
        match self.features.iter().find(|feature| feature.count() != rows) {
            Some(feature) => Err(feature.wrong_count(rows, "edges")),
            None => Ok(()),
        }
    }

    /// Returns the key of the relation with the edges in the other direction, if there is one.
    pub(super) fn reverse_key(&self) -> Option<String> {
        let RelationSpec { source, target, reverse, .. } = self.spec;
        reverse.as_ref().map(|name| relation_key(target, name, source))
    }

    /// Whether the position of each edge in the input is needed.
    pub(super) fn needs_edge_ids(&self) -> bool {
        self.spec.edge_ids || !self.features.is_empty()
    }
}

impl EdgeTables {
    fn open(spec: &RelationSpec) -> Result<Self, GraphError> {
        let edges = Table::open(spec.edges.paths(), NumpyAxes::Pairs)?;
        let endpoints = choose_ends(&edges, spec.columns.as_ref())?;
        let mut filters = Vec::new();
        for (column, value) in &spec.filter {
            filters.push((choose_one(&edges, column)?, value.0.clone()));
        }
        let (weight_column, weight) = open_value(&edges, spec.weight.as_deref())?;
        let (time_column, time) = open_value(&edges, spec.time.as_deref())?;
        let choice = EdgeColumnsChoice { endpoints, filters, weight: weight_column, time: time_column };
        Ok(Self { edges, choice, weight, time })
    }

    /// Returns the input of the edges, whose ids have been resolved.
    pub(super) fn into_input(self, resolved: [Option<ResolvedNodes>; 2]) -> EdgeInput {
        EdgeInput::new(self.edges, self.choice, (self.weight, self.time), resolved)
    }
}

/// Returns the column of a table, or the NumPy array, that contains values of its rows.
fn open_value(
    table: &Table,
    value: Option<&str>,
) -> Result<(Option<ColumnChoice>, Option<Table>), GraphError> {
    match value {
        None => Ok((None, None)),
        Some(path) if path.ends_with(".npy") => {
            let array = Table::open(&[path.to_owned()], NumpyAxes::Rows)?;
            // The rows of CSV files are not counted here.
            if let (Some(table_rows), Some(rows)) = (table.rows(), array.rows())
                && rows != table_rows
            {
                let name = table.name();
                let reason = format!(
                    "the array has {rows} rows, but `{name}` has {table_rows}: save one row for each"
                );
                return Err(GraphError::file(array.name(), reason));
            }
            Ok((None, Some(array)))
        }
        Some(column) => Ok((Some(choose_one(table, column)?), None)),
    }
}

/// Returns the values of a seed set.
fn open_seed_values(table: &Table, value: Option<&str>) -> Result<Option<SeedValues>, GraphError> {
    Ok(match open_value(table, value)? {
        (Some(column), _) => Some(SeedValues::Column(column)),
        (None, array) => array.map(|array| SeedValues::Array(Box::new(array))),
    })
}

/// Rejects settings of a relation that contradict each other.
fn check_settings(spec: &RelationSpec) -> Result<(), GraphError> {
    check_name("relation", &spec.name).map_err(GraphError::Setting)?;
    if let Some(reverse) = &spec.reverse {
        check_name("relation", reverse).map_err(GraphError::Setting)?;
    }
    let key = spec.key();
    let invalid = |reason: &str| Err(GraphError::Setting(format!("the relation `{key}` {reason}")));
    if !spec.undirected {
        return Ok(());
    }
    if spec.source != spec.target {
        return invalid(
            "cannot be undirected, because its node types differ: set `reverse` to the name of another relation",
        );
    }
    if spec.reverse.is_some() {
        return invalid("is undirected and has `reverse`: remove one of them");
    }
    if spec.edge_ids || !spec.features.is_empty() {
        return invalid(
            "cannot have edge ids or edge features if it is undirected, because duplicates are merged: store each direction in the \
             input",
        );
    }
    Ok(())
}

fn check_column_name(name: &str) -> Result<(), GraphError> {
    check_name("label", name).map_err(GraphError::Setting)?;
    if RESERVED_COLUMNS.contains(&name) {
        return Err(GraphError::Setting(format!(
            "the label `{name}` has the name of another column: choose another name"
        )));
    }
    Ok(())
}

fn open_features(specs: &BTreeMap<String, FeatureSpec>) -> Result<Vec<FeatureInput>, GraphError> {
    let mut features = Vec::new();
    for (name, spec) in specs {
        check_name("feature", name).map_err(GraphError::Setting)?;
        features.push(FeatureInput::open(name, spec)?);
    }
    Ok(features)
}

/// Opens a table with one column.
fn open_column(from: &ColumnRef) -> Result<(Table, ColumnChoice), GraphError> {
    let table = Table::open(std::slice::from_ref(&from.path), NumpyAxes::Rows)?;
    let choice = from.column.as_deref().map(ColumnChoice::parse);
    let columns = table.choose(choice.as_ref().map(std::slice::from_ref), 1)?;
    Ok((table, columns.into_iter().next().unwrap_or(ColumnChoice::Row)))
}

fn open_seeds(spec: &SeedSpec) -> Result<SeedInput, GraphError> {
    if spec.from.path == ALL_SEEDS && spec.from.column.is_none() {
        return match (&spec.label, &spec.time) {
            (None, None) => Ok(SeedInput::All),
            _ => Err(GraphError::Setting(
                "the seeds `all` have no times and labels of their own: list the seeds in a file".to_owned(),
            )),
        };
    }
    let (table, column) = open_column(&spec.from)?;
    let label = open_seed_values(&table, spec.label.as_deref())?.map(|label| (NODE_LABEL.to_owned(), label));
    let time = open_seed_values(&table, spec.time.as_deref())?;
    Ok(SeedInput::Rows(Box::new(SeedRowsTable {
        table,
        ends: vec![column],
        resolved: vec![None],
        label,
        time,
    })))
}

fn open_link_seeds(spec: &LinkSeedSpec) -> Result<SeedInput, GraphError> {
    let table = Table::open(spec.edges.paths(), NumpyAxes::Pairs)?;
    let ends = choose_ends(&table, spec.columns.as_ref())?;
    let label = open_seed_values(&table, spec.label.as_deref())?.map(|label| (LINK_LABEL.to_owned(), label));
    let time = open_seed_values(&table, spec.time.as_deref())?;
    Ok(SeedInput::Rows(Box::new(SeedRowsTable { table, ends, resolved: vec![None, None], label, time })))
}

fn choose_ends(table: &Table, columns: Option<&[ColumnName; 2]>) -> Result<Vec<ColumnChoice>, GraphError> {
    let choices = columns.map(|columns| columns.each_ref().map(|column| ColumnChoice::parse(&column.0)));
    table.choose(choices.as_ref().map(<[ColumnChoice; 2]>::as_slice), 2)
}

fn choose_one(table: &Table, column: &str) -> Result<ColumnChoice, GraphError> {
    let chosen = table.choose(Some(&[ColumnChoice::parse(column)]), 1)?;
    Ok(chosen.into_iter().next().unwrap_or(ColumnChoice::Row))
}
