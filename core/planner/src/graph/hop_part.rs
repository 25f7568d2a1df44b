//! One part of a hop of the model: the probabilities of a range of nodes.

use std::ops::Range;

use feedline_data::graph::{Fanout, RelationView};

use super::row_law::RowLaw;
use super::sampling::ModeledSampling;
use super::topology::{ModeledGraph, narrow, row_of};
use super::weighted_law::{WeightedMiss, WeightedRow};

/// A part of a hop: the probabilities of a range of nodes of one type. Parts are independent of each other.
#[derive(Debug)]
pub struct HopPart<'p> {
    pub(super) graph: ModeledGraph<'p>,
    pub(super) sampling: &'p ModeledSampling,
    /// The probability that a node enters the batch in a hop, by type, hop and node.
    pub(super) entries: &'p [Vec<Vec<f32>>],
    /// The probability that a target selects one edge up to a hop, by relation, hop and target.
    pub(super) selected: &'p [Vec<Vec<f32>>],
    pub(super) node_type: usize,
    /// The first node.
    pub(super) first: u32,
    /// The results.
    pub(super) entering: &'p mut [f32],
}

impl HopPart<'_> {
    /// Computes the probabilities of the nodes of this part.
    pub fn run(self) {
        let mut ln_absent = vec![0.0_f64; self.entering.len()];
        for (relation, edges) in self.graph.relations().iter().enumerate() {
            if usize::from(edges.source_type) == self.node_type {
                self.push(relation, edges, &mut ln_absent);
            }
        }
        let hops = &self.entries[self.node_type];
        let nodes = self.first as usize..;
        for ((node, ln_absent), entering) in nodes.zip(ln_absent).zip(self.entering) {
            let seed = f64::from(hops[0][node]);
            let included = seed + (1.0 - seed) * -ln_absent.exp_m1();
            let before: f64 = hops.iter().map(|hop| f64::from(hop[node])).sum();
            *entering = (included - before).max(0.0) as f32;
        }
    }

    /// Adds the logarithms of the probabilities that the targets of a relation miss the nodes of this part.
    fn push(&self, relation: usize, edges: &RelationView<'_>, ln_absent: &mut [f64]) {
        let entries = &self.entries[usize::from(edges.target_type)];
        let mut law = RowLaw::new(self.sampling.settings.layout);
        let nodes = self.first..self.first + ln_absent.len() as u32;
        let is_whole = u64::from(self.graph.view.node_counts[self.node_type]) == ln_absent.len() as u64;
        for target in 0..edges.offsets.len() - 1 {
            let row = row_of(edges, target);
            if row.is_empty() || !law.set_entries(entries.iter().map(|hop| hop[target])) {
                continue;
            }
            let part = if is_whole { row.clone() } else { narrow(edges, row.clone(), &nodes) };
            let mut add = |source: u32, ln_missed: f64| {
                if let Some(ln_absent) = ln_absent.get_mut(source.wrapping_sub(nodes.start) as usize) {
                    *ln_absent += ln_missed;
                }
            };
            match edges.weights {
                None => {
                    self.push_uniform(relation, row.len() as u64, &edges.sources[part], &mut law, &mut add);
                }
                Some(sums) => {
                    let weights = WeightedRow::new(sums, row.clone());
                    let indexes = part.start - row.start..part.end - row.start;
                    self.push_weighted(relation, &weights, &edges.sources[row], indexes, &mut law, &mut add);
                }
            }
        }
    }

    /// Adds a target whose edges have equal probabilities. Equal sources are adjacent in a sorted row.
    fn push_uniform(
        &self,
        relation: usize,
        degree: u64,
        mut sources: &[u32],
        law: &mut RowLaw,
        add: &mut impl FnMut(u32, f64),
    ) {
        let reverse = self.reverse_edges(relation);
        let (mut parallel, mut ln_missed) = (0, 0.0);
        while let Some((&source, rest)) = sources.split_first() {
            let others = rest.iter().take_while(|other| **other == source).count();
            if parallel != 1 + others {
                parallel = 1 + others;
                let missed = |fanout| self.sampling.missed_edges(fanout, degree, parallel as u64);
                law.set_misses(self.fanouts(relation).map(missed));
                ln_missed = law.ln_missed();
                if ln_missed == 0.0 {
                    return;
                }
            }
            add(source, reverse.map_or(ln_missed, |selected| law.ln_missed_without(selected, source)));
            sources = &rest[others..];
        }
    }

    /// Adds the edges of a target at some indexes of its row.
    fn push_weighted(
        &self,
        relation: usize,
        weights: &WeightedRow<'_>,
        sources: &[u32],
        indexes: Range<usize>,
        law: &mut RowLaw,
        add: &mut impl FnMut(u32, f64),
    ) {
        if indexes.is_empty() {
            return;
        }
        let reverse = self.reverse_edges(relation);
        let misses: Vec<WeightedMiss> = self
            .fanouts(relation)
            .map(|fanout| weights.miss(fanout, self.sampling.settings.replace))
            .collect();
        for index in indexes {
            law.set_misses(misses.iter().map(|miss| weights.missed_edge(*miss, index)));
            let source = sources[index];
            let ln_missed = match reverse {
                Some(selected) => law.ln_missed_without(selected, source),
                None => law.ln_missed(),
            };
            add(source, ln_missed);
        }
    }

    /// The probabilities to select the reverse edges of a relation, by hop and node. `None` if it has none, and in the first hop,
    /// in which all targets are seeds.
    fn reverse_edges(&self, relation: usize) -> Option<&[Vec<f32>]> {
        let reverse = self.graph.reverse[relation]?;
        Some(self.selected[usize::from(reverse)].as_slice()).filter(|hops| !hops.is_empty())
    }

    /// The fanouts of a relation up to this hop.
    fn fanouts(&self, relation: usize) -> impl Iterator<Item = Fanout> {
        let hops = self.entries[0].len();
        self.sampling.settings.fanouts[..hops].iter().map(move |fanouts| fanouts[relation])
    }
}
