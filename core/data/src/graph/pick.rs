//! Picks the neighbors of one node: positions in the list of edges.

mod population;
mod uniform;
mod weighted;

use self::population::MassInterval;
pub(super) use self::population::{PickRule, Population, RowWeights};
use self::uniform::DistinctDraws;
use super::draws::DrawStream;
use super::settings::Fanout;

/// Picks neighbors. Its buffers are reused from node to node.
#[derive(Debug, Default)]
pub(super) struct NeighborPicker {
    distinct: DistinctDraws,
    taken: Vec<MassInterval>,
}

impl NeighborPicker {
    /// Appends the positions of the picked edges. `draws` creates the draws of the node, if they are needed.
    #[inline]
    pub(super) fn pick(
        &mut self,
        population: &Population<'_>,
        fanout: Fanout,
        rule: PickRule,
        draws: impl FnOnce() -> DrawStream,
        positions: &mut Vec<u64>,
    ) {
        let size = population.size();
        let limit = match fanout {
            Fanout::Limit(limit) if rule == PickRule::Repeated || limit < size => limit,
            _ => return push_all(population, positions),
        };
        if size == 0 {
            return;
        }
        let draws = &mut draws();
        draws.prepare(limit);
        if let Some(weights) = &population.weights {
            return weighted::pick(population, weights, limit, rule, draws, &mut self.taken, positions);
        }
        let (start, first_picked) = (population.edges.start, positions.len());
        let push = |index: u32| positions.push(start + u64::from(index));
        match rule {
            PickRule::Distinct => self.distinct.draw(size, limit, draws, push),
            PickRule::Repeated => (0..limit).map(|_| draws.below(size)).for_each(push),
            PickRule::Last => (size - limit..size).for_each(push),
        }
        if !population.excluded.is_empty() {
            positions[first_picked..].iter_mut().for_each(|position| skip(position, population.excluded));
        }
    }
}

/// Appends all edges that have a weight and are not excluded, in their order.
fn push_all(population: &Population<'_>, positions: &mut Vec<u64>) {
    if population.excluded.is_empty() && population.weights.is_none() {
        positions.extend(population.edges.clone());
        return;
    }
    let mut excluded = population.excluded.iter().peekable();
    for position in population.edges.clone() {
        if excluded.next_if(|excluded| **excluded == position).is_some() {
            continue;
        }
        if population.weights.as_ref().is_none_or(|weights| weights.weight(position) > 0) {
            positions.push(position);
        }
    }
}

/// Converts a position among the edges that are not excluded to a position among all edges.
fn skip(position: &mut u64, excluded: &[u64]) {
    for excluded in excluded {
        if *position < *excluded {
            return;
        }
        *position += 1;
    }
}

#[cfg(test)]
mod tests;
