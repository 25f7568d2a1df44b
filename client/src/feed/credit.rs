//! Credit: how many bytes each fetch may send, so that what is buffered and what is on its way stay within the budget,
//! however many streams there are.
//!
//! A worker sends a piece only once it has credit for all of it. Streams get credit in the order of their next batches.
//! Only the split that the very next batch waits for gets what its piece needs whatever is buffered, so that a batch
//! larger than the budget comes all the same.

use feedline_data::layout::SplitRef;
use tokio::time::Instant;

use super::Feed;

const WINDOW_MIN_BYTES: u64 = 64 << 10;
const WINDOW_MAX_BYTES: u64 = 32 << 20;

/// A split to fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitRequest {
    pub(super) split: SplitRef,
    pub(super) from: u32,
    /// The very next batch waits for it.
    pub(super) urgent: bool,
}

impl Feed {
    /// Bytes that one fetch may have on their way or buffered: an equal share of the budget, in whole pieces as far as
    /// their size is known, and at least one.
    pub(super) fn window_bytes(&self) -> u64 {
        let budget = self.settings.credit_bytes();
        let fetches = self.lanes.len().max(1) as u64 * u64::from(self.settings.splits_ahead);
        let share = (budget / fetches).min(WINDOW_MAX_BYTES);
        match self.largest_piece {
            Some(piece) if piece > 0 => (share / piece).max(1) * piece,
            _ => share.max(WINDOW_MIN_BYTES.min(budget)),
        }
    }

    /// Bytes that are buffered or may come.
    pub(crate) fn committed_bytes(&self) -> u64 {
        let attempts = self.splits.values().flat_map(|fetch| &fetch.attempts);
        self.buffered_bytes + attempts.map(super::attempts::Attempt::outstanding).sum::<u64>()
    }

    /// The first credit of a new fetch; `None` while there is no room for it.
    pub(super) fn first_credit(&self, urgent: bool) -> Option<u64> {
        let window = self.window_bytes();
        if self.committed_bytes() + window <= self.settings.credit_bytes() {
            return Some(window);
        }
        urgent.then_some(self.largest_piece.unwrap_or(window).max(1))
    }

    /// Splits that have not arrived, at most `ahead` of each stream: the first of every stream, then the second of every
    /// stream, and so on. While no piece has told how large pieces are, only those of the stream that is next: others
    /// would bind memory of workers.
    pub(super) fn wanted(&self, ahead: usize) -> Vec<SplitRequest> {
        let lanes = self.lanes_in_order();
        let known = if self.largest_piece.is_some() { lanes.len() } else { 1 };
        let mut wanted = Vec::new();
        for (rank, place) in lanes.into_iter().enumerate().take(known) {
            let lane = &self.lanes[place];
            for (number, (split, from)) in self.missing_of(lane).into_iter().take(ahead).enumerate() {
                let urgent = rank == 0 && number == 0 && !lane.assembler.has_run();
                wanted.push((number, SplitRequest { split, from, urgent }));
            }
        }
        wanted.sort_by_key(|(number, _)| *number);
        wanted.into_iter().map(|(_, wanted)| wanted).collect()
    }

    /// Gives fetches further credit where there is room.
    pub(super) fn top_up(&mut self, now: Instant) {
        let (window, budget) = (self.window_bytes(), self.settings.credit_bytes());
        let piece = self.largest_piece.unwrap_or(0).max(1);
        // A grant of less than a piece sends nothing, and small grants cost a message each.
        let least = piece.max(window / 4);
        let mut committed = self.committed_bytes();
        for SplitRequest { split, urgent, .. } in self.wanted(usize::MAX) {
            let Some(fetch) = self.splits.get_mut(&split) else { continue };
            let buffered = fetch.buffered_bytes;
            for attempt in &mut fetch.attempts {
                let outstanding = attempt.outstanding();
                let lacking = attempt.piece_left.saturating_sub(outstanding);
                let room = window.saturating_sub(outstanding + buffered);
                let mut grant = if room >= least { room.max(lacking) } else { lacking };
                if committed + grant > budget {
                    grant = 0;
                }
                if urgent && grant == 0 && !attempt.can_send() {
                    grant = if attempt.piece_left > 0 { lacking } else { piece };
                }
                if grant == 0 {
                    continue;
                }
                if !attempt.can_send() {
                    (attempt.heard_at, attempt.moved_at) = (now, now);
                }
                committed += grant;
                attempt.granted += grant;
                attempt.credit.send_replace(attempt.granted);
            }
        }
    }
}
