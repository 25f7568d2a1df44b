//! The tracked state of one consumer of a job. The state is soft: the next reports restore it.

use std::collections::BTreeMap;

use feedline_data::checkpoint::PositionHistory;
use feedline_data::growth::KnownGrowth;
use feedline_data::ids::{Millis, SessionId};
use feedline_data::layout::SplitRef;
use feedline_data::messages::{ConsumerReport, ConsumerStats};

use super::long_poll::LongPoll;

/// Maximum number of recent sessions of a consumer whose counters are stored separately.
const MAX_SEPARATE_SESSIONS: usize = 4;

#[derive(Debug)]
pub(crate) struct TrackedConsumer {
    pub(crate) session: SessionId,
    pub(crate) last_seen: Millis,
    /// Number of splits that the consumer requests ahead.
    pub(crate) wanted_splits: u32,
    /// Number of changes of the consumer's plan.
    pub(crate) revision: u64,
    pub(crate) parked: Option<LongPoll>,
    /// The session of the parked request.
    pub(crate) parked_session: SessionId,
    /// Counters of each recent session.
    pub(crate) stats: BTreeMap<SessionId, ConsumerStats>,
    /// Sum of the counters of older sessions.
    pub(crate) earlier_stats: ConsumerStats,
    /// Relaxed mode: the splits that this session lost while it was silent, each with the recorded offset.
    pub(crate) lost_splits: BTreeMap<SplitRef, u32>,
    /// Elastic jobs: whether the rank accepts slots.
    pub(crate) is_present: bool,
    /// Elastic jobs: whether the session has announced that it leaves.
    pub(crate) is_leaving: bool,
    /// Elastic jobs: nanoseconds for a batch of one slot; 0 if unknown.
    pub(crate) slot_ns: u64,
    /// The positions after the recent batches, if a query has requested them.
    pub(crate) history: Option<Box<PositionHistory>>,
    /// Whether the session has announced its end.
    pub(crate) has_ended: bool,
    /// Unbounded jobs: how much of the growth the consumer knows.
    pub(crate) known_growth: KnownGrowth,
}

impl TrackedConsumer {
    /// Creates a consumer that has not reported yet.
    pub(crate) fn new(session: SessionId, now: Millis) -> Self {
        Self {
            session,
            last_seen: now,
            wanted_splits: 0,
            revision: 1,
            parked: None,
            parked_session: session,
            stats: BTreeMap::new(),
            earlier_stats: ConsumerStats::default(),
            lost_splits: BTreeMap::new(),
            is_present: true,
            is_leaving: false,
            slot_ns: 0,
            history: None,
            has_ended: false,
            known_growth: KnownGrowth::default(),
        }
    }

    /// Whether the consumer has not reported within its lease time.
    pub(crate) fn is_silent(&self, now: Millis, lease_ms: u64) -> bool {
        now.saturating_sub(self.last_seen) > lease_ms
    }

    /// Starts a new session.
    pub(crate) fn replace_session(&mut self, session: SessionId) {
        self.session = session;
        self.revision += 1;
        self.lost_splits.clear();
        (self.history, self.has_ended) = (None, false);
    }

    /// Replaces the counters of a session. Merges the counters of the oldest sessions, which no longer report.
    pub(crate) fn set_stats(&mut self, session: SessionId, stats: ConsumerStats) {
        self.stats.insert(session, stats);
        while self.stats.len() > MAX_SEPARATE_SESSIONS
            && let Some((_, oldest)) = self.stats.pop_first()
        {
            self.earlier_stats.add(&oldest);
        }
    }

    /// Updates a rank of an elastic job. A session that is leaving remains leaving, because earlier reports may arrive late.
    /// Returns whether slots must be reassigned.
    pub(crate) fn update_rank(&mut self, report: &ConsumerReport, is_new: bool) -> bool {
        self.is_leaving = report.slots.leaving || (self.is_leaving && !is_new);
        self.slot_ns = report.slots.slot_ns;
        let was_here = std::mem::replace(&mut self.is_present, !self.is_leaving);
        is_new || was_here != self.is_present
    }

    /// Whether the session has delivered rows of splits after it had lost these splits.
    pub(crate) fn has_delivered_lost_rows(&self, open: &[(SplitRef, u32)]) -> bool {
        open.iter().any(|(split, offset)| self.lost_splits.get(split).is_some_and(|lost_at| offset > lost_at))
    }
}
