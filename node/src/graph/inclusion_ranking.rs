//! The order `vip` of a build: the planner's model of batches ranks the nodes.

use std::sync::{Mutex, PoisonError};

use feedline_data::graph::description::ExpectedHitRate;
use feedline_data::graph::{Fanout, GraphView, RelationView, SamplingSettings};
use feedline_graph::{NodeRank, NodeRanking, RankedBatches};
use feedline_planner::graph::hot_rows::{HotRowCurve, order_by_probability};
use feedline_planner::graph::sampling::{ModeledSampling, SeedColumn, SeedTable};
use feedline_planner::graph::topology::{ModeledGraph, reverse_relations};
use feedline_planner::graph::vip::{HopPart, InclusionModel};

/// Ranks nodes by the probability that a batch of uniformly sampled neighbors contains them. The probabilities are
/// floating-point numbers, which may differ between machines. The order is computed once, by the build, and stored.
pub(super) struct InclusionRanking;

impl NodeRanking for InclusionRanking {
    fn rank(
        &self,
        graph: &GraphView<'_>,
        batches: &RankedBatches<'_>,
        threads: usize,
    ) -> Result<Vec<NodeRank>, String> {
        let relations = graph.relations.iter().map(|edges| RelationView { weights: None, ..*edges });
        let relations: Vec<RelationView<'_>> = relations.collect();
        let view = GraphView { node_counts: graph.node_counts, relations: &relations };
        let reverse = reverse_relations(&view)?;
        let modeled = ModeledGraph { view, reverse: &reverse };
        let fanouts = |&fanout: &i32| {
            let fanout = Fanout::from_number(i64::from(fanout));
            let fanouts = fanout.map(|fanout| vec![fanout; relations.len()]);
            fanouts.ok_or("invalid fanout in the order: expected a number from 0 to 65536, or -1")
        };
        let fanouts: Result<Vec<Vec<Fanout>>, &str> = batches.fanouts.iter().map(fanouts).collect();
        let settings = SamplingSettings { fanouts: fanouts?, ..SamplingSettings::default() };
        let sampling = ModeledSampling { batch_rows: batches.batch_rows, settings };
        let columns: Vec<SeedColumn<'_>> = batches
            .columns
            .iter()
            .map(|column| SeedColumn::Nodes { node_type: column.node_type, nodes: &column.nodes })
            .collect();
        let seeds = SeedTable { count: batches.seed_rows, columns: &columns };
        let mut model = InclusionModel::new(modeled, &seeds, &sampling)?;
        while let Some(parts) = model.next_hop(threads) {
            run_parts(parts, threads);
        }
        Ok(model.finish().probabilities.iter().map(|probabilities| rank(probabilities)).collect())
    }
}

/// Runs the parts of a hop on several threads.
fn run_parts(parts: Vec<HopPart<'_>>, threads: usize) {
    let queue = Mutex::new(parts.into_iter());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while let Some(part) = next() {
                    part.run();
                }
            });
        }
    });
}

fn rank(probabilities: &[f32]) -> NodeRank {
    let nodes = order_by_probability(probabilities);
    let curve = HotRowCurve::new(probabilities, nodes.iter().copied());
    // The first point is a cache without rows.
    let points = curve.points().iter().skip(1).map(|point| ExpectedHitRate {
        rows: u32::try_from(point.rows).unwrap_or(u32::MAX),
        hits_per_million: (point.hit_rate * 1e6).round() as u32,
    });
    let curve = points.collect();
    NodeRank { nodes, curve }
}

#[cfg(test)]
mod tests {
    use feedline_data::graph::description::HIT_RATE_POINTS;
    use feedline_graph::SeedNodeColumn;

    use super::*;

    /// Node 3 is the only seed. Its neighbors are 1 and 4, and 0 is a neighbor of 1.
    #[test]
    fn probable_nodes_come_first_and_equal_nodes_keep_their_order() {
        let relation = RelationView {
            source_type: 0,
            target_type: 0,
            offsets: &[0, 0, 1, 1, 3, 3, 3],
            sources: &[0, 1, 4],
            weights: None,
            times: None,
        };
        let graph = GraphView { node_counts: &[6], relations: &[relation] };
        let columns = [SeedNodeColumn { node_type: 0, nodes: vec![3] }];
        let batches = RankedBatches { seed_rows: 1, columns: &columns, batch_rows: 1_024, fanouts: &[1, -1] };
        let ranks: Vec<Vec<NodeRank>> =
            [1, 2, 7].map(|threads| InclusionRanking.rank(&graph, &batches, threads).unwrap()).to_vec();
        assert_eq!(ranks[0][0].nodes, [3, 0, 1, 4, 2, 5]);
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "threads do not change the order");
        let curve = &ranks[0][0].curve;
        assert_eq!(curve.len(), HIT_RATE_POINTS);
        let last = ExpectedHitRate { rows: 6, hits_per_million: 1_000_000 };
        assert_eq!(curve.last(), Some(&last));
        // The seed is one of 2.5 expected nodes.
        let first = curve.iter().find(|point| point.rows == 1).unwrap();
        assert!(first.hits_per_million.abs_diff(400_000) < 1_000, "{first:?}");
    }

    #[test]
    fn seeds_that_do_not_exist_are_rejected() {
        let graph = GraphView { node_counts: &[1], relations: &[] };
        let columns = [SeedNodeColumn { node_type: 0, nodes: Vec::new() }];
        let batches = RankedBatches { seed_rows: 0, columns: &columns, batch_rows: 1_024, fanouts: &[1] };
        let error = InclusionRanking.rank(&graph, &batches, 1).unwrap_err();
        assert!(error.contains("without seeds"), "{error}");
    }
}
