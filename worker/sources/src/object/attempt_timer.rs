//! The time that attempts to read an object take.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::requests::QueueClock;

/// Adds the time of an attempt without its time in queues, also if the attempt is cancelled.
pub(super) struct AttemptTimer<'a> {
    pub(super) wait_ns: &'a AtomicU64,
    pub(super) clock: &'a QueueClock,
    pub(super) queued: Duration,
    pub(super) start: Instant,
}

impl Drop for AttemptTimer<'_> {
    fn drop(&mut self) {
        let queued = self.clock.total().saturating_sub(self.queued);
        let wait = self.start.elapsed().saturating_sub(queued);
        self.wait_ns.fetch_add(wait.as_nanos() as u64, Ordering::Relaxed);
    }
}
