//! The seeds and the fanouts of a batch, as the model needs them.

use feedline_data::graph::{Fanout, GraphView, SamplingSettings};

/// How the neighbors of the seeds are sampled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeledSampling {
    /// Rows of the seed set in a batch.
    pub batch_rows: u32,
    /// The settings of the sampler. The model assumes that each batch draws anew and from all edges: it ignores `resample`, times
    /// and excluded edges.
    pub settings: SamplingSettings,
}

/// The rows from which batches are drawn. Each row is in one batch of an epoch.
#[derive(Debug, Clone, Copy)]
pub struct SeedTable<'a> {
    /// The number of rows of the seed set.
    pub count: u64,
    /// The nodes of the rows.
    pub columns: &'a [SeedColumn<'a>],
}

/// A column of the seed set that contains nodes.
#[derive(Debug, Clone, Copy)]
pub enum SeedColumn<'a> {
    /// One node for each row. A node may be in several rows.
    Nodes {
        /// The type of the nodes.
        node_type: u16,
        /// The node of each row.
        nodes: &'a [u32],
    },
    /// Random nodes, such as the negative targets of link prediction.
    Random {
        /// The type of the nodes.
        node_type: u16,
        /// Nodes for each row.
        per_row: f64,
    },
}

impl ModeledSampling {
    /// Checks the fanouts and the seeds.
    ///
    /// # Errors
    /// Returns a message that names the invalid setting.
    pub(super) fn check(&self, graph: &GraphView<'_>, seeds: &SeedTable<'_>) -> Result<(), String> {
        let relations = graph.relations.len();
        ensure!(self.batch_rows > 0 && seeds.count > 0, "a batch without seeds cannot be modeled");
        for (hop, fanouts) in self.settings.fanouts.iter().enumerate() {
            ensure!(
                fanouts.len() == relations,
                "hop {} has {} fanouts, but the graph has {relations} relations",
                hop + 1,
                fanouts.len()
            );
        }
        for column in seeds.columns {
            let (node_type, nodes, per_row) = match *column {
                SeedColumn::Nodes { node_type, nodes } => (node_type, nodes, 1.0),
                SeedColumn::Random { node_type, per_row } => (node_type, &[] as &[u32], per_row),
            };
            let count = graph.node_counts.get(usize::from(node_type)).copied();
            let Some(count) = count else {
                return Err(format!("the node type {node_type} of the seeds does not exist"));
            };
            if let Some(node) = nodes.iter().find(|node| **node >= count) {
                return Err(format!("seed {node} does not exist: its type has {count} nodes"));
            }
            ensure!(
                per_row >= 0.0 && per_row.is_finite(),
                "invalid number of random nodes per row: {per_row}"
            );
        }
        Ok(())
    }

    /// The number of samples of which a batch consists, and the rows of each.
    pub(super) fn trees(&self, seeds: &SeedTable<'_>) -> (f64, f64) {
        let rows = u64::from(self.batch_rows).min(seeds.count) as f64;
        if self.settings.disjoint { (rows, 1.0) } else { (1.0, rows) }
    }

    /// The number of edges that are drawn for a node in a hop.
    pub(super) fn drawn_edges(&self, fanout: Fanout, degree: u64) -> f64 {
        match fanout {
            Fanout::All => degree as f64,
            Fanout::Limit(_) if degree == 0 => 0.0,
            Fanout::Limit(limit) if self.settings.replace => f64::from(limit),
            Fanout::Limit(limit) => u64::from(limit).min(degree) as f64,
        }
    }

    /// The probability that the draws of a node in a hop miss all of some edges. The edges are at least one, and at most as many
    /// as the degree.
    pub(super) fn missed_edges(&self, fanout: Fanout, degree: u64, edges: u64) -> f64 {
        match fanout {
            Fanout::All => 0.0,
            Fanout::Limit(limit) if self.settings.replace => {
                (1.0 - edges as f64 / degree as f64).powf(f64::from(limit))
            }
            Fanout::Limit(limit) => {
                let missed = degree.saturating_sub(u64::from(limit));
                let factor = |edge: u64| missed.saturating_sub(edge) as f64 / (degree - edge) as f64;
                (0..edges).map(factor).product()
            }
        }
    }
}

impl SeedTable<'_> {
    /// Returns the probability of each node of a type to be a seed of a sample with this number of rows.
    pub(super) fn probabilities(&self, node_type: usize, node_count: u32, rows: f64) -> Vec<f32> {
        let mut absent = vec![1.0_f64; node_count as usize];
        let row_share = (rows / self.count as f64).min(1.0);
        for column in self.columns {
            match *column {
                SeedColumn::Nodes { node_type: column_type, nodes }
                    if usize::from(column_type) == node_type =>
                {
                    nodes.iter().for_each(|node| absent[*node as usize] *= 1.0 - row_share);
                }
                SeedColumn::Random { node_type: column_type, per_row }
                    if usize::from(column_type) == node_type =>
                {
                    let missed = (1.0 - 1.0 / f64::from(node_count)).powf(rows * per_row);
                    absent.iter_mut().for_each(|absent| *absent *= missed);
                }
                SeedColumn::Nodes { .. } | SeedColumn::Random { .. } => {}
            }
        }
        absent.into_iter().map(|absent| (1.0 - absent) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_miss_parallel_edges_together() {
        let mut sampling = ModeledSampling { batch_rows: 1, settings: SamplingSettings::default() };
        let limit = Fanout::Limit;
        // Two of five edges are drawn. Three of the ten pairs contain neither of two edges.
        assert!((sampling.missed_edges(limit(2), 5, 2) - 0.3).abs() < 1e-12);
        assert_eq!(sampling.missed_edges(limit(2), 5, 4), 0.0);
        assert_eq!(sampling.missed_edges(limit(9), 5, 1), 0.0);
        assert_eq!(sampling.missed_edges(limit(0), 5, 5), 1.0);
        assert_eq!(sampling.missed_edges(Fanout::All, 5, 1), 0.0);
        sampling.settings.replace = true;
        assert!((sampling.missed_edges(limit(2), 5, 2) - 0.36).abs() < 1e-12);
        assert_eq!([0, 1].map(|fanout| sampling.missed_edges(limit(fanout), 1, 1)), [1.0, 0.0]);
        assert_eq!([0, 1, 7].map(|degree| sampling.drawn_edges(limit(3), degree)), [0.0, 3.0, 3.0]);
    }
}
