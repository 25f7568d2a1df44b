//! Divides the memory for graphs among the features of a job that do not all fit: the first rows of each feature are held in memory.

use feedline_data::graph::description::ExpectedHitRate;

/// The rows of a feature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FeatureSize {
    /// The number of rows.
    pub(super) rows: u64,
    pub(super) row_bytes: u64,
    /// The expected hit rate of the first rows. Empty if it is unknown.
    pub(super) curve: Vec<ExpectedHitRate>,
}

/// A part of a feature between two points of its curve.
struct CurvePiece {
    feature: usize,
    /// The row after the last one of the piece.
    end: u64,
    bytes: u64,
    /// The hits of the piece in a million rows of batches.
    hits: u64,
}

impl FeatureSize {
    /// The size of the first rows in bytes.
    pub(super) fn bytes_of(&self, rows: u64) -> u64 {
        rows.saturating_mul(self.row_bytes)
    }

    /// Returns the pieces of the feature. Without a curve, each row has the same number of hits.
    fn pieces(&self, feature: usize) -> Vec<CurvePiece> {
        let (mut pieces, mut from, mut hits) = (Vec::new(), 0, 0);
        let whole = [(self.rows, 1_000_000)];
        let points =
            self.curve.iter().map(|point| (u64::from(point.rows), u64::from(point.hits_per_million)));
        let points: Vec<(u64, u64)> = if self.curve.is_empty() { whole.to_vec() } else { points.collect() };
        for (rows, hits_to) in points {
            let end = rows.min(self.rows);
            if end > from {
                let bytes = self.bytes_of(end - from);
                pieces.push(CurvePiece { feature, end, bytes, hits: hits_to.saturating_sub(hits) });
                from = end;
                hits = hits_to;
            }
        }
        pieces
    }
}

/// Returns the number of rows to hold of each feature, so that all together use at most `room` bytes. Features with curves receive
/// memory in the order of their hits per byte. If a curve is missing, each feature receives an equal share.
pub(super) fn choose_hot_rows(features: &[FeatureSize], room: u64) -> Vec<u64> {
    if features.iter().any(|feature| feature.curve.is_empty()) {
        return equal_shares(features, room);
    }
    let mut pieces: Vec<CurvePiece> =
        features.iter().enumerate().flat_map(|(feature, size)| size.pieces(feature)).collect();
    // Curves are concave except for rounding, so the pieces of a feature stay nearly in order. The sort is stable.
    pieces.sort_by(|one, two| {
        let (one_hits, two_hits) =
            (u128::from(one.hits) * u128::from(two.bytes), u128::from(two.hits) * u128::from(one.bytes));
        two_hits.cmp(&one_hits)
    });
    let (mut hot, mut left) = (vec![0; features.len()], room);
    for CurvePiece { feature, end, .. } in pieces {
        let size = &features[feature];
        let wanted = end.saturating_sub(hot[feature]);
        let rows = wanted.min(left.checked_div(size.row_bytes).unwrap_or(wanted));
        hot[feature] += rows;
        left -= size.bytes_of(rows);
    }
    hot
}

/// Divides the memory equally. What small features leave is divided among the others.
fn equal_shares(features: &[FeatureSize], room: u64) -> Vec<u64> {
    let mut order: Vec<usize> = (0..features.len()).collect();
    order.sort_by_key(|&feature| features[feature].bytes_of(features[feature].rows));
    let (mut hot, mut left) = (vec![0; features.len()], room);
    for (place, &feature) in order.iter().enumerate() {
        let size = &features[feature];
        let share = left / (order.len() - place) as u64;
        let rows = size.rows.min(share.checked_div(size.row_bytes).unwrap_or(size.rows));
        hot[feature] = rows;
        left -= size.bytes_of(rows);
    }
    hot
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn size(rows: u64, row_bytes: u64, curve: &[(u32, u32)]) -> FeatureSize {
        let curve = curve.iter().copied().map(ExpectedHitRate::from).collect();
        FeatureSize { rows, row_bytes, curve }
    }

    #[test]
    fn without_curves_features_have_equal_shares() {
        let features = [size(100, 10, &[]), size(10, 10, &[]), size(1_000, 5, &[(1_000, 1_000_000)])];
        assert_eq!(choose_hot_rows(&features, 1_100), [50, 10, 100]);
        assert_eq!(choose_hot_rows(&features, 0), [0, 0, 0]);
        assert_eq!(choose_hot_rows(&features, 1 << 20), [100, 10, 1_000]);
    }

    #[test]
    fn with_curves_the_rows_with_the_most_hits_per_byte_come_first() {
        let curve = [(10, 500_000), (50, 900_000), (100, 1_000_000)];
        let (narrow, wide) = (size(100, 4, &curve), size(100, 40, &curve));
        // The pieces have 12500, 2500 and 500 hits per byte, and a tenth of them.
        let features = [wide, narrow];
        assert_eq!(choose_hot_rows(&features, 40), [0, 10]);
        assert_eq!(choose_hot_rows(&features, 200), [0, 50]);
        assert_eq!(choose_hot_rows(&features, 600), [10, 50]);
        assert_eq!(choose_hot_rows(&features, 800), [10, 100]);
        assert_eq!(choose_hot_rows(&features, 2_400), [50, 100]);
    }

    proptest! {
        #[test]
        fn hot_rows_fit_in_the_room(
            sizes in prop::collection::vec((0_u64..1_000, 1_u64..500, any::<bool>()), 0..6),
            room in 0_u64..500_000,
        ) {
            let features: Vec<FeatureSize> = sizes
                .into_iter()
                .map(|(rows, row_bytes, has_curve)| {
                    let curve = [(rows as u32 / 3, 700_000), (rows as u32, 1_000_000)];
                    size(rows, row_bytes, if has_curve { &curve[..] } else { &[] })
                })
                .collect();
            let hot = choose_hot_rows(&features, room);
            let used: u64 = hot.iter().zip(&features).map(|(rows, size)| size.bytes_of(*rows)).sum();
            prop_assert!(used <= room);
            prop_assert!(hot.iter().zip(&features).all(|(rows, size)| *rows <= size.rows));
            let all: u64 = features.iter().map(|size| size.bytes_of(size.rows)).sum();
            if all <= room {
                prop_assert_eq!(used, all);
            }
        }
    }
}
