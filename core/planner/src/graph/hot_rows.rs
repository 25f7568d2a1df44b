//! The order of feature rows by probability, and the hit rate of a cache of the first rows.

use feedline_data::graph::GraphView;
use serde::{Deserialize, Serialize};

/// The number of linear pieces of a curve.
const PIECES: u64 = 64;

/// The hit rate of a cache by the number of its rows, as linear pieces. If the rows are in the order of their probabilities,
/// the curve is concave.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HotRowCurve {
    /// The ends of the pieces, in ascending order. The first is a cache without rows, and the last contains all rows.
    points: Vec<HotRowPoint>,
}

/// A point of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotRowPoint {
    /// The number of cached rows.
    pub rows: u64,
    /// The share of the rows of a batch that are in the cache.
    pub hit_rate: f64,
}

impl HotRowCurve {
    /// Computes the curve of a cache that contains the first nodes of an order. The pieces are short at the beginning of the
    /// order, where the probabilities differ most.
    pub fn new(probabilities: &[f32], order: impl IntoIterator<Item = u32>) -> Self {
        let rows = probabilities.len() as u64;
        let total: f64 = probabilities.iter().map(|probability| f64::from(*probability)).sum();
        let mut order = order.into_iter();
        let (mut points, mut cached, mut hits) = (Vec::new(), 0, 0.0);
        for piece in 0..=PIECES {
            let end = rows * piece * piece / (PIECES * PIECES);
            let next = order.by_ref().take((end - cached) as usize);
            let probability = |node: u32| probabilities.get(node as usize).copied().map_or(0.0, f64::from);
            hits += next.map(probability).sum::<f64>();
            cached = end;
            let hit_rate = if total > 0.0 { (hits / total).min(1.0) } else { 0.0 };
            points.push(HotRowPoint { rows: end, hit_rate });
        }
        Self { points }
    }

    /// The ends of the pieces.
    pub fn points(&self) -> &[HotRowPoint] {
        &self.points
    }

    /// Returns the share of the rows of a batch that are in a cache of this size.
    pub fn hit_rate(&self, rows: u64) -> f64 {
        let after = self.points.partition_point(|point| point.rows <= rows);
        let Some(start) = after.checked_sub(1).and_then(|before| self.points.get(before)) else { return 0.0 };
        let Some(end) = self.points.get(after) else { return start.hit_rate };
        let share = (rows - start.rows) as f64 / (end.rows - start.rows) as f64;
        start.hit_rate + share * (end.hit_rate - start.hit_rate)
    }
}

/// Returns the nodes in descending order of their probabilities. Equal nodes are in ascending order.
pub fn order_by_probability(probabilities: &[f32]) -> Vec<u32> {
    // The bits of numbers that are not negative are in the order of the numbers.
    sorted(probabilities.iter().map(|probability| if *probability > 0.0 { probability.to_bits() } else { 0 }))
}

/// Returns the nodes of a type in descending order of the number of edges whose source they are, over all relations.
pub fn order_by_degree(graph: &GraphView<'_>, node_type: u16) -> Vec<u32> {
    let count = graph.node_counts.get(usize::from(node_type)).copied().unwrap_or(0);
    let mut degrees = vec![0_u32; count as usize];
    for edges in graph.relations.iter().filter(|edges| edges.source_type == node_type) {
        for source in edges.sources {
            if let Some(degree) = degrees.get_mut(*source as usize) {
                *degree = degree.saturating_add(1);
            }
        }
    }
    sorted(degrees.into_iter())
}

/// Returns the indexes in descending order of their keys.
fn sorted(keys: impl Iterator<Item = u32>) -> Vec<u32> {
    let packed = |(index, key): (u64, u32)| u64::from(!key) << 32 | index;
    let mut packed: Vec<u64> = (0..).zip(keys).map(packed).collect();
    packed.sort_unstable();
    packed.into_iter().map(|packed| packed as u32).collect()
}

#[cfg(test)]
mod tests {
    use feedline_data::graph::RelationView;

    use super::*;

    #[test]
    fn nodes_are_in_descending_order() {
        assert_eq!(order_by_probability(&[0.5, 0.0, 1.0, 0.5, 1e-30, -0.0]), [2, 0, 3, 4, 1, 5]);
        let relation = |sources: &'static [u32], offsets: &'static [u64]| RelationView {
            source_type: 0,
            target_type: 0,
            offsets,
            sources,
            weights: None,
            times: None,
        };
        let relations = [relation(&[1, 2, 2, 3], &[0, 1, 4, 4, 4]), relation(&[2, 3, 9], &[0, 0, 0, 0, 3])];
        let graph = GraphView { node_counts: &[4], relations: &relations };
        assert_eq!(order_by_degree(&graph, 0), [2, 3, 1, 0], "sources that do not exist are ignored");
    }

    #[test]
    fn the_hit_rate_is_linear_between_the_ends_of_pieces() {
        let probabilities: Vec<f32> = (0..1_000_u16).map(|node| f32::from(node) / 1_000.0).collect();
        let curve = HotRowCurve::new(&probabilities, order_by_probability(&probabilities));
        assert_eq!(curve.points().len(), 65);
        assert_eq!((curve.hit_rate(0), curve.hit_rate(1_000), curve.hit_rate(u64::MAX)), (0.0, 1.0, 1.0));
        for rows in 0..=1_000_u64 {
            // The last `rows` nodes have the highest probabilities.
            let exact = (rows * (1_999 - rows)) as f64 / (1_000.0 * 999.0);
            let (hit_rate, name) = (curve.hit_rate(rows), format!("{rows}: {exact}"));
            assert!((hit_rate - exact).abs() < 0.001, "{name}: {hit_rate}");
        }
        let slopes: Vec<f64> = curve
            .points()
            .windows(2)
            .filter(|pair| pair[1].rows > pair[0].rows)
            .map(|pair| (pair[1].hit_rate - pair[0].hit_rate) / (pair[1].rows - pair[0].rows) as f64)
            .collect();
        assert!(slopes.windows(2).all(|pair| pair[1] <= pair[0] + 1e-12), "{slopes:?}");
    }

    #[test]
    fn small_and_empty_types_have_a_curve() {
        let curve = HotRowCurve::new(&[], []);
        assert_eq!(curve.hit_rate(0), 0.0);
        let curve = HotRowCurve::new(&[0.25, 0.75], [1, 0]);
        assert_eq!([0, 1, 2, 3].map(|rows| curve.hit_rate(rows)), [0.0, 0.75, 1.0, 1.0]);
    }
}
