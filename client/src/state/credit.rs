//! Grants credit, which is the number of bytes that a fetch may receive. The buffered and outstanding bytes of all streams stay within
//! the budget.
//!
//! A worker sends a piece only if it has credit for the whole piece. Fetches receive credit in the order in which batches need their
//! rows. The split that the next batch waits for may receive credit beyond the budget, so that a batch can be larger than the budget.

use feedline_data::layout::{SplitRef, StreamPosition};
use tokio::time::Instant;

use super::ConsumerState;
use super::fetch_table::{Attempt, SplitFetch};
use super::split_queue::QueuedSplit;
use crate::settings::ClientSettings;

const WINDOW_MIN_BYTES: u64 = 64 << 10;
const WINDOW_MAX_BYTES: u64 = 32 << 20;

impl ConsumerState {
    /// Returns the number of bytes that one fetch may buffer or receive. It is an equal share of the budget, rounded down to whole
    /// pieces if the size of pieces is known, but at least one piece.
    pub(super) fn window_bytes(&self) -> u64 {
        let budget = self.settings.credit_bytes();
        let fetches = self.streams.len().max(1) as u64 * u64::from(self.splits_ahead);
        let share = (budget / fetches).min(WINDOW_MAX_BYTES);
        match self.largest_piece {
            Some(piece) if piece > 0 => (share / piece).max(1) * piece,
            _ => share.max(WINDOW_MIN_BYTES.min(budget)),
        }
    }

    /// Logs once that the buffer holds fewer indivisible batches than workers can send at a time. Pieces of divisible batches are
    /// small.
    pub(super) fn warn_of_small_buffer(&mut self, batch_bytes: u64) {
        let is_indivisible = self.layout.as_ref().is_some_and(|layout| layout.indivisible);
        if !is_indivisible || self.has_warned_small_buffer {
            return;
        }
        let fetches = self.streams.len().max(1) as u64 * u64::from(self.splits_ahead);
        if let Some(message) = small_buffer_message(&self.settings, batch_bytes, fetches) {
            self.has_warned_small_buffer = true;
            tracing::warn!("{message}");
        }
    }

    /// Number of buffered and outstanding bytes.
    pub(crate) fn committed_bytes(&self) -> u64 {
        self.buffered_bytes + self.fetches.outstanding_bytes()
    }

    /// Returns the initial credit of a new fetch. `None` if the credit exceeds the budget.
    pub(super) fn first_credit(&self, is_urgent: bool) -> Option<u64> {
        let window = self.window_bytes();
        if self.committed_bytes() + window <= self.settings.credit_bytes() {
            return Some(window);
        }
        is_urgent.then_some(self.largest_piece.unwrap_or(window).max(1))
    }

    /// Returns the split that the next batch waits for. `None` if the batch has arrived.
    pub(super) fn urgent_split(&self) -> Option<SplitRef> {
        let stream = self.streams.get(self.streams.next_index()?);
        if stream.assembler.has_run() {
            return None;
        }
        self.missing_splits(stream).next().map(|(split, _)| split)
    }

    /// Returns the first missing splits of the stream that delivers the next batch.
    pub(super) fn first_missing_splits(&self) -> Vec<SplitRef> {
        let Some(index) = self.streams.next_index() else { return Vec::new() };
        let missing = self.missing_splits(self.streams.get(index)).map(|(split, _)| split);
        missing.take(self.splits_ahead as usize).collect()
    }

    /// Adds a split to the queue of fetches that may receive more credit.
    pub(super) fn queue_for_credit(&mut self, split: SplitRef) {
        if let Some(position) = self.missing_position(split) {
            self.credit_queue.insert(position, split);
        }
    }

    /// Adds a split to the queue of fetches to start.
    pub(super) fn queue_for_start(&mut self, split: SplitRef) {
        if let Some(position) = self.missing_position(split) {
            self.start_queue.insert(position, split);
        }
    }

    /// Returns the position of the first missing row of a split. `None` if the consumer does not need the split.
    fn missing_position(&self, split: SplitRef) -> Option<StreamPosition> {
        let (offset, layout) = (self.missing_offset(split)?, self.layout.as_ref()?);
        let row = split.ordinal * layout.split_rows + u64::from(offset);
        Some(StreamPosition { epoch: split.epoch, row })
    }

