//! Credit: how many bytes each fetch may send, so that what is buffered and what is on its way stay within the budget,
//! however many streams there are.
//!
//! A worker sends a piece only once it has credit for all of it. Streams get credit in the order of their next batches.
//! Only the split that the very next batch waits for gets what its piece needs whatever is buffered, so that a batch
//! larger than the budget comes all the same.

use feedline_data::layout::SplitRef;
use tokio::time::Instant;

use super::Feed;
use super::fetch_table::{Attempt, SplitFetch};

const WINDOW_MIN_BYTES: u64 = 64 << 10;
const WINDOW_MAX_BYTES: u64 = 32 << 20;

/// A split to fetch.
#[derive(Debug, Clone, Copy)]
pub(super) struct SplitRequest {
    pub(super) split: SplitRef,
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
        self.buffered_bytes + self.fetches.outstanding()
    }

    /// The first credit of a new fetch; `None` while there is no room for it.
    pub(super) fn first_credit(&self, urgent: bool) -> Option<u64> {
        let window = self.window_bytes();
        if self.committed_bytes() + window <= self.settings.credit_bytes() {
            return Some(window);
        }
        urgent.then_some(self.largest_piece.unwrap_or(window).max(1))
    }

    /// The split that the very next batch waits for.
    pub(super) fn urgent_split(&self) -> Option<SplitRef> {
        let lane = self.lanes.get(self.lanes.next_in_turn()?);
        if lane.assembler.has_run() {
            return None;
        }
        self.missing_of(lane).next().map(|(split, _)| split)
    }

    /// Splits that have not arrived, at most `ahead` of each stream: the first of every stream, then the second of every
    /// stream, and so on. While no piece has told how large pieces are, only those of the stream that is next: others
    /// would bind memory of workers.
    pub(super) fn wanted(&self, ahead: usize) -> Vec<SplitRequest> {
        let known = if self.largest_piece.is_some() { self.lanes.len() } else { 1 };
        let mut wanted = Vec::new();
        for (rank, place) in self.lanes.in_order().enumerate().take(known) {
            let lane = self.lanes.get(place);
            for (number, (split, _)) in self.missing_of(lane).take(ahead).enumerate() {
                let urgent = rank == 0 && number == 0 && !lane.assembler.has_run();
                wanted.push((number, SplitRequest { split, urgent }));
            }
        }
        wanted.sort_by_key(|(number, _)| *number);
        wanted.into_iter().map(|(_, wanted)| wanted).collect()
    }

    /// Gives fetches further credit where there is room: to all where the window has changed, otherwise to those whose room has
    /// changed, in the order in which their rows are due, until the budget is used.
    pub(super) fn top_up(&mut self, now: Instant) {
        let terms = self.credit_terms();
        if self.identity.relaxed || self.window != terms.window {
            self.window = terms.window;
            self.hungry.clear();
            for SplitRequest { split, urgent, .. } in self.wanted(usize::MAX) {
                if !self.grant(split, urgent, &terms, now) {
                    self.hungry.insert(split);
                }
            }
            return;
        }
        if let Some(urgent) = self.urgent_split() {
            self.grant(urgent, true, &terms, now);
        }
        while let Some(split) = self.hungry.pop_first() {
            if self.missing_from(split).is_some() && !self.grant(split, false, &terms, now) {
                self.hungry.insert(split);
                break;
            }
        }
    }

    fn credit_terms(&self) -> CreditTerms {
        let (window, piece) = (self.window_bytes(), self.largest_piece.unwrap_or(0).max(1));
        CreditTerms { window, piece, least: piece.max(window / 4), budget: self.settings.credit_bytes() }
    }

    /// Gives the fetches of a split what they have room for. `false` where the budget has no room for it.
    fn grant(&mut self, split: SplitRef, urgent: bool, terms: &CreditTerms, now: Instant) -> bool {
        let mut committed = self.committed_bytes();
        let give = |fetch: &mut SplitFetch| {
            let mut is_served = true;
            for attempt in &mut fetch.attempts {
                let wanted = terms.wanted(attempt, fetch.buffered_bytes);
                let mut grant = if committed + wanted > terms.budget { 0 } else { wanted };
                if urgent && grant == 0 && !attempt.can_send() {
                    grant = if attempt.piece_left > 0 { attempt.lacking() } else { terms.piece };
                }
                is_served &= grant > 0 || wanted == 0;
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
            is_served
        };
        self.fetches.update(split, give).unwrap_or(true)
    }
}

/// By what credit is given.
struct CreditTerms {
    window: u64,
    /// Size of the largest piece so far.
    piece: u64,
    /// A grant of less than a piece sends nothing, and small grants cost a message each.
    least: u64,
    budget: u64,
}

impl CreditTerms {
    /// Bytes that an attempt has room for.
    fn wanted(&self, attempt: &Attempt, buffered: u64) -> u64 {
        let room = self.window.saturating_sub(attempt.outstanding() + buffered);
        if room >= self.least { room.max(attempt.lacking()) } else { attempt.lacking() }
    }
}
