//! A slow sampler in the simplest form of the definition in `docs/graphs.md`. It shares only Philox and `mix64` with the
//! sampler.

use std::collections::{HashMap, VecDeque};

use super::test_graph::{TestCase, TestGraph, TestRelation};
use crate::graph::{
    BatchSeeds, Fanout, GraphLayout, Resample, SampledEdges, SampledGraph, SampledNodes, SamplingSettings,
    SeedRow, TemporalStrategy,
};
use crate::random::{mix64, philox4x32};

/// Samples the seeds of a case.
pub(super) fn sample(case: &TestCase) -> SampledGraph {
    let graph = &case.graph;
    let mut reference = Reference {
        settings: &case.settings,
        graph,
        seeds: case.seeds.view(),
        locals: HashMap::new(),
        output: SampledGraph {
            nodes: vec![SampledNodes::default(); graph.node_counts.len()],
            edges: vec![SampledEdges::default(); graph.relations.len()],
            seed_locals: Vec::new(),
        },
    };
    reference.add_seeds();
    for hop in 0..case.settings.fanouts.len() {
        reference.expand(hop);
    }
    reference.output
}

struct Reference<'a> {
    settings: &'a SamplingSettings,
    graph: &'a TestGraph,
    seeds: BatchSeeds<'a>,
    /// Node type, tree and node to local id.
    locals: HashMap<(usize, u32, u32), u32>,
    output: SampledGraph,
}

impl Reference<'_> {
    fn local(&mut self, node_type: usize, tree: u32, node: u32) -> u32 {
        let (nodes, disjoint) = (&mut self.output.nodes[node_type], self.settings.disjoint);
        *self.locals.entry((node_type, tree, node)).or_insert_with(|| {
            nodes.ids.push(node);
            nodes.trees.extend(disjoint.then_some(tree));
            nodes.ids.len() as u32 - 1
        })
    }

    fn add_seeds(&mut self) {
        for (index, seed) in (0..).zip(self.seeds.seeds) {
            let node_type = usize::from(seed.node_type);
            let tree = if self.settings.disjoint { index } else { 0 };
            let is_known = self.locals.contains_key(&(node_type, tree, seed.node));
            let mut local = self.local(node_type, tree, seed.node);
            if is_known && !self.settings.merge_seeds {
                let ids = &mut self.output.nodes[node_type].ids;
                local = ids.len() as u32;
                ids.push(seed.node);
            }
            self.output.seed_locals.push(local);
        }
        for nodes in &mut self.output.nodes {
            nodes.hop_counts.push(nodes.ids.len() as u32);
        }
    }

    fn expand(&mut self, hop: usize) {
        let lens: Vec<u32> = self.output.nodes.iter().map(|nodes| nodes.ids.len() as u32).collect();
        let is_subgraph = self.settings.layout == GraphLayout::Subgraph;
        let graph = self.graph;
        for (number, relation) in graph.relations.iter().enumerate() {
            let target_type = usize::from(relation.target_type);
            let newest = self.output.nodes[target_type].hop_counts[hop];
            let first = if is_subgraph { lens[target_type] - newest } else { 0 };
            let edges_before = self.output.edges[number].sources.len();
            for target in first..lens[target_type] {
                let tree = self.output.nodes[target_type].trees.get(target as usize).copied().unwrap_or(0);
                for position in self.picks(hop, number, relation, target as usize) {
                    let source = relation.sources[position as usize];
                    let local = self.local(usize::from(relation.source_type), tree, source);
                    self.output.edges[number].sources.push(local);
                    self.output.edges[number].positions.push(position);
                }
                let end = self.output.edges[number].sources.len() as u32;
                self.output.edges[number].ends.push(end);
            }
            let edges = &mut self.output.edges[number];
            edges.hop_counts.push((edges.sources.len() - edges_before) as u32);
            edges.hop_targets.push(first..lens[target_type]);
        }
        for (nodes, before) in self.output.nodes.iter_mut().zip(lens) {
            nodes.hop_counts.push(nodes.ids.len() as u32 - before);
        }
    }

    /// Returns the positions of the edges that are sampled for a target.
    fn picks(&self, hop: usize, number: usize, relation: &TestRelation, target: usize) -> Vec<u64> {
        let nodes = &self.output.nodes[usize::from(relation.target_type)];
        let node = nodes.ids[target];
        let seed = nodes.trees.get(target).map(|tree| self.seeds.seeds[*tree as usize]);
        let row = self.seeds.rows[seed.map_or(0, |seed| seed.row as usize)];
        let edges = relation.offsets[node as usize]..relation.offsets[node as usize + 1];
        let is_excluded = |position: u64| {
            self.seeds.excluded.iter().any(|edge| {
                usize::from(edge.relation) == number
                    && edge.target == node
                    && edge.source == relation.sources[position as usize]
                    && seed.is_none_or(|seed| seed.row == edge.row)
            })
        };
        let weight = |position: u64| match &relation.weights {
            Some(sums) if position > edges.start => sums[position as usize] - sums[position as usize - 1],
            Some(sums) => sums[position as usize],
            None => 1,
        };
        let candidates: Vec<(u64, u32)> = edges
            .clone()
            .filter(|position| self.is_in_time(relation, *position, row.time) && !is_excluded(*position))
            .map(|position| (position, weight(position)))
            .collect();
        let strategy = self.settings.temporal.filter(|_| relation.times.is_some()).map(|rule| rule.strategy);
        let is_last = strategy == Some(TemporalStrategy::Last);
        let is_weighted = relation.weights.is_some() && !is_last;
        let repeated = self.settings.replace && !is_last;
        let limit = match self.settings.fanouts[hop][number] {
            Fanout::Limit(limit) if repeated || (limit as usize) < candidates.len() => limit as usize,
            _ => {
                let all = candidates.iter().filter(|(_, weight)| !is_weighted || *weight > 0);
                return all.map(|(position, _)| *position).collect();
            }
        };
        if is_last {
            return candidates[candidates.len() - limit..].iter().map(|(position, _)| *position).collect();
        }
        let key = draw_key(self.settings, &row, seed.map(|seed| seed.slot));
        let hop = if self.settings.resample == Resample::Batch { hop as u32 } else { 0 };
        let mut words = Words::new(key, [node, 0, number as u32 + (hop << 16), 0]);
        if is_weighted {
            return successive(&candidates, limit, repeated, &mut words);
        }
        let size = candidates.len() as u32;
        let indexes: Vec<u32> = match repeated {
            true if size == 0 => Vec::new(),
            true => (0..limit).map(|_| words.below(size)).collect(),
            false => floyd(size, limit as u32, &mut words),
        };
        indexes.into_iter().map(|index| candidates[index as usize].0).collect()
    }

    fn is_in_time(&self, relation: &TestRelation, position: u64, time: i64) -> bool {
        let (Some(rule), Some(times)) = (self.settings.temporal, &relation.times) else { return true };
        let edge = times[position as usize];
        edge <= time
            && rule.window.is_none_or(|window| i128::from(edge) > i128::from(time) - i128::from(window))
    }
}

