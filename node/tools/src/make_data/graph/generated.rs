//! A generated graph: the edges, labels and seeds as functions of their indexes.

use anyhow::{Result, ensure};
use feedline_data::permutation::Permutation;
use feedline_data::random::{RowRandom, mix64};

use super::arguments::{GeneratedGraphArgs, GeneratedGraphSettings, GraphStructure};
use super::communities::CommunitiesShape;
use super::rmat::RMatShape;
use super::shape::GraphShape;
use super::uniform::UniformShape;

/// The first second of the times of edges: 2025-01-01.
const FIRST_TIME: i64 = 1_735_689_600;
/// The seconds of a year. The times of edges are in one year.
const YEAR_SECONDS: u32 = 31_536_000;

/// Separates the random numbers of a graph from each other, and from those of other datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RandomPurpose {
    Edges = 3,
    NodeFeatures = 4,
    EdgeFeatures = 5,
    SeedTimes = 6,
    NodeIds = 7,
    Seeds = 8,
    Centroids = 9,
}

/// An edge with its attributes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GeneratedEdge {
    pub(super) source: i64,
    pub(super) target: i64,
    /// Above 0, and at most 1.
    pub(super) weight: f32,
    /// Seconds since 1970.
    pub(super) time: i64,
}

/// A graph whose parts are computed when they are needed.
pub(in crate::make_data) struct GeneratedGraph {
    pub(super) settings: GeneratedGraphSettings,
    seed: u64,
    shape: Box<dyn GraphShape>,
    /// The number of seeds.
    seeds: u64,
    /// From ranks to ids.
    ids: Permutation,
    /// The order in which candidates become seeds.
    seed_order: Permutation,
}

impl GeneratedGraph {
    /// Checks the flags.
    pub(in crate::make_data) fn new(args: &GeneratedGraphArgs, seed: u64) -> Result<Self> {
        let settings = args.settings()?;
        let nodes = settings.nodes;
        let shape: Box<dyn GraphShape> = match settings.topology {
            GraphStructure::Communities => {
                Box::new(CommunitiesShape::new(nodes, settings.communities, settings.seeds_in))
            }
            GraphStructure::RMat => Box::new(RMatShape::new(nodes)),
            GraphStructure::Uniform => Box::new(UniformShape { nodes }),
        };
        let candidates = shape.seed_candidates();
        let seeds = settings.seeds.unwrap_or(candidates);
        ensure!(seeds <= candidates, "only {candidates} nodes can be seeds: lower --seeds");
        let permutation = |length: u64, purpose: RandomPurpose| {
            Permutation::new(length, mix64(seed ^ mix64(purpose as u64)))
        };
        let ids = permutation(nodes, RandomPurpose::NodeIds);
        let seed_order = permutation(candidates, RandomPurpose::Seeds);
        Ok(Self { settings, seed, shape, seeds, ids, seed_order })
    }

    /// The number of nodes.
    pub(in crate::make_data) fn nodes(&self) -> u64 {
        self.settings.nodes
    }

    /// The number of edges.
    pub(in crate::make_data) fn edges(&self) -> u64 {
        self.settings.edges
    }

    /// The number of seeds.
    pub(super) fn seeds(&self) -> u64 {
        self.seeds
    }

    /// Returns the random numbers of a row.
    pub(super) fn random(&self, purpose: RandomPurpose, row: u64) -> RowRandom {
        RowRandom::new(self.seed, purpose as u32, 0, row)
    }

    /// Returns an edge. Flags that add attributes do not change it.
    pub(super) fn edge(&self, index: u64) -> GeneratedEdge {
        let mut random = self.random(RandomPurpose::Edges, index);
        let [source, target] = self.shape.draw(&mut random).map(|rank| self.ids.apply(rank) as i64);
        let weight = ((random.next_u32() >> 8) + 1) as f32 / (1 << 24) as f32;
        let time = FIRST_TIME + i64::from(random.below(YEAR_SECONDS));
        GeneratedEdge { source, target, weight, time }
    }

    /// Returns the label of a node.
    pub(super) fn label(&self, node: u64) -> u64 {
        self.shape.label(self.ids.invert(node))
    }

    /// Whether a node is a seed.
    pub(super) fn is_seed(&self, node: u64) -> bool {
        let rank = self.ids.invert(node);
        rank < self.shape.seed_candidates() && self.seed_order.apply(rank) < self.seeds
    }

    /// Returns the time of a seed, in the second half of the year of the edges.
    pub(super) fn seed_time(&self, node: u64) -> i64 {
        let half = YEAR_SECONDS / 2;
        let offset = half + self.random(RandomPurpose::SeedTimes, node).below(half);
        FIRST_TIME + i64::from(offset)
    }
}
