//! The model of graph batches: which nodes a batch of sampled neighbors contains, before the first batch is sampled.
//!
//! - [`topology`]: the graph, and relations that contain the reverse of other edges.
//! - [`sampling`]: the seeds and the fanouts of a batch.
//! - [`vip`]: the probability that a batch contains a node (vertex inclusion probability).
//! - [`expected`]: the expected nodes and edges of a batch.
//! - [`forecast`]: the expected size of the batches of a job.
//! - [`hot_rows`]: the order of feature rows by probability, and the hit rate of a cache of the first rows.
//!
//! A model is an estimate in floating-point numbers. The order of rows and the draws of a job do not depend on it.

pub mod expected;
pub mod forecast;
mod hop_part;
pub mod hot_rows;
mod row_law;
pub mod sampling;
pub mod topology;
pub mod vip;
mod weighted_law;

#[cfg(test)]
pub(crate) mod tests;
