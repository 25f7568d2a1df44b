//! Weighted draws of one target: the probability that an edge is missed.
//!
//! Without replacement, edges are drawn one after another, each with a probability proportional to its weight. This is
//! equal to an exponential clock for each edge: the first clocks that ring are drawn. An edge of weight w is missed with the
//! probability exp(-r w), where the rate r is such that the expected number of drawn edges is the fanout (Rosén:
//! "Asymptotic theory for successive sampling", 1972).

use std::ops::Range;

use feedline_data::graph::Fanout;

/// Maximum number of Newton steps. Each step approaches the rate from below.
const MAX_STEPS: usize = 8;
/// The relative error of the expected number of drawn edges at which the steps end.
const TOLERANCE: f64 = 1e-4;

/// The weights of the edges of one target.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightedRow<'a> {
    /// The sums of the weights, up to and including each edge of the row.
    sums: &'a [u32],
}

/// How the draws of one hop miss an edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum WeightedMiss {
    /// All edges with a weight are drawn.
    None,
    /// The draws miss an edge of weight 1 with the probability exp(-rate).
    Rate(f64),
    /// Each of this number of draws misses an edge with the probability 1 - weight / sum.
    Repeated(u32),
}

impl<'a> WeightedRow<'a> {
    pub(super) fn new(sums: &'a [u32], row: Range<usize>) -> Self {
        Self { sums: &sums[row] }
    }

    fn sum(&self) -> f64 {
        f64::from(self.sums.last().copied().unwrap_or(0))
    }

    fn weight(&self, index: usize) -> f64 {
        let before = if index == 0 { 0 } else { self.sums[index - 1] };
        f64::from(self.sums[index].saturating_sub(before))
    }

    fn weights(&self) -> impl Iterator<Item = f64> {
        (0..self.sums.len()).map(|index| self.weight(index)).filter(|weight| *weight > 0.0)
    }

    /// Returns how draws with this fanout miss edges.
    pub(super) fn miss(&self, fanout: Fanout, replace: bool) -> WeightedMiss {
        match fanout {
            Fanout::All => WeightedMiss::None,
            Fanout::Limit(limit) if replace => WeightedMiss::Repeated(limit),
            Fanout::Limit(limit) if self.weights().take(limit as usize + 1).count() <= limit as usize => {
                WeightedMiss::None
            }
            Fanout::Limit(limit) => WeightedMiss::Rate(self.rate(f64::from(limit))),
        }
    }

    /// Solves sum(1 - exp(-rate * weight)) = limit. The sum is concave, so each tangent meets the limit before the sum does.
    fn rate(&self, limit: f64) -> f64 {
        let mut rate = limit / self.sum();
        for _ in 0..MAX_STEPS {
            let (mut drawn, mut slope) = (0.0, 0.0);
            for weight in self.weights() {
                let missed = (-rate * weight).exp();
                drawn += 1.0 - missed;
                slope += weight * missed;
            }
            if slope <= 0.0 || limit - drawn <= TOLERANCE * limit {
                break;
            }
            rate += (limit - drawn) / slope;
        }
        rate
    }

    /// Returns the probability that the draws miss the edge at an index of the row.
    pub(super) fn missed_edge(&self, miss: WeightedMiss, index: usize) -> f64 {
        let weight = self.weight(index);
        match miss {
            _ if weight <= 0.0 => 1.0,
            WeightedMiss::None => 0.0,
            WeightedMiss::Rate(rate) => (-rate * weight).exp(),
            WeightedMiss::Repeated(draws) => (1.0 - weight / self.sum()).max(0.0).powf(f64::from(draws)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_number_of_drawn_edges_is_the_fanout() {
        // The weights are 3, 0, 1, 10, 2, 2, 40.
        let sums = [3, 3, 4, 14, 16, 18, 58];
        let row = WeightedRow::new(&sums, 0..7);
        for limit in 1..=4 {
            let miss = row.miss(Fanout::Limit(limit), false);
            let drawn: f64 = (0..7).map(|index| 1.0 - row.missed_edge(miss, index)).sum();
            assert!((drawn - f64::from(limit)).abs() < 0.01, "{limit}: {drawn}");
        }
        assert_eq!(row.miss(Fanout::Limit(6), false), WeightedMiss::None);
        assert_eq!(row.miss(Fanout::All, true), WeightedMiss::None);
        assert_eq!(row.missed_edge(WeightedMiss::None, 1), 1.0, "an edge of weight 0 is never drawn");
        assert_eq!(row.missed_edge(WeightedMiss::None, 2), 0.0);
    }

    #[test]
    fn repeated_draws_miss_an_edge_independently() {
        let sums = [1, 4];
        let row = WeightedRow::new(&sums, 0..2);
        let miss = row.miss(Fanout::Limit(2), true);
        assert_eq!(row.missed_edge(miss, 0), 0.75 * 0.75);
        assert_eq!(row.missed_edge(miss, 1), 0.25 * 0.25);
    }

    #[test]
    fn invalid_sums_have_no_weight() {
        let sums = [7, 3, 5];
        let row = WeightedRow::new(&sums, 0..3);
        assert_eq!(row.missed_edge(row.miss(Fanout::Limit(1), false), 1), 1.0);
    }
}
