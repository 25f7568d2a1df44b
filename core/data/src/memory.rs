//! Memory accounts of a worker, and their shares of its memory budget. All shares and limits are defined in this file.
//!
//! The limits intentionally add up to more than the budget. A worker starts a group of rows only while the sum of all
//! accounts stays within the budget.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The share of the budget that cached rows of pipelines may use.
pub const CACHE_MEMORY_SHARE: f64 = 1.0 / 3.0;
/// The share of the budget that cached blocks of encoded rows may use.
const BLOCK_CACHE_SHARE: f64 = 1.0 / 4.0;
/// Largest row that indexing holds in memory to determine the columns. Reading a row needs several times its size.
const SAMPLED_ROW_SHARE: f64 = 1.0 / 2.0;
/// The share of the budget that paused decoders of compressed shards may use.
const PAUSED_DECODER_SHARE: f64 = 1.0 / 4.0;
/// The share of the budget that blocks may use while they are being read.
const READ_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that decoders may use for large images, beyond [`DECODE_BYTES_PER_THREAD`].
const DECODE_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that loaded graphs may use, unless the worker has a limit of its own.
const GRAPH_SHARE: f64 = 1.0 / 2.0;
/// The share of the budget that rows of features which are read for batches may use. One batch may use more.
const GRAPH_ROW_SHARE: f64 = 1.0 / 4.0;
/// The share of the budget above which samplers of graphs release their memory after each batch.
const SAMPLER_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that rows of features may use while they are sent to other workers.
const GATHER_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that consumers on the same host may map as shared memory.
const SHARED_MEMORY_SHARE: f64 = 1.0 / 4.0;
/// The share of the budget that the groups computed ahead of consumers may use, over all jobs of a plan.
const PREFETCH_SHARE: f64 = 1.0 / 2.0;
/// The share of the budget that records of Kafka partitions may use while they are fetched ahead.
const KAFKA_PREFETCH_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that cached footers and headers of shards may use.
const SHARD_CACHE_SHARE: f64 = 1.0 / 8.0;
/// The share of the budget that the records of one block of a Kafka partition may use.
const KAFKA_BLOCK_SHARE: f64 = 1.0 / 4.0;
/// Minimum number of bytes that a plan grants a job for groups computed ahead. A job with a smaller share of the budget
/// receives its whole share.
const MIN_PREFETCH_BYTES: f64 = 16e6;
/// The budget of a worker without `--memory`, unless a quarter of the machine's memory is smaller.
const DEFAULT_BUDGET_BYTES: u64 = 1 << 30;

/// Bytes that a decoder may use on each thread without a reservation.
pub const DECODE_BYTES_PER_THREAD: u64 = 64 << 20;
/// Maximum total size in bytes of the rows that wait to be written to the disk tier. The store tier has the same limit. The
/// cache drops rows beyond the limit.
pub const CACHE_WRITE_QUEUE_BYTES: u64 = 32 << 20;

/// A category of memory that a worker's budget covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryAccount {
    /// Buffers of finished batches, including idle buffers.
    Batches,
    /// Bytes that groups in flight have reserved for batches but have not allocated.
    ReservedBatches,
    /// Encoded rows of groups in flight.
    EncodedRows,
    /// Decoded images between two operators.
    Images,
    /// Large images inside decoders, and decoders of compressed shards.
    Decoders,
    /// Blocks of encoded rows, both cached and being read, cached footers of shards, and records that Kafka clients have fetched
    /// ahead.
    Blocks,
    /// Cached rows of pipelines, including rows that wait to be written to disk or to the object store.
    Caches,
    /// Memory shared with the processes of Python functions.
    Functions,
    /// Memory shared with consumers on the same host.
    SharedMemory,
    /// Topologies and features of loaded graphs, including blocks that are being read.
    Graphs,
    /// Sampled graphs before they are encoded, and the maps of their nodes, both in use and idle. Also models of batches.
    Samplers,
}

