//! The settings of a sampler: fanouts, layout, replacement and temporal rules.

use serde::{Deserialize, Serialize};

use super::draws::{DrawScope, Resample};
use super::negatives::{MAX_NEGATIVES, NegativeRule};

/// Maximum number of hops. The hop has eight bits in the counter of the draws.
pub(super) const MAX_HOPS: usize = 255;
/// Maximum number of relations. A relation has 16 bits in the counter of the draws.
const MAX_RELATIONS: usize = 1 << 16;
/// Maximum number of neighbors that are drawn for one node in one relation. Weighted draws take time proportional to its square.
const MAX_FANOUT: u32 = 1 << 16;
/// Maximum number of edges of a relation in a batch. Arrow lists have offsets of 31 bits.
pub(super) const MAX_EDGES: u32 = i32::MAX as u32;

/// The nodes that each hop expands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GraphLayout {
    /// A hop expands only the nodes that the previous hop added, so each node is expanded once. The batch is one graph, as in
    /// PyG.
    #[default]
    Subgraph,
    /// A hop expands all nodes of the batch with new draws. Each hop is a bipartite graph, as the blocks of DGL.
    Blocks,
}

/// The number of neighbors that are sampled for each node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fanout {
    /// All neighbors.
    All,
    /// At most this number of neighbors.
    Limit(u32),
}

impl Fanout {
    /// Converts the number that pipeline files and PyG use: -1 means all neighbors. `None` for other negative numbers and numbers
    /// that are too large.
    pub fn from_number(number: i64) -> Option<Self> {
        match number {
            -1 => Some(Self::All),
            _ => u32::try_from(number).ok().filter(|limit| *limit <= MAX_FANOUT).map(Self::Limit),
        }
    }
}

/// The neighbors that temporal sampling selects from those that are not later than the seed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TemporalStrategy {
    /// Random neighbors.
    #[default]
    Uniform,
    /// The latest neighbors. Weights are ignored.
    Last,
}

/// The rule of temporal sampling. Only edges that are not later than the row of the seed are sampled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TemporalRule {
    /// The neighbors that are selected.
    pub strategy: TemporalStrategy,
    /// The length of the time window that ends at the time of the row. An edge at the start of the window is outside.
    pub window: Option<u64>,
}

/// The settings of a sampler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplingSettings {
    /// The seed of the job.
    pub seed: u64,
    /// The number of the operator in the pipeline.
    pub operator: u32,
    /// When the neighbors of a node are drawn again.
    pub resample: Resample,
    /// The nodes that each hop expands.
    pub layout: GraphLayout,
    /// Whether a neighbor may be drawn several times.
    pub replace: bool,
    /// Whether each seed has its own tree, which shares no nodes with other trees.
    pub disjoint: bool,
    /// The rule of temporal sampling, for relations with times. Requires `disjoint`.
    pub temporal: Option<TemporalRule>,
    /// Whether equal seeds become one node. Otherwise each seed is a node of its own.
    pub merge_seeds: bool,
    /// Whether the sampled graph contains the positions of its edges.
    pub edge_positions: bool,
    /// Maximum number of edges of a relation in a batch.
    pub max_edges: u32,
    /// For bidirectional graphs: the relation with the reverse edges of each relation. The reverse of its sampled edges is added.
    /// Relations without a reverse relation do not change. Otherwise empty.
    pub reverses: Vec<Option<u16>>,
    /// How negatives are drawn, if the rows are links. The seeds of a row are then its source with the slot 0, and its target with
    /// the slot 1.
    pub negatives: Option<NegativeRule>,
    /// The fanout of each relation in each hop.
    pub fanouts: Vec<Vec<Fanout>>,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            seed: 0,
            operator: 0,
            resample: Resample::default(),
            layout: GraphLayout::default(),
            replace: false,
            disjoint: false,
            temporal: None,
            merge_seeds: false,
            edge_positions: false,
            max_edges: MAX_EDGES,
            reverses: Vec::new(),
            negatives: None,
            fanouts: Vec::new(),
        }
    }
}

