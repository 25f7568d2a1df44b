//! The order of nodes by the probability that a batch contains them: the batches for which it was computed, and its result.

use serde::{Deserialize, Serialize};

use crate::graph::settings::{Fanout, MAX_HOPS};

/// Number of points of a hit rate curve.
pub const HIT_RATE_POINTS: usize = 64;
/// The unit of hit rates.
const MILLION: u32 = 1_000_000;

/// The batches for which the nodes are ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VipOrder {
    /// The name of the seed set.
    pub seeds: String,
    /// The number of neighbors by hop; -1 for all.
    pub fanouts: Vec<i32>,
    /// The number of seeds in a batch.
    pub batch_rows: u32,
    /// For each node type, the expected hit rate of a cache of the first rows of a feature: [`HIT_RATE_POINTS`] points.
    pub curves: Vec<Vec<ExpectedHitRate>>,
}

/// The expected hit rate of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u32, u32)", into = "(u32, u32)")]
pub struct ExpectedHitRate {
    /// The number of rows in the cache.
    pub rows: u32,
    /// The share of the rows of a batch that are in the cache, in millionths.
    pub hits_per_million: u32,
}

impl From<(u32, u32)> for ExpectedHitRate {
    fn from((rows, hits_per_million): (u32, u32)) -> Self {
        Self { rows, hits_per_million }
    }
}

impl From<ExpectedHitRate> for (u32, u32) {
    fn from(point: ExpectedHitRate) -> Self {
        (point.rows, point.hits_per_million)
    }
}

impl VipOrder {
    /// Checks the fanouts, and that each node type has a curve that ends at all its nodes. `counts` are the numbers of nodes.
    pub(super) fn check(&self, counts: &[u32]) -> Result<(), String> {
        check_fanouts(&self.fanouts)?;
        if self.batch_rows == 0 {
            return Err("the order `vip` has batches without seeds".to_owned());
        }
        let is_curve = |(curve, &count): (&Vec<ExpectedHitRate>, &u32)| {
            let ascends = |pair: &[ExpectedHitRate]| {
                pair[0].rows <= pair[1].rows && pair[0].hits_per_million <= pair[1].hits_per_million
            };
            curve.len() == HIT_RATE_POINTS
                && curve.windows(2).all(ascends)
                && curve.last().is_some_and(|last| last.rows == count && last.hits_per_million <= MILLION)
        };
        if self.curves.len() == counts.len() && self.curves.iter().zip(counts).all(is_curve) {
            return Ok(());
        }
        Err(format!(
            "the order `vip` has invalid hit rates: expected {HIT_RATE_POINTS} ascending points for each node type, which end at all \
             nodes"
        ))
    }
}

/// Checks the fanouts of an order.
///
/// # Errors
/// Returns a message that states the rule.
pub fn check_fanouts(fanouts: &[i32]) -> Result<(), String> {
    if fanouts.is_empty() || fanouts.len() > MAX_HOPS {
        return Err(format!("the order `vip` has {} fanouts: expected 1 to {MAX_HOPS}", fanouts.len()));
    }
    match fanouts.iter().find(|&&fanout| Fanout::from_number(fanout.into()).is_none()) {
        Some(fanout) => Err(format!(
            "the order `vip` has the invalid fanout {fanout}: expected 0 to 65536, or -1 for all neighbors"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid() -> VipOrder {
        let point = |index: u32| ExpectedHitRate { rows: index.min(3), hits_per_million: index * 1_000 };
        VipOrder {
            seeds: "train".to_owned(),
            fanouts: vec![15, -1],
            batch_rows: 1_024,
            curves: vec![(0..64).map(point).collect()],
        }
    }

    #[test]
    fn a_curve_ascends_to_all_nodes() {
        assert_eq!(valid().check(&[3]), Ok(()));
        let error = |change: fn(&mut VipOrder)| {
            let mut order = valid();
            change(&mut order);
            order.check(&[3]).unwrap_err()
        };
        assert!(valid().check(&[4]).unwrap_err().contains("invalid hit rates"));
        assert!(valid().check(&[3, 3]).unwrap_err().contains("invalid hit rates"));
        assert!(error(|order| order.curves[0].truncate(63)).contains("invalid hit rates"));
        assert!(error(|order| order.curves[0][9].hits_per_million = 0).contains("invalid hit rates"));
        assert!(
            error(|order| order.curves[0][63].hits_per_million = 1_000_001).contains("invalid hit rates")
        );
        assert!(error(|order| order.fanouts.clear()).contains("has 0 fanouts"));
        assert!(error(|order| order.fanouts[0] = -2).contains("the invalid fanout -2"));
        assert!(error(|order| order.batch_rows = 0).contains("without seeds"));
    }

    #[test]
    fn a_point_is_a_pair_of_integers() {
        let json = serde_json::to_string(&valid().curves[0][..2]).unwrap();
        assert_eq!(json, "[[0,0],[1,1000]]");
        assert_eq!(serde_json::from_str::<Vec<ExpectedHitRate>>(&json).unwrap(), valid().curves[0][..2]);
    }
}
