//! The parameters of a fetch that the session must start.

use feedline_data::layout::SplitRef;
use feedline_data::messages::WorkerAddress;
use tokio::sync::watch;

/// The parameters of a fetch to start.
#[derive(Debug)]
pub(crate) struct FetchCommand {
    pub(crate) split: SplitRef,
    pub(crate) attempt: u64,
    /// Offset of the first row.
    pub(crate) from: u32,
    /// Address of the worker.
    pub(crate) address: WorkerAddress,
    pub(crate) credit_bytes: u64,
    pub(crate) credit: watch::Receiver<u64>,
    /// Authorizes the consumer at the worker.
    pub(crate) ticket: String,
}
