//! Fetches: which to begin, when to try a second worker, and what their ends mean.

use std::collections::BTreeSet;

use arrow::datatypes::SchemaRef;
use feedline_data::consumer::Piece;
use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use metrics::counter;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use super::Feed;
use super::credit::SplitRequest;
use crate::error::ClientError;
use crate::metrics::{FETCH_FAILURES_TOTAL, FETCHES_TOTAL};
use crate::pieces::ReadPiece;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A lease takes a moment to reach its worker.
const NOT_HERE_MIN: Duration = Duration::from_millis(20);
const NOT_HERE_MAX: Duration = Duration::from_millis(200);
/// A split that is damaged this many times is damaged.
const DAMAGED_TRIES: u32 = 3;
/// The idle limit doubles at most this often.
const IDLE_DOUBLINGS: u32 = 6;
/// A fetch that has delivered before may be silent this much longer until a second worker is asked.
const HEDGE_LATER: u32 = 5;

/// The fetches of one split.
#[derive(Debug)]
pub(super) struct SplitFetch {
    pub(super) attempts: Vec<Attempt>,
    pub(super) buffered_bytes: u64,
    /// A row failed: one sentence.
    pub(super) failed: Option<String>,
    /// Workers at which it broke since one delivered.
    avoid: BTreeSet<WorkerId>,
    retry_at: Instant,
    backoff: Duration,
    not_here_since: Option<Instant>,
    busy_since: Option<Instant>,
    damaged: u32,
    idle: u32,
}

impl SplitFetch {
    /// Notes that a worker sent what cannot be read; whether that happened too often to try again.
    fn is_damaged(&mut self, split: SplitRef, worker: WorkerId, message: &str) -> bool {
        self.damaged += 1;
        tracing::warn!(?split, %worker, message, "a fetch sent what cannot be read");
        self.damaged >= DAMAGED_TRIES
    }
}

/// One fetch.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) id: u64,
    worker: WorkerId,
    pub(super) credit: watch::Sender<u64>,
    /// Bytes of credit given in all.
    pub(super) granted: u64,
    /// Bytes received in all.
    pub(super) received: u64,
    /// Bytes missing of the piece that has begun.
    pub(super) piece_left: u64,
    /// Size of the largest piece so far.
    pub(super) largest: u64,
    delivered: bool,
    /// When it last sent something, or could send again.
    pub(super) heard_at: Instant,
    /// When it last sent something of a piece, or could again.
    pub(super) moved_at: Instant,
    _task: Option<AbortOnDropHandle<()>>,
}

impl Attempt {
    /// Bytes that may come.
    pub(super) fn outstanding(&self) -> u64 {
        self.granted.saturating_sub(self.received)
    }

    /// Whether the worker has credit for what comes next.
    pub(super) fn can_send(&self) -> bool {
        let next = if self.piece_left > 0 { self.piece_left } else { self.largest };
        self.outstanding() >= next.max(1)
    }
}

/// A fetch to begin.
#[derive(Debug)]
pub(crate) struct FetchOrder {
    pub(crate) split: SplitRef,
    pub(crate) attempt: u64,
    pub(crate) from: u32,
    pub(crate) address: String,
    pub(crate) credit_bytes: u64,
    pub(crate) credit: watch::Receiver<u64>,
    /// Shown to the worker.
    pub(crate) ticket: String,
}

/// How a fetch ended.
#[derive(Debug)]
pub(crate) enum FetchOutcome {
    /// The split is complete.
    End,
    /// A row failed: one sentence.
    Failed(String),
    /// The worker does not hold the split, or not yet.
    NotHere,
    /// The worker has no room for it: ask again after so long; why.
    Busy(Duration, String),
    /// The worker could not be reached, or broke off: why.
    Broken(String),
    /// It sent what cannot be read: one clause.
    Damaged(String),
    /// It will never answer this: one sentence.
    Refused(String),
}

impl Feed {
    /// Fetches to begin now. Gives up those that have been silent for too long.
    pub(crate) fn orders(&mut self, now: Instant) -> Vec<FetchOrder> {
        if self.fatal.is_some() || self.state.is_ended() {
            return Vec::new();
        }
        self.give_up_idle(now);
        let mut orders = Vec::new();
        for SplitRequest { split, from, urgent } in self.wanted(self.settings.splits_ahead as usize) {
            if let Some(worker) = self.choose_worker(split, now)
                && let Some(credit_bytes) = self.first_credit(urgent)
            {
                orders.push(self.begin(split, from, worker, credit_bytes, now));
            }
        }
        orders
    }