impl MemoryAccount {
    /// The number of accounts.
    pub const COUNT: usize = Self::ALL.len();

    /// All accounts, in the order of their declaration.
    pub const ALL: [Self; 11] = [
        Self::Batches,
        Self::ReservedBatches,
        Self::EncodedRows,
        Self::Images,
        Self::Decoders,
        Self::Blocks,
        Self::Caches,
        Self::Functions,
        Self::SharedMemory,
        Self::Graphs,
        Self::Samplers,
    ];

    /// The account's name in metrics and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batches => "batches",
            Self::ReservedBatches => "reserved_batches",
            Self::EncodedRows => "encoded_rows",
            Self::Images => "images",
            Self::Decoders => "decoders",
            Self::Blocks => "blocks",
            Self::Caches => "caches",
            Self::Functions => "functions",
            Self::SharedMemory => "shared_memory",
            Self::Graphs => "graphs",
            Self::Samplers => "samplers",
        }
    }
}

impl fmt::Display for MemoryAccount {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The number of bytes that one account uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryUsage {
    /// The account.
    pub account: MemoryAccount,
    /// Bytes reserved for the account.
    pub used_bytes: u64,
}

/// The memory budget of one worker in bytes, and the limits that follow from it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MemoryLimits {
    budget_bytes: f64,
}

impl MemoryLimits {
    /// Returns the limits of a worker with this budget.
    pub fn new(budget_bytes: u64) -> Self {
        Self { budget_bytes: budget_bytes as f64 }
    }

    /// Returns the budget of a worker that runs without `--memory`. `machine_bytes` is the machine's memory; `None` if
    /// unknown.
    pub fn default_budget_bytes(machine_bytes: Option<u64>) -> u64 {
        machine_bytes.map_or(DEFAULT_BUDGET_BYTES, |bytes| DEFAULT_BUDGET_BYTES.min(bytes / 4))
    }

    /// Maximum size of cached pipeline rows, in bytes.
    pub fn cache_bytes(self) -> u64 {
        self.budget_fraction_bytes(CACHE_MEMORY_SHARE)
    }

    /// Maximum size of cached blocks of encoded rows, in bytes.
    pub fn block_cache_bytes(self) -> u64 {
        self.budget_fraction_bytes(BLOCK_CACHE_SHARE)
    }

    /// Maximum size of paused decoders of compressed shards, in bytes.
    pub fn paused_decoder_bytes(self) -> u64 {
        self.budget_fraction_bytes(PAUSED_DECODER_SHARE)
    }

    /// Maximum size of a row that determines the columns of a shard while the shard is indexed, in bytes.
    pub fn sampled_row_bytes(self) -> u64 {
        self.budget_fraction_bytes(SAMPLED_ROW_SHARE)
    }

    /// Maximum size of one decoder of a compressed shard, in bytes: the whole budget.
    pub fn decoder_bytes(self) -> u64 {
        self.budget_fraction_bytes(1.0)
    }

    /// Maximum size of blocks that are being read, in bytes.
    pub fn read_bytes(self) -> u64 {
        self.budget_fraction_bytes(READ_SHARE)
    }

    /// Maximum size of large images inside decoders, in bytes.
    pub fn decode_bytes(self) -> u64 {
        self.budget_fraction_bytes(DECODE_SHARE)
    }

    /// The size of the budget, in bytes.
    pub fn budget_bytes(self) -> u64 {
        self.budget_bytes as u64
    }

    /// Maximum size of the records of Kafka partitions that are fetched ahead, in bytes.
    pub fn kafka_prefetch_bytes(self) -> u64 {
        self.budget_fraction_bytes(KAFKA_PREFETCH_SHARE)
    }

    /// Maximum size of the records of one block of a Kafka partition, in bytes.
    pub fn kafka_block_bytes(self) -> u64 {
        self.budget_fraction_bytes(KAFKA_BLOCK_SHARE)
    }

