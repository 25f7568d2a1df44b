//! The events that the driver waits for, except requests and ticks.

use feedline_raft::Message;
use tokio::sync::mpsc;

use super::indexes::{IndexEvent, IndexRequests};
use crate::disk::{Disk, WriteOutcome};
use crate::error::CoordinatorError;
use crate::peers::SendOutcome;

/// An event of the disk, the network or an index task.
pub(super) enum Event {
    Written(WriteOutcome),
    Messages(Vec<Message>),
    Delivery(SendOutcome),
    Index(IndexEvent),
}

/// Returns the next event. Cancel safe.
pub(super) async fn next(
    disk: &mut Disk,
    inbox: &mut mpsc::Receiver<Vec<Message>>,
    deliveries: &mut mpsc::Receiver<SendOutcome>,
    indexes: &mut IndexRequests,
) -> Result<Event, CoordinatorError> {
    loop {
        tokio::select! {
            written = disk.written() => return written.map(Event::Written),
            Some(messages) = inbox.recv() => return Ok(Event::Messages(messages)),
            Some(delivery) = deliveries.recv() => return Ok(Event::Delivery(delivery)),
            Some(done) = indexes.join_next() => match done {
                Ok(indexed) => return Ok(Event::Index(indexed)),
                // This coordinator is no longer the leader.
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(CoordinatorError::Stopped(error.to_string())),
            },
        }
    }
}
