//! Starts, hedges and aborts fetches, and handles their outcomes.

use std::collections::BTreeSet;

use feedline_common::mismatch_timer::Rejection;
use feedline_data::ids::WorkerId;
use feedline_data::layout::SplitRef;
use feedline_data::messages::WorkerAddress;
use metrics::counter;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::task::AbortOnDropHandle;

use super::ConsumerState;
use super::fetch_order::FetchCommand;
use super::fetch_outcome::{FetchDecision, FetchOutcome};
use super::fetch_table::{Attempt, SplitFetch};
use crate::error::ClientError;
use crate::metrics::{FETCH_FAILURES_TOTAL, FETCHES_TOTAL};

/// Maximum number of times that the idle limit of a split is doubled. The limit doubles with each aborted fetch, so that rows that
/// take long to compute arrive eventually.
const MAX_IDLE_DOUBLINGS: u32 = 6;
/// Factor for [`hedge_ms`](crate::ClientSettings::hedge_ms) if the fetch has already delivered a piece.
const HEDGE_FACTOR: u32 = 5;
/// Maximum number of splits of one stream that are fetched concurrently.
const MAX_SPLITS_AHEAD: u32 = 128;
/// Number of splits in flight per worker: the split that is being received, and the next split.
const SPLITS_PER_WORKER: u32 = 2;

/// The error if the budget is too small for the initial credit of a fetch.
struct BudgetExhausted;

impl ConsumerState {
    /// Raises the number of splits that each stream fetches concurrently, so that the consumer receives from all workers that compute
    /// its splits. Returns whether the number has changed.
    pub(super) fn raise_splits_ahead(&mut self) -> bool {
        let holders = self.planned.values().filter_map(|planned| planned.workers.first());
        let workers: BTreeSet<WorkerId> = holders.map(|(worker, _)| *worker).collect();
        let wanted = SPLITS_PER_WORKER * workers.len() as u32;
        // Consumers of a relaxed job share its splits, so one consumer must not fetch all of them.
        let shares = if self.identity.is_relaxed { self.consumers } else { self.streams.len() as u32 };
        let per_stream = wanted.div_ceil(shares.max(1)).min(MAX_SPLITS_AHEAD);
        let is_raised = per_stream > self.splits_ahead;
        self.splits_ahead = self.splits_ahead.max(per_stream);
        is_raised
    }

    /// Returns the fetches to start now, and aborts fetches that make no progress.
    pub(crate) fn take_fetch_commands(&mut self, now: Instant) -> Vec<FetchCommand> {
        if self.fatal_error.is_some() || self.job_state.is_ended() {
            return Vec::new();
        }
        self.queue_due_splits(now);
        let mut commands = Vec::new();
        if let Some(urgent) = self.urgent_split() {
            commands.extend(self.request_fetch(urgent, true, now).ok().flatten());
        }
        if self.largest_piece.is_none() {
            // Until the size of pieces is known, fetch only for the stream of the next batch, to stay within the budget.
            for split in self.first_missing_splits() {
                commands.extend(self.request_fetch(split, false, now).ok().flatten());
            }
            return commands;
        }
        while let Some(first) = self.start_queue.pop_first() {
            self.grant_before(Some(first), now);
            let (position, split) = first;
            match self.request_fetch(split, false, now) {
                Ok(command) => commands.extend(command),
                Err(BudgetExhausted) => {
                    self.start_queue.insert(position, split);
                    return commands;
                }
            }
        }
        self.grant_before(None, now);
        commands
    }

    /// Creates a fetch of a split, if the consumer needs the split and a worker is available.
    fn request_fetch(
        &mut self,
        split: SplitRef,
        is_urgent: bool,
        now: Instant,
    ) -> Result<Option<FetchCommand>, BudgetExhausted> {
        let Some(from) = self.missing_offset(split) else { return Ok(None) };
        let Some(worker) = self.choose_worker(split, now) else { return Ok(None) };
        let credit_bytes = self.first_credit(is_urgent).ok_or(BudgetExhausted)?;
        Ok(Some(self.start_fetch(split, from, worker, credit_bytes, now)))
    }

    /// Queues the splits that can be fetched because time has passed.
    fn queue_due_splits(&mut self, now: Instant) {
        for split in self.retries.take_due(now) {
            self.queue_for_start(split);
        }
        if !self.retries.is_check_due(now) {
            return;
        }
        self.abort_idle(now);
        let is_silent =
            |fetch: &SplitFetch| matches!(fetch.attempts.as_slice(), [only] if self.is_silent(only, now));
        let silent = self.fetches.iter().filter(|(_, fetch)| is_silent(fetch));
        for split in silent.map(|(split, _)| split).collect::<Vec<_>>() {
            self.queue_for_start(split);
        }
    }

    /// Whether an attempt makes no progress although it has credit. The split is then also fetched from a second worker.
    fn is_silent(&self, attempt: &Attempt, now: Instant) -> bool {
        let hedge = Duration::from_millis(self.settings.hedge_ms);
        let limit = if attempt.has_delivered { hedge * HEDGE_FACTOR } else { hedge };
        attempt.can_send() && now - attempt.last_progress_at >= limit
    }