    /// The worker to ask for a split now: a first one, or a second one when the first is silent.
    fn choose_worker(&self, split: SplitRef, now: Instant) -> Option<(WorkerId, String)> {
        let (_, workers) = self.planned.get(&split)?;
        let Some(fetch) = self.splits.get(&split) else { return workers.first().cloned() };
        if fetch.failed.is_some() || now < fetch.retry_at {
            return None;
        }
        match fetch.attempts.as_slice() {
            [] => {
                let fresh = workers.iter().find(|(worker, _)| !fetch.avoid.contains(worker));
                fresh.or_else(|| workers.first()).cloned()
            }
            [first] => {
                let hedge = Duration::from_millis(self.settings.hedge_ms);
                let limit = if first.delivered { hedge * HEDGE_LATER } else { hedge };
                if !first.can_send() || now - first.moved_at < limit {
                    return None;
                }
                let other = |worker: &WorkerId| *worker != first.worker && !fetch.avoid.contains(worker);
                workers.iter().find(|(worker, _)| other(worker)).cloned()
            }
            _ => None,
        }
    }

    fn begin(
        &mut self,
        split: SplitRef,
        from: u32,
        (worker, address): (WorkerId, String),
        credit_bytes: u64,
        now: Instant,
    ) -> FetchOrder {
        let (sender, credit) = watch::channel(credit_bytes);
        let id = self.next_attempt;
        self.next_attempt += 1;
        let fetch = self.splits.entry(split).or_insert_with(|| SplitFetch {
            attempts: Vec::new(),
            buffered_bytes: 0,
            failed: None,
            avoid: BTreeSet::new(),
            retry_at: now,
            backoff: BACKOFF_MIN,
            not_here_since: None,
            busy_since: None,
            damaged: 0,
            idle: 0,
        });
        fetch.attempts.push(Attempt {
            id,
            worker,
            credit: sender,
            granted: credit_bytes,
            received: 0,
            piece_left: 0,
            largest: 0,
            delivered: false,
            heard_at: now,
            moved_at: now,
            _task: None,
        });
        counter!(FETCHES_TOTAL).increment(1);
        FetchOrder { split, attempt: id, from, address, credit_bytes, credit, ticket: self.ticket.clone() }
    }

    /// Ties a fetch to its task: the task ends with the fetch.
    pub(crate) fn attach(&mut self, split: SplitRef, attempt: u64, task: AbortOnDropHandle<()>) {
        if let Some(found) = self.attempt(split, attempt) {
            found._task = Some(task);
        }
    }

    pub(super) fn attempt(&mut self, split: SplitRef, attempt: u64) -> Option<&mut Attempt> {
        self.splits.get_mut(&split)?.attempts.iter_mut().find(|present| present.id == attempt)
    }

    fn give_up_idle(&mut self, now: Instant) {
        let limit = Duration::from_millis(self.settings.fetch_idle_ms);
        // One that says that it goes on is waited for, but not for ever.
        let longest = limit * 2u32.pow(IDLE_DOUBLINGS);
        let mut silent = Vec::new();
        for (split, fetch) in &mut self.splits {
            let limit = limit * 2u32.pow(fetch.idle.min(IDLE_DOUBLINGS));
            let idle = |attempt: &&Attempt| {
                let is_silent = now - attempt.heard_at >= limit;
                attempt.can_send() && (is_silent || now - attempt.moved_at >= longest)
            };
            if let Some(attempt) = fetch.attempts.iter().find(idle) {
                fetch.idle += 1;
                silent.push((*split, attempt.id, now - attempt.moved_at));
            }
        }
        for (split, attempt, waited) in silent {
            let why = format!("nothing came for {:.1} s", waited.as_secs_f32());
            self.on_outcome(split, attempt, FetchOutcome::Broken(why), now);
        }
    }

    /// Nothing is ready, and the worker goes on.
    pub(crate) fn on_working(&mut self, split: SplitRef, attempt: u64, now: Instant) {
        if let Some(found) = self.attempt(split, attempt) {
            found.heard_at = now;
        }
    }

    /// A piece of `bytes` begins.
    pub(crate) fn on_piece_opened(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        self.largest_piece = self.largest_piece.max(Some(bytes));
        if let Some(found) = self.attempt(split, attempt) {
            (found.heard_at, found.moved_at) = (now, now);
            found.piece_left = bytes;
            found.largest = found.largest.max(bytes);
        }
        self.top_up(now);
    }

    /// Bytes of a piece came.
    pub(crate) fn on_bytes(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        if let Some(found) = self.attempt(split, attempt) {
            (found.heard_at, found.moved_at) = (now, now);
            found.received += bytes;
            found.piece_left = found.piece_left.saturating_sub(bytes);
        }
    }

