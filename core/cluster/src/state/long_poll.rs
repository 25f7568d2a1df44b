//! A long poll: a request that is parked until its plan changes or the hold time expires.

use feedline_data::ids::Millis;
use feedline_data::messages::Revision;

use crate::inputs::RequestId;

#[derive(Debug, Clone, Copy)]
pub(crate) struct LongPoll {
    pub(crate) request: RequestId,
    pub(crate) since: Millis,
    /// The plan revision of the sender; 0 for a revision of another incarnation.
    pub(crate) plan_revision: u64,
}

impl LongPoll {
    pub(crate) fn new(request: RequestId, since: Millis, seen: Revision, incarnation: u64) -> Self {
        Self { request, since, plan_revision: if seen.incarnation == incarnation { seen.number } else { 0 } }
    }

    /// Whether the plan has changed or the hold time has expired.
    pub(crate) fn is_due(&self, revision: u64, now: Millis, hold_ms: u64) -> bool {
        self.plan_revision != revision || now.saturating_sub(self.since) >= hold_ms
    }
}
