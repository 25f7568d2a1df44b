//! Divides the size of the cache among features.

/// The size of a row of a feature, and the number of its rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct CacheableFeature {
    pub(super) row_bytes: u64,
    pub(super) rows: u32,
}

/// Returns the number of rows of each feature in the cache. All features have the same number, except those that fit completely.
pub(super) fn divide_cache(features: &[CacheableFeature], limit_bytes: u64) -> Vec<u32> {
    let mut counts: Vec<Option<u32>> = vec![None; features.len()];
    let mut rest_bytes = limit_bytes;
    loop {
        let open = || features.iter().zip(&counts).filter(|(_, count)| count.is_none());
        let row_bytes: u64 = open().map(|(feature, _)| feature.row_bytes).sum();
        let rows = rest_bytes.checked_div(row_bytes).unwrap_or(0);
        let complete = open().any(|(feature, _)| u64::from(feature.rows) <= rows);
        if !complete {
            let rows = u32::try_from(rows).unwrap_or(u32::MAX);
            return counts.into_iter().map(|count| count.unwrap_or(rows)).collect();
        }
        for (feature, count) in features.iter().zip(&mut counts) {
            if count.is_none() && u64::from(feature.rows) <= rows {
                *count = Some(feature.rows);
                rest_bytes -= feature.row_bytes * u64::from(feature.rows);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divide(features: &[(u64, u32)], limit_bytes: u64) -> Vec<u32> {
        let features: Vec<CacheableFeature> = features
            .iter()
            .map(|(row_bytes, rows)| CacheableFeature { row_bytes: *row_bytes, rows: *rows })
            .collect();
        divide_cache(&features, limit_bytes)
    }

    #[test]
    fn small_features_are_complete_and_the_others_share_the_rest() {
        assert_eq!(divide(&[(10, 100)], 0), [0]);
        assert_eq!(divide(&[(10, 100)], 55), [5]);
        assert_eq!(divide(&[(10, 100)], u64::MAX), [100]);
        assert_eq!(divide(&[(10, 100), (30, 100)], 400), [10, 10]);
        assert_eq!(divide(&[(10, 4), (30, 100)], 400), [4, 12]);
        assert_eq!(divide(&[(10, 4), (30, 12), (5, 1_000)], 600), [4, 12, 40]);
        assert_eq!(divide(&[], 100), [0_u32; 0]);
    }
}
