//! The model of a job: from counters of workers and consumers to rates, sizes, what bounds the job, and what would help.
//!
//! It follows Plumber (Kuchnik, Klimovic, Simsa, Smith, Amvrosiadis: "Plumber: Diagnosing and Removing Performance
//! Bottlenecks in Machine Learning Data Pipelines", MLSys 2022), for a cluster of unequal workers, live:
//!
//! - [`samples`]: what workers and consumers count, since their start.
//! - [`window`]: counts of the last seconds, and totals that survive a restarted worker.
//! - [`bandwidth`]: a concave law of the store's bandwidth against read concurrency.
//! - [`job`]: visit ratios, CPU time per delivered row and worker type, sizes at every cut, demand.
//! - `aligned`: workers whose operators differ by what they keep.
//! - `visits`: how often each operator is visited for a row delivered.
//! - [`bound`]: the rate that each resource allows a job on given workers; the smallest names the bottleneck.
//! - [`remedy`]: what the rate would be with more of something, or with a cache.
//!
//! A row's cost is always given per row *delivered* to a consumer, so that costs of operators add up. Nothing here
//! decides anything: that is [`crate::plan`].

mod aligned;
pub mod bandwidth;
pub mod bound;
pub mod job;
pub mod remedy;
pub mod samples;
mod text;
mod visits;
pub mod window;

pub use bandwidth::{Bandwidth, Observation};
pub use bound::{CacheUse, JobResources, Locality, WorkerTypeShare, bottleneck, bounds};
pub use job::{CachePointModel, JobModel, JobObservation, OperatorModel};
pub use remedy::{CacheRoom, Remedy, remedies};
pub use samples::{JobConsumerSample, JobWorkerSample, OperatorSample, StoreSample};
pub(crate) use text::number;
pub use window::{CumulativeCounters, SampleWindow};
