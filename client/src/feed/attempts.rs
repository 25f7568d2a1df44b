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
use super::fetch_table::{Attempt, SplitFetch};
use crate::error::ClientError;
use crate::metrics::{FETCH_FAILURES_TOTAL, FETCHES_TOTAL};
use crate::pieces::ReadPiece;

const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(1);
/// A lease takes a moment to reach its worker.
const NOT_HERE_MIN: Duration = Duration::from_millis(20);
const NOT_HERE_MAX: Duration = Duration::from_millis(200);
/// The idle limit doubles at most this often.
const IDLE_DOUBLINGS: u32 = 6;
/// A fetch that has delivered before may be silent this much longer until a second worker is asked.
const HEDGE_LATER: u32 = 5;

/// Time between looks for fetches that are silent.
const LOOK: Duration = Duration::from_millis(20);

/// Which fetches may begin.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Splits that may be fetched now, as far as events have told: whether they still can is checked when they begin.
    pub(super) ready: BTreeSet<SplitRef>,
    /// Splits to fetch again, and when.
    retries: BTreeSet<(Instant, SplitRef)>,
    looked_at: Option<Instant>,
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
        self.note_due(now);
        let mut orders = Vec::new();
        if self.identity.relaxed || self.largest_piece.is_none() {
            for SplitRequest { split, urgent, .. } in self.wanted(self.settings.splits_ahead as usize) {
                orders.extend(self.order(split, urgent, now).ok().flatten());
            }
            return orders;
        }
        if let Some(urgent) = self.urgent_split() {
            orders.extend(self.order(urgent, true, now).ok().flatten());
        }
        while let Some(split) = self.starts.ready.pop_first() {
            match self.order(split, false, now) {
                Ok(order) => orders.extend(order),
                Err(NoCredit) => {
                    self.starts.ready.insert(split);
                    break;
                }
            }
        }
        orders
    }

    /// Begins a fetch of a split if it is wanted and a worker can be asked now.
    fn order(&mut self, split: SplitRef, urgent: bool, now: Instant) -> Result<Option<FetchOrder>, NoCredit> {
        let Some(from) = self.missing_from(split) else { return Ok(None) };
        let Some(worker) = self.choose_worker(split, now) else { return Ok(None) };
        let credit_bytes = self.first_credit(urgent).ok_or(NoCredit)?;
        Ok(Some(self.begin(split, from, worker, credit_bytes, now)))
    }

    /// Notes the splits that can be fetched now because time has passed.
    fn note_due(&mut self, now: Instant) {
        while let Some(&(at, split)) = self.starts.retries.first()
            && at <= now
        {
            self.starts.retries.pop_first();
            self.starts.ready.insert(split);
        }
        if self.starts.looked_at.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK) {
            return;
        }
        self.starts.looked_at = Some(now);
        self.give_up_idle(now);
        let limits = self.hedge_limits();
        let is_silent =
            |fetch: &SplitFetch| matches!(fetch.attempts.as_slice(), [first] if limits.is_silent(first, now));
        let silent = self.fetches.iter().filter(|(_, fetch)| is_silent(fetch));
        self.starts.ready.extend(silent.map(|(split, _)| split));
    }

    fn hedge_limits(&self) -> HedgeLimits {
        HedgeLimits { hedge: Duration::from_millis(self.settings.hedge_ms) }
    }

    /// The worker to ask for a split now: a first one, or a second one when the first is silent.
    pub(super) fn choose_worker(&self, split: SplitRef, now: Instant) -> Option<(WorkerId, String)> {
        let (_, workers) = self.planned.get(&split)?;
        let Some(fetch) = self.fetches.get(split) else { return workers.first().cloned() };
        if fetch.failed.is_some() || now < fetch.retry_at {
            return None;
        }
        match fetch.attempts.as_slice() {
            [] => {
                let fresh = workers.iter().find(|(worker, _)| !fetch.avoid.contains(worker));
                fresh.or_else(|| workers.first()).cloned()
            }
            [first] => {
                if !self.hedge_limits().is_silent(first, now) {
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
        let attempt = Attempt::new(id, worker, sender, now);
        self.fetches.begin(split, attempt, || SplitFetch::new(now, BACKOFF_MIN));
        counter!(FETCHES_TOTAL).increment(1);
        FetchOrder { split, attempt: id, from, address, credit_bytes, credit, ticket: self.ticket.clone() }
    }

    /// Ties a fetch to its task: the task ends with the fetch.
    pub(crate) fn attach(&mut self, split: SplitRef, attempt: u64, task: AbortOnDropHandle<()>) {
        self.fetches.update_attempt(split, attempt, |found| found.task = Some(task));
    }

    fn give_up_idle(&mut self, now: Instant) {
        let limit = Duration::from_millis(self.settings.fetch_idle_ms);
        // One that says that it goes on is waited for, but not for ever.
        let longest = limit * 2u32.pow(IDLE_DOUBLINGS);
        let mut silent = Vec::new();
        for (split, fetch) in self.fetches.iter() {
            let limit = limit * 2u32.pow(fetch.idle.min(IDLE_DOUBLINGS));
            let idle = |attempt: &&Attempt| {
                let is_silent = now - attempt.heard_at >= limit;
                attempt.can_send() && (is_silent || now - attempt.moved_at >= longest)
            };
            if let Some(attempt) = fetch.attempts.iter().find(idle) {
                silent.push((split, attempt.id, now - attempt.moved_at));
            }
        }
        for (split, attempt, waited) in silent {
            self.fetches.update(split, |fetch| fetch.idle += 1);
            let why = format!("nothing came for {:.1} s", waited.as_secs_f32());
            self.on_outcome(split, attempt, FetchOutcome::Broken(why), now);
        }
    }

    /// Nothing is ready, and the worker goes on.
    pub(crate) fn on_working(&mut self, split: SplitRef, attempt: u64, now: Instant) {
        self.fetches.update_attempt(split, attempt, |found| found.heard_at = now);
    }

    /// A piece of `bytes` begins.
    pub(crate) fn on_piece_opened(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        self.largest_piece = self.largest_piece.max(Some(bytes));
        self.fetches.update_attempt(split, attempt, |found| {
            (found.heard_at, found.moved_at) = (now, now);
            found.piece_left = bytes;
            found.largest = found.largest.max(bytes);
        });
        self.hungry.insert(split);
        self.top_up(now);
    }

    /// Bytes of a piece came.
    pub(crate) fn on_bytes(&mut self, split: SplitRef, attempt: u64, bytes: u64, now: Instant) {
        self.fetches.update_attempt(split, attempt, |found| {
            (found.heard_at, found.moved_at) = (now, now);
            found.received += bytes;
            found.piece_left = found.piece_left.saturating_sub(bytes);
        });
    }

    /// A piece is complete.
    pub(crate) fn on_piece(&mut self, split: SplitRef, attempt: u64, piece: ReadPiece, now: Instant) {
        if !self.fetches.update(split, |fetch| keep_winner(fetch, attempt, now)).unwrap_or(false) {
            return;
        }
        self.largest_piece = self.largest_piece.max(Some(piece.payload.bytes));
        let ReadPiece { from, to, kept, payload } = piece;
        let schema = payload.records.schema();
        if !self.schema_goes_with(&schema) {
            let what = "its columns differ from those of earlier rows".to_owned();
            return self.on_outcome(split, attempt, FetchOutcome::Damaged(what), now);
        }
        let bytes = payload.bytes;
        let (Some(place), Some(layout)) = (self.lanes.place_of(split.stream), &self.layout) else { return };
        let wanted = self.planned.get(&split).map_or(from, |(wanted, _)| *wanted);
        let relaxed = self.identity.relaxed;
        let is_taken = self.lanes.update(place, layout, |lane| {
            if relaxed && lane.assembler.arrived(split).is_none() {
                lane.assembler.expect(split, wanted, false);
            }
            lane.assembler.push(Piece { split, from, to, kept, payload })
        });
        if is_taken {
            self.add_buffered(split, bytes);
        }
        self.hungry.insert(split);
        self.extend_lane(place);
        self.end_exhausted();
        self.top_up(now);
    }

    fn schema_goes_with(&mut self, schema: &SchemaRef) -> bool {
        self.schema.get_or_insert_with(|| SchemaRef::clone(schema)) == schema
    }

    /// A fetch ended.
    pub(crate) fn on_outcome(&mut self, split: SplitRef, attempt: u64, outcome: FetchOutcome, now: Instant) {
        let lane = self.lanes.of_stream(split.stream);
        let complete = lane
            .is_none_or(|lane| lane.assembler.arrived(split).is_some() && lane.assembler.is_complete(split));
        let take = |fetch: &mut SplitFetch| {
            let place = fetch.attempts.iter().position(|present| present.id == attempt)?;
            Some(fetch.attempts.swap_remove(place))
        };
        let Some(ended) = self.fetches.update(split, take).flatten() else { return };
        if complete || matches!(outcome, FetchOutcome::Failed(_)) {
            self.fetches.update(split, |fetch| fetch.attempts.clear());
        }
        if complete {
            return;
        }
        let idle_limit = Duration::from_millis(self.settings.fetch_idle_ms);
        let verdict =
            self.fetches.update(split, |fetch| judge(fetch, split, ended.worker, outcome, idle_limit, now));
        match verdict {
            None | Some(Verdict::Settled) => {}
            Some(Verdict::Fatal(error)) => self.set_fatal(error),
            Some(Verdict::Again(at)) => {
                self.starts.retries.insert((at, split));
            }
            Some(Verdict::Broken(at)) => {
                counter!(FETCH_FAILURES_TOTAL).increment(1);
                self.starts.retries.insert((at, split));
                self.reports.on_unreachable(split, ended.worker);
            }
        }
    }
}

/// There is no room for a fetch's first credit.
struct NoCredit;

/// When a second worker is asked for a split.
struct HedgeLimits {
    hedge: Duration,
}

impl HedgeLimits {
    fn is_silent(&self, first: &Attempt, now: Instant) -> bool {
        let limit = if first.delivered { self.hedge * HEDGE_LATER } else { self.hedge };
        first.can_send() && now - first.moved_at >= limit
    }
}

/// The first attempt to deliver wins; the others end. Whether the attempt is present.
fn keep_winner(fetch: &mut SplitFetch, attempt: u64, now: Instant) -> bool {
    if fetch.attempts.iter().all(|present| present.id != attempt) {
        return false;
    }
    fetch.attempts.retain(|present| present.id == attempt);
    for winner in &mut fetch.attempts {
        winner.delivered = true;
        (winner.heard_at, winner.moved_at) = (now, now);
    }
    fetch.forget_failures(BACKOFF_MIN);
    true
}

/// What the end of a fetch means for its split.
enum Verdict {
    /// Nothing follows from it.
    Settled,
    /// The consumer can get nothing more.
    Fatal(ClientError),
    /// The worker is asked again at this time.
    Again(Instant),
    /// The worker cannot be reached; the split is fetched again at this time.
    Broken(Instant),
}

fn judge(
    fetch: &mut SplitFetch,
    split: SplitRef,
    worker: WorkerId,
    outcome: FetchOutcome,
    idle_limit: Duration,
    now: Instant,
) -> Verdict {
    match outcome {
        FetchOutcome::Failed(message) => {
            fetch.failed = Some(message);
            return Verdict::Settled;
        }
        FetchOutcome::Refused(message) => return Verdict::Fatal(ClientError::Refused(message)),
        FetchOutcome::NotHere => {
            // Another holder, if there is one, is asked next.
            fetch.avoid.insert(worker);
            let waited = now - *fetch.not_here_since.get_or_insert(now);
            if waited < idle_limit {
                fetch.retry_at = now + waited.clamp(NOT_HERE_MIN, NOT_HERE_MAX);
                return Verdict::Again(fetch.retry_at);
            }
            fetch.not_here_since = None;
        }
        FetchOutcome::Busy(pause, message) => {
            // It holds the split all the same: that others compute it again is the last resort.
            let since = *fetch.busy_since.get_or_insert(now);
            if now - since < idle_limit {
                fetch.retry_at = now + pause;
                return Verdict::Again(fetch.retry_at);
            }
            fetch.busy_since = None;
            tracing::info!(?split, %worker, message, "a worker had no room for a fetch");
        }
        FetchOutcome::Damaged(message) => {
            if fetch.is_damaged(split, worker, &message) {
                return Verdict::Fatal(damaged(split, message));
            }
        }
        FetchOutcome::End => {
            let message = "it ended before the split's last row".to_owned();
            if fetch.is_damaged(split, worker, &message) {
                return Verdict::Fatal(damaged(split, message));
            }
        }
        FetchOutcome::Broken(message) => tracing::info!(?split, %worker, message, "a fetch broke off"),
    }
    fetch.avoid.insert(worker);
    fetch.retry_at = now + fetch.backoff;
    fetch.backoff = (fetch.backoff * 2).min(BACKOFF_MAX);
    Verdict::Broken(fetch.retry_at)
}

fn damaged(split: SplitRef, message: String) -> ClientError {
    let split = format!("{} of epoch {}, stream {}", split.ordinal, split.epoch, split.stream);
    ClientError::Damaged { split, message }
}
