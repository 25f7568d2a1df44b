//! The graphs that a worker holds in memory: their topologies and features, shared by all jobs.
//!
//! A graph consists of parts: its topology, and one part per feature. The key of a part is the hash of its contents, so two jobs
//! share the parts of equal graphs, and a graph that is built again at the same URL has other parts. Each job opens the description
//! of its graph with its own credentials and permissions before it receives parts.
//!
//! If the features do not fit in the memory for graphs, only their first rows are in memory. The other rows are read from the file
//! of the job that loaded the feature, for several batches at once.
//!
//! Parts that no job uses stay in memory until the memory is needed. The least recently used parts are evicted first.
//!
//! A job may divide its features of nodes among its workers. Each worker then holds some slices of them, which are not shared with
//! other jobs, and requests other rows from the workers that hold them.

mod block_disk;
mod hot_rows;
mod job_features;
mod job_graph;
mod job_partitions;
mod job_peers;
mod loader;
mod part;
mod part_table;
mod partitioned_feature;
mod row_window;

pub(crate) use self::job_partitions::JobPartitions;
pub use self::job_peers::PeerWorkers;
pub(crate) use self::loader::{GraphHost, GraphLimits, WorkerGraphs};

#[cfg(test)]
mod tests;
