//! Weighted draws. Without replacement, each draw selects one of the remaining edges with a probability proportional to its
//! weight (successive sampling). All computations use the sums of the weights.

use super::super::draws::DrawStream;
use super::population::{MassInterval, PickRule, Population, RowWeights};

/// Appends the positions of at most `limit` edges. There are fewer if the other edges have the weight 0. `taken` is a buffer.
pub(super) fn pick(
    population: &Population<'_>,
    weights: &RowWeights<'_>,
    limit: u32,
    rule: PickRule,
    draws: &mut DrawStream,
    taken: &mut Vec<MassInterval>,
    positions: &mut Vec<u64>,
) {
    let edges = &population.edges;
    let base = weights.sum_before(edges.start);
    let row_sums = &weights.sums[edges.start as usize..edges.end as usize];
    taken.clear();
    taken.extend(population.excluded.iter().map(|position| weights.interval(*position)));
    let excluded: u64 = taken.iter().map(|interval| u64::from(interval.width())).sum();
    let mass = u64::from(weights.sum_before(edges.end).saturating_sub(base)).saturating_sub(excluded);
    let mut free_mass = mass as u32;
    for _ in 0..limit {
        if free_mass == 0 {
            return;
        }
        let point = skip_taken(base.saturating_add(draws.below(free_mass)), taken);
        let index = row_sums.partition_point(|sum| *sum <= point).min(row_sums.len() - 1);
        let position = edges.start + index as u64;
        positions.push(position);
        if rule == PickRule::Distinct {
            let interval = weights.interval(position);
            free_mass = free_mass.saturating_sub(interval.width());
            let place = taken.partition_point(|other| other.start < interval.start);
            taken.insert(place, interval);
        }
    }
}

/// Converts a point among the free mass to a point among the whole mass.
fn skip_taken(mut point: u32, taken: &[MassInterval]) -> u32 {
    for interval in taken {
        if point < interval.start {
            break;
        }
        point = point.saturating_add(interval.width());
    }
    point
}
