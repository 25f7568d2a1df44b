//! The model of a job: rates, sizes, the bottleneck and its remedies, computed from the counters of workers and
//! consumers.
//!
//! The model follows Plumber (Kuchnik, Klimovic, Simsa, Smith, Amvrosiadis: "Plumber: Diagnosing and Removing
//! Performance Bottlenecks in Machine Learning Data Pipelines", MLSys 2022), but for a running cluster of unequal
//! workers:
//!
//! - [`samples`]: the cumulative counters of workers and consumers.
//! - [`window`]: the counters of the last seconds, and totals that survive the restart of a worker.
//! - [`bandwidth`]: the store's bandwidth as a concave function of read concurrency.
//! - [`job`]: visit ratios, CPU time per delivered row and worker type, sizes at every cache point, demand.
//! - `aligned`: makes the samples of all workers list the same operators, although only some workers cache rows.
//! - [`graph_costs`]: the sampled graphs of a job.
//! - `expected_job`: the model of a job that samples a graph, before its first batch.
//! - `visits`: the number of rows that enter each operator per delivered row.
//! - [`bound`]: the maximum rate that each resource allows for a job. The resource with the smallest rate is the
//!   bottleneck.
//! - [`remedy`]: the predicted rate with more of a resource, or with a cache.
//!
//! Costs are per row *delivered* to a consumer, so the costs of operators add up. The model makes no decisions;
//! [`crate::plan`] makes them.

mod aligned;
pub mod bandwidth;
pub mod bound;
mod expected_job;
pub mod graph_costs;
pub mod job;
pub mod remedy;
pub mod samples;
mod text;
mod visits;
pub mod window;

pub use bandwidth::{Bandwidth, BandwidthObservation};
pub use bound::{CacheUse, JobResources, Locality, WorkerTypeResources, bottleneck, bounds};
pub use graph_costs::{GraphExpectation, GraphModel, MeasuredGraphBatch};
pub use job::{CachePointModel, JobModel, JobObservation, OperatorModel};
pub use remedy::{CacheCapacity, Remedy, remedies};
pub use samples::{JobConsumerSample, JobWorkerSample};
pub(crate) use text::{format_count, format_number};
pub use window::{CumulativeCounters, SampleWindow};
