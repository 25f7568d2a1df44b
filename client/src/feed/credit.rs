//! Credit: how many bytes each fetch may send, so that what is buffered and what is on its way stay within the budget.
//!
//! A fetch may have one window of bytes on their way or buffered. The head of each lane, the split its next batch
//! waits for, always gets its window and whatever one piece needs; all others only within the budget.

use feedline_core::layout::SplitRef;
use tokio::time::Instant;

use super::Feed;

const WINDOW_MIN_BYTES: u64 = 64 << 10;
const WINDOW_MAX_BYTES: u64 = 32 << 20;

impl Feed {
    /// Bytes that one fetch may have on their way or buffered.
    pub(super) fn window_bytes(&self) -> u64 {
        let fetches = self.lanes.len().max(1) as u64 * u64::from(self.settings.splits_ahead);
        (self.settings.buffer_bytes / fetches).clamp(WINDOW_MIN_BYTES, WINDOW_MAX_BYTES)
    }

    /// Bytes that are buffered or may come.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let attempts = self.splits.values().flat_map(|fetch| &fetch.attempts);
        self.buffered_bytes + attempts.map(super::attempts::Attempt::outstanding).sum::<u64>()
    }

    /// The first credit of a new fetch; `None` while there is no room for it.
    pub(super) fn first_credit(&self, head: bool) -> Option<u64> {
        let window = self.window_bytes();
        (head || self.committed_bytes() + window <= self.settings.buffer_bytes).then_some(window)
    }

    /// Gives fetches further credit where there is room.
    pub(super) fn top_up(&mut self, now: Instant) {
        let window = self.window_bytes();
        let mut committed = self.committed_bytes();
        let mut splits: Vec<(SplitRef, bool, bool)> = Vec::new();
        for lane in &self.lanes {
            let missing = self.missing_of(lane).into_iter().enumerate();
            splits.extend(missing.map(|(place, (split, _))| {
                (split, place == 0 && lane.waits_for(split), place == 0 && lane.starving)
            }));
        }
        for (split, head, starving) in splits {
            let Some(fetch) = self.splits.get_mut(&split) else { continue };
            let buffered = fetch.buffered_bytes;
            for attempt in &mut fetch.attempts {
                let outstanding = attempt.outstanding();
                let room = window.saturating_sub(outstanding + buffered);
                // Small grants cost a message each.
                let mut grant = if room >= window / 4 { room } else { 0 };
                grant = grant.max(attempt.piece_left.saturating_sub(outstanding));
                if starving && !attempt.can_send() {
                    grant = grant.max(attempt.largest.max(window));
                }
                if grant == 0 || !(head || committed + grant <= self.settings.buffer_bytes) {
                    continue;
                }
                if !attempt.can_send() {
                    attempt.heard_at = now;
                }
                committed += grant;
                attempt.granted += grant;
                attempt.credit.send_replace(attempt.granted);
            }
        }
    }
}
