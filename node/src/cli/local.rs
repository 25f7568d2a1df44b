//! Flags of the workers that run in the process of a command.

use std::path::PathBuf;

use clap::Args;

use super::{CacheArgs, FunctionArgs, PoolArgs, SwitchArg, WorkerStoreArgs};
use crate::memory_size::{MemorySize, parse_memory_size};

/// Resources of the workers in this process.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct LocalArgs {
    /// Number of workers in this process.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    #[command(flatten)]
    pub(crate) pool: PoolArgs,
    /// Cores that run operators, divided among the workers [default: the CPU limit of the container, otherwise its CPU
    /// request in Kubernetes, otherwise all cores that this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Memory for batches and blocks, divided among the workers, such as 4GiB, or a percentage of the memory limit of the
    /// container or of the machine's memory, such as 70% [default: 1 GiB, or a quarter of this memory if that is less].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_size)]
    pub(crate) memory: Option<MemorySize>,
    /// Part of --memory that the topologies and features of graphs may use, divided among the workers: a size or a percentage, as
    /// for --memory [default: half of --memory].
    #[arg(long, value_name = "SIZE", value_parser = parse_memory_size)]
    pub(crate) graph_memory: Option<MemorySize>,
    /// Directory for saved dataset indexes [default: feedline in $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) index_dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) stores: WorkerStoreArgs,
    #[command(flatten)]
    pub(crate) functions: FunctionArgs,
    /// Measure operators.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) trace: SwitchArg,
}

/// Whether the plan may add caches.
#[derive(Args, Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AutoCacheArgs {
    /// Also cache rows of pipelines without `cache`, if the model predicts a benefit.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) auto_cache: SwitchArg,
}
