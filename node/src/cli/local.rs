//! Flags of the workers that run in the process of a command.

use std::path::PathBuf;

use clap::Args;

use super::{CacheArgs, FunctionArgs, StoreArgs, SwitchArg};

/// Resources of the workers in this process.
#[derive(Args, Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalArgs {
    /// Workers in this process.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) workers: u32,
    /// Cores that run operators, split over the workers [default: those this process may use].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) cores: Option<u32>,
    /// Memory for batches and blocks, split over the workers, such as 4GiB [default: 1 GiB, or a quarter of the
    /// machine's where that is less].
    #[arg(long, value_name = "SIZE", value_parser = crate::size::parse_bytes)]
    pub(crate) memory: Option<u64>,
    /// Directory of saved dataset indexes [default: feedline in $XDG_CACHE_HOME or ~/.cache].
    #[arg(long, value_name = "DIR")]
    pub(crate) index_dir: Option<PathBuf>,
    /// Row caches.
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    /// Whether rows are also kept in caches where no pipeline asks for it and the model finds it worth while.
    #[arg(long, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) auto_cache: SwitchArg,
    /// What pipelines may read, and with which keys.
    #[command(flatten)]
    pub(crate) stores: StoreArgs,
    /// Python functions of pipelines.
    #[command(flatten)]
    pub(crate) functions: FunctionArgs,
    /// Whether operators are measured.
    #[arg(long, hide = true, value_enum, value_name = "SWITCH", default_value_t)]
    pub(crate) trace: SwitchArg,
}
