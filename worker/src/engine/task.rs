//! The resources that running groups share with the rest of the worker, and the priority of a group.

use std::sync::Arc;

use feedline_data::memory::MemoryAccount;
use feedline_operators::DecodeMemory;

use super::memory_budget::MemoryBudget;
use super::pool::{Pool, Priority};
use super::progress::SplitProgress;
use super::read::ReadResources;
use super::slab::SlabPool;
use crate::cache::Caches;

/// The resources of a worker that all groups share.
#[derive(Clone)]
pub(crate) struct WorkerResources {
    pub(crate) pool: Arc<Pool>,
    pub(crate) slabs: Arc<SlabPool>,
    pub(crate) caches: Arc<Caches>,
    pub(crate) reading: Arc<ReadResources>,
    pub(crate) budget: Arc<MemoryBudget>,
}

impl WorkerResources {
    /// Registers the pools and caches as usage sources of their accounts in the memory budget.
    pub(super) fn register_accounts(&self, decoding: Arc<DecodeMemory>) {
        let (slabs, caches, reading) =
            (Arc::clone(&self.slabs), Arc::clone(&self.caches), Arc::clone(&self.reading));
        self.budget.add_source(MemoryAccount::Batches, move || slabs.allocated_bytes());
        self.budget.add_source(MemoryAccount::Caches, move || caches.memory_bytes());
        let decoders = Arc::clone(&reading);
        self.budget.add_source(MemoryAccount::Blocks, move || reading.held_bytes());
        self.budget.add_source(MemoryAccount::Decoders, move || {
            decoding.reserved_bytes() + decoders.decoder_bytes()
        });
    }
}

/// The priority of a running group, and the progress of its split.
#[derive(Debug, Clone)]
pub(crate) struct TaskContext {
    pub(crate) priority: Priority,
    pub(crate) progress: SplitProgress,
}
