//! The rows of features in the memory of a consumer.

use feedline_proto::services::CachedFeature;
use metrics::gauge;

use crate::metrics::FEATURE_CACHE_BYTES;

/// The loaded rows of all features.
#[derive(Debug, Default)]
pub(crate) struct CachedRows {
    /// The features, as workers receive them.
    pub(crate) features: Vec<CachedFeature>,
    /// The rows of each feature, as in batches.
    pub(crate) rows: Vec<Vec<u8>>,
}

impl CachedRows {
    /// The size of a row of a feature.
    pub(crate) fn row_bytes(&self, feature: u32) -> Option<u32> {
        Some(self.features.get(feature as usize)?.row_bytes)
    }

    /// Returns a row of a feature.
    pub(crate) fn row(&self, feature: u32, row: u32) -> Option<&[u8]> {
        let bytes = self.row_bytes(feature)? as usize;
        let start = (row as usize).checked_mul(bytes)?;
        self.rows.get(feature as usize)?.get(start..start.checked_add(bytes)?)
    }

    /// Adds the rows of a feature.
    pub(super) fn push(&mut self, feature: CachedFeature, rows: Vec<u8>) {
        gauge!(FEATURE_CACHE_BYTES).increment(rows.len() as f64);
        self.features.push(feature);
        self.rows.push(rows);
    }

    /// The size of all rows.
    pub(super) fn bytes(&self) -> u64 {
        self.rows.iter().map(|rows| rows.len() as u64).sum()
    }
}

impl Drop for CachedRows {
    fn drop(&mut self) {
        gauge!(FEATURE_CACHE_BYTES).decrement(self.bytes() as f64);
    }
}
