//! The features of one job: those that this worker holds, and those that the workers of the job hold together.

use std::collections::BTreeMap;
use std::sync::Arc;

use feedline_graph::{ColdRows, LoadedFeature};

use super::part::PartData;
use super::partitioned_feature::PartitionedFeature;
use crate::engine::FeatureRef;
use crate::metrics;

/// Features by their place in the summary of the graph.
pub(super) type JobFeatures = BTreeMap<FeatureRef, JobFeature>;

/// A feature of a job.
#[derive(Debug)]
pub(super) enum JobFeature {
    /// The worker holds all rows, or reads the others from the graph.
    Held(Arc<PartData<LoadedFeature>>),
    /// The workers of the job hold the rows together.
    Partitioned(Arc<PartitionedFeature>),
}

impl JobFeature {
    /// The rows in memory, and the form of all rows.
    pub(super) fn loaded(&self) -> &LoadedFeature {
        match self {
            Self::Held(data) => &data.content,
            Self::Partitioned(feature) => feature.form(),
        }
    }

    /// Returns the rows among `indexes` that must be read before they are copied, ascending and without duplicates.
    pub(super) fn missing_rows<I: Copy + Into<u64>>(&self, indexes: &[I]) -> Vec<u64> {
        match self {
            Self::Held(data) => {
                let missing = data.content.missing_rows(indexes);
                metrics::count_graph_rows("memory", (indexes.len() - missing.len()) as u64);
                missing
            }
            Self::Partitioned(_) => {
                let mut rows: Vec<u64> = indexes.iter().map(|&index| index.into()).collect();
                rows.sort_unstable();
                rows.dedup();
                rows
            }
        }
    }

    /// Returns the memory that [`read_rows`](Self::read_rows) needs at most, in addition to the rows.
    pub(super) fn reading_bytes(&self, rows: u64) -> u64 {
        match self {
            Self::Held(data) => data.content.reading_bytes(rows),
            // The rows as they arrive, and in the order of the request.
            Self::Partitioned(feature) => feature.form().row_bytes().saturating_mul(rows).saturating_mul(2),
        }
    }

    /// Reads rows. Their indexes ascend without duplicates.
    ///
    /// # Errors
    /// Returns a message if the rows cannot be read.
    pub(super) async fn read_rows(&self, indexes: Vec<u64>) -> Result<ColdRows, String> {
        match self {
            Self::Held(data) => {
                let rows = data.content.read_rows(indexes).await.map_err(|error| error.to_string())?;
                metrics::count_graph_rows("disk", rows.rows() - rows.store_rows());
                metrics::count_graph_rows("store", rows.store_rows());
                Ok(rows)
            }
            Self::Partitioned(feature) => feature.read_rows(indexes).await,
        }
    }
}
