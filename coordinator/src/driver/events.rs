//! The events that the driver waits for, except requests and ticks.

use tokio::sync::mpsc;

use super::indexes::{IndexEvent, IndexRequests};
use crate::disk::{Disk, WriteOutcome};
use crate::error::CoordinatorError;
use crate::peer_event::PeerEvent;
use crate::peers::SendOutcome;

/// An event of the disk, the network or an index task.
pub(super) enum Event {
    Written(WriteOutcome),
    Peer(PeerEvent),
    Delivery(SendOutcome),
    Index(IndexEvent),
}

/// Returns the next event. Cancel safe.
pub(super) async fn next(
    disk: &mut Disk,
    inbox: &mut mpsc::Receiver<PeerEvent>,
    deliveries: &mut mpsc::Receiver<SendOutcome>,
    indexes: &mut IndexRequests,
) -> Result<Event, CoordinatorError> {
    loop {
        tokio::select! {
            written = disk.written() => return written.map(Event::Written),
            Some(event) = inbox.recv() => return Ok(Event::Peer(event)),
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