/// The key of the draws.
pub(super) fn draw_key(settings: &SamplingSettings, row: &SeedRow, slot: Option<u16>) -> [u32; 2] {
    let mut parts = Vec::new();
    if settings.resample != Resample::Never {
        parts.push(u64::from(row.epoch));
    }
    if settings.resample == Resample::Batch {
        parts.push(row.position);
        parts.extend(slot.map(u64::from));
    }
    let first = mix64(settings.seed ^ mix64(u64::from(settings.operator) + 1));
    let key = parts.into_iter().fold(first, |key, part| mix64(key ^ mix64(part + 1)));
    [key as u32, (key >> 32) as u32]
}

/// A stream of words.
pub(super) struct Words {
    key: [u32; 2],
    counter: [u32; 4],
    left: VecDeque<u32>,
}

impl Words {
    pub(super) fn new(key: [u32; 2], counter: [u32; 4]) -> Self {
        Self { key, counter, left: VecDeque::new() }
    }

    pub(super) fn next_word(&mut self) -> u32 {
        if self.left.is_empty() {
            self.left.extend(philox4x32(self.counter, self.key));
            self.counter[3] += 1;
        }
        self.left.pop_front().expect("the words were filled")
    }

    /// Returns a number below `bound`.
    pub(super) fn below(&mut self, bound: u32) -> u32 {
        loop {
            let word = self.next_word();
            let product = u64::from(word) * u64::from(bound);
            if product % (1 << 32) >= (1 << 32) % u64::from(bound) {
                return (product / (1 << 32)) as u32;
            }
        }
    }
}

fn floyd(size: u32, count: u32, words: &mut Words) -> Vec<u32> {
    let mut chosen = Vec::new();
    for last in size - count..size {
        let number = words.below(last + 1);
        chosen.push(if chosen.contains(&number) { last } else { number });
    }
    chosen
}

fn successive(candidates: &[(u64, u32)], count: usize, repeated: bool, words: &mut Words) -> Vec<u64> {
    let mut left = candidates.to_vec();
    let mut chosen = Vec::new();
    for _ in 0..count {
        let mass: u32 = left.iter().map(|(_, weight)| *weight).sum();
        if mass == 0 {
            break;
        }
        let point = words.below(mass);
        let mut sum = 0;
        let index = left.iter().position(|(_, weight)| {
            sum += weight;
            sum > point
        });
        let index = index.expect("the point is below the mass");
        chosen.push(left[index].0);
        if !repeated {
            left.remove(index);
        }
    }
    chosen
}