impl SamplingSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// Returns a message that names the invalid setting and the fix.
    pub fn check(&self) -> Result<(), String> {
        if self.fanouts.is_empty() || self.fanouts.len() > MAX_HOPS {
            return Err(format!("the fanouts have {} hops; expected 1 to {MAX_HOPS}", self.fanouts.len()));
        }
        let relations = self.relation_count();
        if relations > MAX_RELATIONS {
            return Err(format!("{relations} relations exceed the limit of {MAX_RELATIONS}"));
        }
        if let Some(hop) = self.fanouts.iter().position(|fanouts| fanouts.len() != relations) {
            return Err(format!(
                "hop {} has {} fanouts, but hop 1 has {relations}; set one fanout for each relation",
                hop + 1,
                self.fanouts[hop].len()
            ));
        }
        let too_large = |fanout: &&Fanout| matches!(fanout, Fanout::Limit(limit) if *limit > MAX_FANOUT);
        if let Some(Fanout::Limit(limit)) = self.fanouts.iter().flatten().find(too_large) {
            return Err(format!(
                "the fanout {limit} exceeds the limit of {MAX_FANOUT}; use -1 to sample all neighbors"
            ));
        }
        if self.temporal.is_some() && !self.disjoint {
            return Err(
                "temporal sampling requires disjoint trees, because each seed has its own time; set `disjoint: true`"
                    .to_owned(),
            );
        }
        if self.max_edges > MAX_EDGES {
            return Err(format!(
                "`max_edges` is {}, but a batch has at most {MAX_EDGES} edges",
                self.max_edges
            ));
        }
        self.check_reverses()?;
        self.check_negatives()
    }

    fn check_reverses(&self) -> Result<(), String> {
        if self.reverses.is_empty() {
            return Ok(());
        }
        if self.layout == GraphLayout::Blocks {
            return Err(
                "a bidirectional graph has edges in both directions, but the edges of blocks lead to the targets of a hop; use `layout: subgraph` or `subgraph: sampled`"
                    .to_owned(),
            );
        }
        let relations = self.relation_count();
        let is_known = |reverse: &Option<u16>| reverse.is_none_or(|reverse| usize::from(reverse) < relations);
        if self.reverses.len() != relations || !self.reverses.iter().all(is_known) {
            return Err(format!("the reverse relations do not match the {relations} relations"));
        }
        let is_other = |(relation, reverse): (usize, &Option<u16>)| {
            reverse.is_some_and(|reverse| usize::from(reverse) != relation)
        };
        if self.edge_positions && self.reverses.iter().enumerate().any(is_other) {
            return Err(
                "a bidirectional graph has no edge ids and edge features if the reverse edges are in another relation; use `subgraph: sampled`, or remove edge_ids and edge_features"
                    .to_owned(),
            );
        }
        Ok(())
    }

    fn check_negatives(&self) -> Result<(), String> {
        let Some(NegativeRule { amount, relation, reverse, .. }) = self.negatives else { return Ok(()) };
        if !(1..=MAX_NEGATIVES).contains(&amount) {
            return Err(format!("a link has {amount} negatives; expected 1 to {MAX_NEGATIVES}"));
        }
        let relations = self.relation_count();
        if usize::from(relation.max(reverse)) >= relations {
            return Err(format!("the relation of the negatives is not one of the {relations} relations"));
        }
        Ok(())
    }

    /// The number of relations that have fanouts.
    pub(super) fn relation_count(&self) -> usize {
        self.fanouts.first().map_or(0, Vec::len)
    }

    pub(super) fn draw_scope(&self) -> DrawScope {
        DrawScope { seed: self.seed, operator: self.operator, resample: self.resample }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{NegativeMode, NegativeWeights};

    fn settings(fanouts: Vec<Vec<Fanout>>) -> SamplingSettings {
        SamplingSettings { fanouts, ..SamplingSettings::default() }
    }

    #[test]
    fn invalid_settings_are_rejected_in_one_sentence() {
        let message = |settings: SamplingSettings| settings.check().unwrap_err();
        let limit = Fanout::Limit;
        assert_eq!(message(settings(vec![])), "the fanouts have 0 hops; expected 1 to 255");
        assert_eq!(
            message(settings(vec![vec![limit(1), limit(2)], vec![limit(1)]])),
            "hop 2 has 1 fanouts, but hop 1 has 2; set one fanout for each relation"
        );
        assert_eq!(
            message(settings(vec![vec![limit(65_537)]])),
            "the fanout 65537 exceeds the limit of 65536; use -1 to sample all neighbors"
        );
        let temporal = Some(TemporalRule::default());
        assert_eq!(
            message(SamplingSettings { temporal, ..settings(vec![vec![limit(1)]]) }),
            "temporal sampling requires disjoint trees, because each seed has its own time; set `disjoint: true`"
        );
        assert_eq!(
            message(SamplingSettings { max_edges: u32::MAX, ..settings(vec![vec![limit(1)]]) }),
            "`max_edges` is 4294967295, but a batch has at most 2147483647 edges"
        );
        assert_eq!(settings(vec![vec![limit(1), Fanout::All]]).check(), Ok(()));
    }

    #[test]
    fn bidirectional_graphs_have_no_blocks_and_no_ids_of_another_relation() {
        let two = |reverses: &[Option<u16>]| SamplingSettings {
            reverses: reverses.to_vec(),
            ..settings(vec![vec![Fanout::All; 2]])
        };
        for reverses in [&[Some(1), Some(0)][..], &[Some(0), None], &[]] {
            assert_eq!(two(reverses).check(), Ok(()));
        }
        for reverses in [&[Some(0)][..], &[Some(2), None]] {
            let message = two(reverses).check().unwrap_err();
            assert_eq!(message, "the reverse relations do not match the 2 relations");
        }
        let blocks = SamplingSettings { layout: GraphLayout::Blocks, ..two(&[Some(0), Some(1)]) };
        assert!(blocks.check().unwrap_err().ends_with("use `layout: subgraph` or `subgraph: sampled`"));
        let with_ids = |settings: SamplingSettings| SamplingSettings { edge_positions: true, ..settings };
        assert_eq!(with_ids(two(&[Some(0), None])).check(), Ok(()));
        let message = with_ids(two(&[Some(1), Some(0)])).check().unwrap_err();
        assert!(message.contains("no edge ids and edge features"), "{message}");
    }

    #[test]
    fn the_number_of_negatives_is_limited() {
        let rule = NegativeRule {
            mode: NegativeMode::Triplet,
            amount: MAX_NEGATIVES,
            strict: false,
            by: NegativeWeights::Uniform,
            relation: 0,
            reverse: 0,
        };
        let check = |rule: NegativeRule| {
            SamplingSettings { negatives: Some(rule), ..settings(vec![vec![Fanout::All]]) }.check()
        };
        assert_eq!(check(rule), Ok(()));
        for amount in [0, MAX_NEGATIVES + 1] {
            let message = check(NegativeRule { amount, ..rule }).unwrap_err();
            assert_eq!(message, format!("a link has {amount} negatives; expected 1 to 10000"));
        }
        let message = "the relation of the negatives is not one of the 1 relations";
        assert_eq!(check(NegativeRule { relation: 1, ..rule }), Err(message.to_owned()));
        assert_eq!(check(NegativeRule { reverse: 1, ..rule }), Err(message.to_owned()));
    }

    #[test]
    fn minus_one_means_all_neighbors() {
        let fanouts = [-2, -1, 0, 65_536, 65_537, i64::MAX].map(Fanout::from_number);
        let expected =
            [None, Some(Fanout::All), Some(Fanout::Limit(0)), Some(Fanout::Limit(65_536)), None, None];
        assert_eq!(fanouts, expected);
    }
}
