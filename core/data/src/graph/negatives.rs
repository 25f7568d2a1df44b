//! The negatives of links: pairs of nodes that a model is trained to distinguish from links. `docs/graphs.md` defines their draws.

use serde::{Deserialize, Serialize};

use super::draws::{DrawScope, DrawStream};
use super::node_draws::NodeDraws;
use super::sample_error::SampleError;
use super::sampled::MAX_NODES;
use super::seeds::{BatchSeeds, Seed};
use super::topology::{GraphView, RelationView};

/// Maximum number of negatives of a link.
pub const MAX_NEGATIVES: u32 = 10_000;
/// Maximum number of pairs that are drawn for a strict negative. After that, the targets are tried in order.
const MAX_DRAWN_PAIRS: u32 = 64;
/// The seeds of a link: its source and its target.
const LINK_SEEDS: usize = 2;

/// The nodes of a negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NegativeMode {
    /// A source and a target.
    Binary,
    /// A target for the source of the link.
    Triplet,
}

/// The probabilities of the nodes of negatives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum NegativeWeights {
    /// All nodes have the same probability.
    #[default]
    #[serde(rename = "uniform")]
    Uniform,
    /// The probability of a node is proportional to the power 3/4 of its number of edges.
    #[serde(rename = "degree^0.75")]
    Degree,
}

/// How the negatives of links are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NegativeRule {
    /// The nodes of a negative.
    pub mode: NegativeMode,
    /// The number of negatives of each link.
    pub amount: u32,
    /// Whether a pair that is an edge of the relation is never a negative.
    pub strict: bool,
    /// The probabilities of the nodes.
    pub by: NegativeWeights,
    /// The relation of the links.
    pub relation: u16,
    /// The relation with the reverse edges, whose numbers of edges are the degrees of the sources. Only used by `Binary` with
    /// [`NegativeWeights::Degree`].
    pub reverse: u16,
}

impl NegativeRule {
    /// The number of seed nodes of a link with its negatives.
    pub fn seeds_per_link(&self) -> u32 {
        let nodes_per_negative = match self.mode {
            NegativeMode::Binary => 2,
            NegativeMode::Triplet => 1,
        };
        LINK_SEEDS as u32 + self.amount.saturating_mul(nodes_per_negative)
    }
}

/// The seeds of a batch of links with their negatives. Its memory is reused.
#[derive(Debug, Default)]
pub(super) struct NegativeSeeds {
    seeds: Vec<Seed>,
}

impl NegativeSeeds {
    /// The size of the memory that is kept for the next batch.
    pub(super) fn memory_bytes(&self) -> usize {
        self.seeds.capacity() * size_of::<Seed>()
    }

    /// Adds the negatives of each link after the seeds of the link. The seeds of each row are a source and a target, which exist.
    pub(super) fn add<'s>(
        &'s mut self,
        rule: &NegativeRule,
        scope: DrawScope,
        graph: &GraphView<'_>,
        links: &BatchSeeds<'s>,
    ) -> Result<BatchSeeds<'s>, SampleError> {
        let draws = NegativeDraws::new(rule, graph)?;
        let count = links.rows.len().saturating_mul(rule.seeds_per_link() as usize);
        if count > MAX_NODES as usize {
            return Err(SampleError::NodeLimit { node_type: draws.links.target_type, limit: MAX_NODES });
        }
        if links.seeds.len() != LINK_SEEDS * links.rows.len() {
            return Err(SampleError::LinkSeeds { row: 0 });
        }
        self.seeds.clear();
        self.seeds.reserve(count);
        for ((row, seed_row), link) in (0..).zip(links.rows).zip(links.seeds.chunks_exact(LINK_SEEDS)) {
            let ends = draws.ends(row, link)?;
            self.seeds.extend_from_slice(link);
            let key = scope.key(seed_row, None);
            let mut slot = LINK_SEEDS as u16;
            for number in 0..rule.amount {
                let [source, target] = draws.draw(ends, &mut DrawStream::of_negative(key, ends, number))?;
                if rule.mode == NegativeMode::Binary {
                    self.seeds.push(Seed { node_type: draws.links.source_type, slot, row, node: source });
                    slot += 1;
                }
                self.seeds.push(Seed { node_type: draws.links.target_type, slot, row, node: target });
                slot += 1;
            }
        }
        Ok(BatchSeeds { rows: links.rows, seeds: &self.seeds, excluded: links.excluded })
    }
}