    /// Selects the worker to fetch a split from. If the only attempt makes no progress, selects a second worker.
    pub(super) fn choose_worker(&self, split: SplitRef, now: Instant) -> Option<(WorkerId, WorkerAddress)> {
        let workers = &self.planned.get(&split)?.workers;
        let Some(fetch) = self.fetches.get(split) else { return workers.first().cloned() };
        if fetch.row_error.is_some() || now < fetch.retry_at {
            return None;
        }
        match fetch.attempts.as_slice() {
            [] => {
                let untried = workers.iter().find(|(worker, _)| !fetch.failed_workers.contains(worker));
                untried.or_else(|| workers.first()).cloned()
            }
            [only] if self.is_silent(only, now) => {
                let is_other =
                    |worker: &WorkerId| *worker != only.worker && !fetch.failed_workers.contains(worker);
                workers.iter().find(|(worker, _)| is_other(worker)).cloned()
            }
            _ => None,
        }
    }

    fn start_fetch(
        &mut self,
        split: SplitRef,
        from: u32,
        (worker, address): (WorkerId, WorkerAddress),
        credit_bytes: u64,
        now: Instant,
    ) -> FetchCommand {
        let (sender, credit) = watch::channel(credit_bytes);
        let id = self.next_attempt;
        self.next_attempt += 1;
        let attempt = Attempt::new(id, worker, sender, now);
        self.fetches.add_attempt(split, attempt, || SplitFetch::new(now));
        counter!(FETCHES_TOTAL).increment(1);
        FetchCommand { split, attempt: id, from, address, credit_bytes, credit, ticket: self.ticket.clone() }
    }

    /// Stores the task of a fetch. The task is aborted when the fetch ends.
    pub(crate) fn set_task(&mut self, split: SplitRef, attempt: u64, task: AbortOnDropHandle<()>) {
        self.fetches.update_attempt(split, attempt, |attempt| attempt.task = Some(task));
    }

    /// Aborts attempts that have credit, but have not received a frame within the idle limit, or a piece within a longer limit.
    fn abort_idle(&mut self, now: Instant) {
        let limit = Duration::from_millis(self.settings.fetch_idle_ms);
        let progress_limit = limit * 2u32.pow(MAX_IDLE_DOUBLINGS);
        let mut idle = Vec::new();
        for (split, fetch) in self.fetches.iter() {
            let frame_limit = limit * 2u32.pow(fetch.idle_attempts.min(MAX_IDLE_DOUBLINGS));
            let is_idle = |attempt: &&Attempt| {
                let is_silent = now - attempt.last_frame_at >= frame_limit;
                attempt.can_send() && (is_silent || now - attempt.last_progress_at >= progress_limit)
            };
            if let Some(attempt) = fetch.attempts.iter().find(is_idle) {
                idle.push((split, attempt.id, now - attempt.last_progress_at));
            }
        }
        for (split, attempt, waited) in idle {
            self.fetches.update(split, |fetch| fetch.idle_attempts += 1);
            let reason = format!("the worker has sent no piece for {:.1} s", waited.as_secs_f32());
            self.on_outcome(split, attempt, FetchOutcome::Disconnected(reason), now);
        }
    }

    /// Records that a fetch has ended.
    pub(crate) fn on_outcome(&mut self, split: SplitRef, attempt: u64, outcome: FetchOutcome, now: Instant) {
        let stream = self.streams.get_by_id(split.stream);
        let is_complete = stream.is_none_or(|stream| {
            stream.assembler.next_arrival_offset(split).is_some() && stream.assembler.is_complete(split)
        });
        let Some(ended) = self.fetches.remove_attempt(split, attempt) else { return };
        if is_complete || matches!(outcome, FetchOutcome::RowFailed(_)) {
            self.fetches.update(split, |fetch| fetch.attempts.clear());
        }
        if is_complete {
            return;
        }
        if let FetchOutcome::VersionMismatch(message) = &outcome {
            let Rejection { lasted, is_warning_due } = self.worker_mismatch.record(now.into_std());
            if is_warning_due {
                tracing::warn!("{message}; retrying");
            }
            if lasted >= Duration::from_millis(self.settings.upgrade_ms) {
                let (seconds, message) = (lasted.as_secs(), message.clone());
                return self.fail(ClientError::VersionMismatch { seconds, message });
            }
        }
        let idle_limit = Duration::from_millis(self.settings.fetch_idle_ms);
        let decide = |fetch: &mut SplitFetch| fetch.on_outcome(split, ended.worker, outcome, idle_limit, now);
        match self.fetches.update(split, decide) {
            None | Some(FetchDecision::Ignore) => {}
            Some(FetchDecision::Fail(error)) => self.fail(error),
            Some(FetchDecision::Retry(time)) => self.retries.insert(time, split),
            Some(FetchDecision::ReportAndRetry(time)) => {
                counter!(FETCH_FAILURES_TOTAL).increment(1);
                self.retries.insert(time, split);
                self.reports.on_unreachable(split, ended.worker);
            }
        }
    }
}
