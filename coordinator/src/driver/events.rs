//! The events that a driver waits for besides requests and time.

use feedline_raft::Message;
use tokio::sync::mpsc;

use super::indexes::{IndexEvent, IndexRequests};
use crate::disk::{Disk, WriteOutcome};
use crate::error::CoordinatorError;
use crate::peers::SendOutcome;

/// What happens besides requests and time.
pub(super) enum Event {
    Written(WriteOutcome),
    Messages(Vec<Message>),
    Delivery(SendOutcome),
    Index(IndexEvent),
}

/// What happens next, besides requests and time. Cancel safe.
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
                // This coordinator is not the leader any longer.
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(CoordinatorError::Stopped(error.to_string())),
            },
        }
    }
}