    /// Maximum size of cached footers and headers of shards, in bytes.
    pub fn shard_cache_bytes(self) -> u64 {
        self.budget_fraction_bytes(SHARD_CACHE_SHARE)
    }

    /// Maximum size of loaded graphs, in bytes, for a worker without `--graph-memory`.
    pub fn graph_bytes(self) -> u64 {
        self.budget_fraction_bytes(GRAPH_SHARE)
    }

    /// Maximum size of the rows of graph features that are read for several batches, in bytes.
    pub fn graph_row_bytes(self) -> u64 {
        self.budget_fraction_bytes(GRAPH_ROW_SHARE)
    }

    /// Size of the memory of samplers above which they release it after each batch, in bytes.
    pub fn sampler_bytes(self) -> u64 {
        self.budget_fraction_bytes(SAMPLER_SHARE)
    }

    /// Maximum size of the rows of features that are being sent to other workers, in bytes.
    pub fn gathered_bytes(self) -> u64 {
        self.budget_fraction_bytes(GATHER_SHARE)
    }

    /// Maximum size of memory shared with consumers on the same host, in bytes.
    pub fn shared_memory_bytes(self) -> u64 {
        self.budget_fraction_bytes(SHARED_MEMORY_SHARE)
    }

    /// Maximum size of the groups computed ahead for a job, in bytes. `core_share` is the job's share of the worker's cores,
    /// from 0 to 1. Returns at least 1, because 0 means no limit.
    pub fn prefetch_bytes(self, core_share: f64) -> u64 {
        let share_bytes = core_share * self.budget_bytes;
        let prefetch_bytes = (PREFETCH_SHARE * share_bytes).max(MIN_PREFETCH_BYTES.min(share_bytes));
        prefetch_bytes.max(1.0) as u64
    }

    fn budget_fraction_bytes(self, share: f64) -> u64 {
        (self.budget_bytes * share) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_shares_of_the_budget() {
        let limits = MemoryLimits::new(1200);
        assert_eq!((limits.cache_bytes(), limits.block_cache_bytes(), limits.read_bytes()), (400, 300, 150));
        assert_eq!((limits.decode_bytes(), limits.shared_memory_bytes()), (150, 300));
        assert_eq!((limits.paused_decoder_bytes(), limits.shard_cache_bytes()), (300, 150));
        assert_eq!((limits.kafka_prefetch_bytes(), limits.kafka_block_bytes()), (150, 300));
        assert_eq!((limits.graph_bytes(), limits.sampler_bytes()), (600, 150));
        assert_eq!((limits.graph_row_bytes(), limits.sampled_row_bytes()), (300, 600));
        assert_eq!(limits.decoder_bytes(), 1200);
    }

    #[test]
    fn a_small_job_gets_the_minimum_prefetch_or_its_whole_share() {
        let limits = MemoryLimits::new(1_000_000_000);
        assert_eq!(limits.prefetch_bytes(1.0), 500_000_000);
        assert_eq!(limits.prefetch_bytes(0.02), 16_000_000);
        assert_eq!(limits.prefetch_bytes(0.01), 10_000_000);
        assert_eq!(limits.prefetch_bytes(0.0), 1, "0 would mean no limit");
    }

    #[test]
    fn the_default_budget_is_at_most_a_quarter_of_the_machine() {
        assert_eq!(MemoryLimits::default_budget_bytes(None), 1 << 30);
        assert_eq!(MemoryLimits::default_budget_bytes(Some(64 << 30)), 1 << 30);
        assert_eq!(MemoryLimits::default_budget_bytes(Some(2 << 30)), 512 << 20);
    }

    #[test]
    fn each_account_has_a_unique_name_and_index() {
        let names: std::collections::BTreeSet<&str> =
            MemoryAccount::ALL.iter().map(|one| one.name()).collect();
        assert_eq!(names.len(), MemoryAccount::COUNT);
        assert!(MemoryAccount::ALL.iter().enumerate().all(|(index, account)| *account as usize == index));
    }
}
