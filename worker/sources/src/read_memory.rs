//! The memory that clients of stores use beside the blocks that the worker has reserved.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use feedline_data::memory::MemoryLimits;

/// The limits of a worker's memory, and the counter of the bytes that clients of stores use.
#[derive(Debug, Clone)]
pub struct ReadMemory {
    /// The limits of the worker.
    pub limits: MemoryLimits,
    /// Bytes in use. Counts towards the memory budget of the worker.
    pub used_bytes: Arc<AtomicU64>,
}

impl Default for ReadMemory {
    /// The memory of a command without `--memory`, which nothing counts.
    fn default() -> Self {
        let limits = MemoryLimits::new(MemoryLimits::default_budget_bytes(None));
        Self { limits, used_bytes: Arc::default() }
    }
}