    /// A piece is complete.
    pub(crate) fn on_piece(&mut self, split: SplitRef, attempt: u64, piece: ReadPiece, now: Instant) {
        let Some(fetch) = self.splits.get_mut(&split) else { return };
        if fetch.attempts.iter().all(|present| present.id != attempt) {
            return;
        }
        self.largest_piece = self.largest_piece.max(Some(piece.payload.bytes));
        // The first to deliver wins; the others end.
        fetch.attempts.retain(|present| present.id == attempt);
        for winner in &mut fetch.attempts {
            winner.delivered = true;
            (winner.heard_at, winner.moved_at) = (now, now);
        }
        fetch.avoid.clear();
        fetch.backoff = BACKOFF_MIN;
        fetch.not_here_since = None;
        fetch.busy_since = None;
        fetch.damaged = 0;
        let ReadPiece { from, to, kept, payload } = piece;
        let schema = payload.records.schema();
        if !self.schema_goes_with(&schema) {
            let what = "its columns differ from those of earlier rows".to_owned();
            return self.on_outcome(split, attempt, FetchOutcome::Damaged(what), now);
        }
        let bytes = payload.bytes;
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.stream == split.stream) else { return };
        if self.identity.relaxed && lane.assembler.arrived(split).is_none() {
            let wanted = self.planned.get(&split).map_or(from, |(wanted, _)| *wanted);
            lane.assembler.expect(split, wanted, false);
        }
        if lane.assembler.push(Piece { split, from, to, kept, payload }) {
            self.add_buffered(split, bytes);
        }
        self.extend_lanes();
        self.top_up(now);
    }

    fn schema_goes_with(&mut self, schema: &SchemaRef) -> bool {
        self.schema.get_or_insert_with(|| SchemaRef::clone(schema)) == schema
    }

    /// A fetch ended.
    pub(crate) fn on_outcome(&mut self, split: SplitRef, attempt: u64, outcome: FetchOutcome, now: Instant) {
        let complete = self
            .lanes
            .iter()
            .filter(|lane| lane.stream == split.stream)
            .all(|lane| lane.assembler.arrived(split).is_some() && lane.assembler.is_complete(split));
        let Some(fetch) = self.splits.get_mut(&split) else { return };
        let Some(place) = fetch.attempts.iter().position(|present| present.id == attempt) else { return };
        let ended = fetch.attempts.swap_remove(place);
        match outcome {
            _ if complete => {
                fetch.attempts.clear();
                return;
            }
            FetchOutcome::Failed(message) => {
                fetch.attempts.clear();
                fetch.failed = Some(message);
                return;
            }
            FetchOutcome::Refused(message) => return self.set_fatal(ClientError::Refused(message)),
            FetchOutcome::NotHere => {
                // Another holder, if there is one, is asked next.
                fetch.avoid.insert(ended.worker);
                let since = *fetch.not_here_since.get_or_insert(now);
                let waited = now - since;
                if waited < Duration::from_millis(self.settings.fetch_idle_ms) {
                    fetch.retry_at = now + waited.clamp(NOT_HERE_MIN, NOT_HERE_MAX);
                    return;
                }
                fetch.not_here_since = None;
            }
            FetchOutcome::Busy(pause, message) => {
                // It holds the split all the same: that others compute it again is the last resort.
                let since = *fetch.busy_since.get_or_insert(now);
                if now - since < Duration::from_millis(self.settings.fetch_idle_ms) {
                    fetch.retry_at = now + pause;
                    return;
                }
                fetch.busy_since = None;
                tracing::info!(?split, worker = %ended.worker, message, "a worker had no room for a fetch");
            }
            FetchOutcome::Damaged(message) => {
                if fetch.is_damaged(split, ended.worker, &message) {
                    return self.set_fatal(damaged(split, message));
                }
            }
            FetchOutcome::End => {
                let message = "it ended before the split's last row".to_owned();
                if fetch.is_damaged(split, ended.worker, &message) {
                    return self.set_fatal(damaged(split, message));
                }
            }
            FetchOutcome::Broken(message) => {
                tracing::info!(?split, worker = %ended.worker, message, "a fetch broke off")
            }
        }
        counter!(FETCH_FAILURES_TOTAL).increment(1);
        fetch.avoid.insert(ended.worker);
        fetch.retry_at = now + fetch.backoff;
        fetch.backoff = (fetch.backoff * 2).min(BACKOFF_MAX);
        self.reports.on_unreachable(split, ended.worker);
    }
}

fn damaged(split: SplitRef, message: String) -> ClientError {
    let split = format!("{} of epoch {}, stream {}", split.ordinal, split.epoch, split.stream);
    ClientError::Damaged { split, message }
}