/// The draws of the negatives of a batch.
struct NegativeDraws<'a> {
    rule: NegativeRule,
    links: RelationView<'a>,
    sources: NodeDraws<'a>,
    targets: NodeDraws<'a>,
}

impl<'a> NegativeDraws<'a> {
    fn new(rule: &NegativeRule, graph: &GraphView<'a>) -> Result<Self, SampleError> {
        let view = |relation: u16| {
            let unknown = SampleError::RelationLengths { relation: usize::from(relation) };
            graph.relations.get(usize::from(relation)).copied().ok_or(unknown)
        };
        let count = |node_type: u16| graph.node_counts.get(usize::from(node_type)).copied().unwrap_or(0);
        let links = view(rule.relation)?;
        let (mut sources, mut targets) =
            (NodeDraws::uniform(count(links.source_type)), NodeDraws::uniform(count(links.target_type)));
        if rule.by == NegativeWeights::Degree {
            targets = NodeDraws::by_degree(rule.relation, links)?;
            if rule.mode == NegativeMode::Binary {
                let reverse = view(rule.reverse)?;
                if reverse.target_type != links.source_type {
                    return Err(SampleError::ReverseRelation {
                        relation: rule.relation,
                        reverse: rule.reverse,
                    });
                }
                sources = NodeDraws::by_degree(rule.reverse, reverse)?;
            }
        }
        Ok(Self { rule: *rule, links, sources, targets })
    }

    /// The source and the target of the seeds of a link.
    fn ends(&self, row: u32, link: &[Seed]) -> Result<[u32; 2], SampleError> {
        match link {
            [source, target]
                if (source.row, target.row) == (row, row)
                    && (source.slot, target.slot) == (0, 1)
                    && source.node_type == self.links.source_type
                    && target.node_type == self.links.target_type =>
            {
                Ok([source.node, target.node])
            }
            _ => Err(SampleError::LinkSeeds { row }),
        }
    }

    /// Draws a negative of a link.
    fn draw(&self, link: [u32; 2], draws: &mut DrawStream) -> Result<[u32; 2], SampleError> {
        let [mut source, mut target] = link;
        let most = if self.rule.strict { MAX_DRAWN_PAIRS } else { 1 };
        for _ in 0..most {
            if self.rule.mode == NegativeMode::Binary {
                source = self.sources.draw(draws)?;
            }
            target = self.targets.draw(draws)?;
            if !self.rule.strict || self.is_negative(link, [source, target]) {
                return Ok([source, target]);
            }
        }
        self.next_negative(link, [source, target])
    }

    /// Returns the first strict negative of a source after a target. After the last target, the search continues with the first.
    fn next_negative(&self, link: [u32; 2], [source, drawn]: [u32; 2]) -> Result<[u32; 2], SampleError> {
        let mut targets = (drawn..self.targets.count()).chain(0..drawn);
        let found = targets
            .find(|target| self.targets.can_draw(*target) && self.is_negative(link, [source, *target]));
        match found {
            Some(target) => Ok([source, target]),
            None => Err(SampleError::NoNegative { relation: self.rule.relation, source_node: source }),
        }
    }

    /// Whether a pair is neither the link nor an edge of the relation.
    fn is_negative(&self, link: [u32; 2], pair: [u32; 2]) -> bool {
        let [source, target] = pair;
        if pair == link {
            return false;
        }
        let Some(edges) = self.links.edges_of(target) else { return true };
        let sources = &self.links.sources[edges.start as usize..edges.end as usize];
        match self.links.times {
            None => sources.binary_search(&source).is_err(),
            // The edges are in the order of their times.
            Some(_) => !sources.contains(&source),
        }
    }
}