    /// Grants credit to the queued fetches within the budget. After a change of the window, queues all fetches first.
    pub(super) fn grant_credit(&mut self, now: Instant) {
        let terms = self.credit_terms();
        if self.window != terms.window {
            self.window = terms.window;
            let fetched: Vec<SplitRef> = self.fetches.iter().map(|(split, _)| split).collect();
            fetched.into_iter().for_each(|split| self.queue_for_credit(split));
        }
        if let Some(urgent) = self.urgent_split() {
            self.grant(urgent, true, &terms, now);
        }
        self.grant_before(self.start_queue.first(), now);
    }

    /// Grants credit to queued fetches that precede `limit`, which is a fetch that has not started.
    pub(super) fn grant_before(&mut self, limit: Option<QueuedSplit>, now: Instant) {
        let terms = self.credit_terms();
        while let Some(first) = self.credit_queue.first()
            && limit.is_none_or(|limit| first < limit)
        {
            let (position, split) = first;
            self.credit_queue.pop_first();
            if self.missing_offset(split).is_some() && !self.grant(split, false, &terms, now) {
                self.credit_queue.insert(position, split);
                return;
            }
        }
    }

    fn credit_terms(&self) -> CreditTerms {
        let (window, piece) = (self.window_bytes(), self.largest_piece.unwrap_or(0).max(1));
        CreditTerms { window, piece, min_grant: piece.max(window / 4), budget: self.settings.credit_bytes() }
    }

    /// Grants credit to the fetches of a split. Returns `false` if the budget is exhausted.
    fn grant(&mut self, split: SplitRef, is_urgent: bool, terms: &CreditTerms, now: Instant) -> bool {
        let mut committed = self.committed_bytes();
        let grant_attempts = |fetch: &mut SplitFetch| {
            let mut is_served = true;
            for attempt in &mut fetch.attempts {
                let wanted = terms.wanted(attempt, fetch.buffered_bytes);
                let mut grant = if committed + wanted > terms.budget { 0 } else { wanted };
                if is_urgent && grant == 0 && !attempt.can_send() {
                    grant =
                        if attempt.missing_piece_bytes > 0 { attempt.missing_credit() } else { terms.piece };
                }
                is_served &= grant > 0 || wanted == 0;
                if grant == 0 {
                    continue;
                }
                if !attempt.can_send() {
                    attempt.on_progress(now);
                }
                committed += grant;
                attempt.granted_bytes += grant;
                attempt.credit.send_replace(attempt.granted_bytes);
            }
            is_served
        };
        self.fetches.update(split, grant_attempts).unwrap_or(true)
    }
}

/// Describes a buffer that holds fewer batches of this size than the number of concurrent fetches. Returns `None` for a larger buffer.
fn small_buffer_message(settings: &ClientSettings, batch_bytes: u64, fetches: u64) -> Option<String> {
    let (wanted, credit) = (batch_bytes.saturating_mul(fetches), settings.credit_bytes());
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    (wanted > credit).then(|| {
        format!(
            "the buffer has room for {} of the {fetches} batches of {} MiB that workers can send at a time: if the consumer waits for \
             batches, set a buffer of {} MiB",
            credit / batch_bytes.max(1),
            mib(batch_bytes),
            mib(ClientSettings::buffer_for_credit(wanted))
        )
    })
}

/// Limits of a grant.
struct CreditTerms {
    window: u64,
    /// Size of the largest piece so far.
    piece: u64,
    /// Minimum number of bytes per grant. A worker cannot send less than a piece, and each grant needs a message.
    min_grant: u64,
    budget: u64,
}

impl CreditTerms {
    /// Returns the number of additional bytes that an attempt may receive.
    fn wanted(&self, attempt: &Attempt, buffered: u64) -> u64 {
        let unused = self.window.saturating_sub(attempt.outstanding_bytes() + buffered);
        if unused >= self.min_grant { unused.max(attempt.missing_credit()) } else { attempt.missing_credit() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_small_if_it_holds_fewer_batches_than_workers_can_send() {
        let settings = ClientSettings::default();
        assert_eq!(small_buffer_message(&settings, 24 << 20, 8), None, "192 MiB of 256 MiB hold 8 batches");
        let message = small_buffer_message(&settings, 100 << 20, 4).expect("the buffer holds one batch");
        assert_eq!(
            message,
            "the buffer has room for 1 of the 4 batches of 100 MiB that workers can send at a time: if the consumer waits for batches, \
             set a buffer of 534 MiB"
        );
        let larger = ClientSettings { buffer_bytes: 534 << 20, ..settings };
        assert_eq!(small_buffer_message(&larger, 100 << 20, 4), None, "the advice is enough");
        assert!(small_buffer_message(&larger, u64::MAX, 4).is_some());
    }
}
