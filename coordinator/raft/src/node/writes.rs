//! What follows when a write is durable, fails or hangs.

use super::write_queue::PendingWrite;
use super::{MonotonicTime, RaftNode, planted};

/// A write hangs after this many of the shortest election timeouts.
const HUNG_ELECTIONS: u64 = 2;

impl RaftNode {
    /// A write has finished: all steps up to `number`, if any, are durable.
    pub fn on_written(&mut self, now: MonotonicTime, number: Option<u64>) {
        self.advance_clock(now);
        (self.writing.has_failed, self.writing.since) = (false, self.ticks);
        while let Some(step) = self.writing.steps.pop_front_if(|step| Some(step.number) <= number) {
            self.on_step_durable(step);
        }
        self.finish_durable_steps();
    }

    /// A write has failed. The disk retries it before all later writes.
    pub fn on_write_failed(&mut self, now: MonotonicTime) {
        self.advance_clock(now);
        self.writing.has_failed = true;
        self.transfer_if_unfit();
    }

    /// Queues a raft step until its writes are durable.
    pub(super) fn queue_step(&mut self, step: PendingWrite) {
        if self.writing.steps.is_empty() {
            self.writing.since = self.ticks;
        }
        self.writing.steps.push_back(step);
        self.finish_durable_steps();
    }

    fn finish_durable_steps(&mut self) {
        while let Some(step) = self.writing.steps.pop_front_if(|step| !step.must_write) {
            self.on_step_durable(step);
        }
    }

    /// Finishes hung writes as if they were durable, if a simulation plants this bug.
    pub(super) fn finish_hung_steps(&mut self) {
        if planted::finishes_hung_writes(&self.settings) && self.waiting_ticks() >= self.election_ticks() / 2
        {
            let last = self.writing.steps.back().map(|step| step.number);
            self.on_written(self.now, last);
        }
    }

    fn on_step_durable(&mut self, step: PendingWrite) {
        self.effects.messages.extend(step.messages);
        self.node.on_persist_ready(step.number);
        self.report_applied();
    }

    /// Reports the applied index to raft, unless a snapshot is not durable yet.
    pub(super) fn report_applied(&mut self) {
        if !self.is_installing() {
            self.node.advance_apply_to(self.applied.index);
        }
    }

    /// Whether a snapshot of another member is being written.
    pub(super) fn is_installing(&self) -> bool {
        self.writing.steps.iter().any(|step| step.installs)
    }

    /// Whether a step waits for the disk.
    pub(super) fn is_writing(&self) -> bool {
        !self.writing.steps.is_empty()
    }

    /// Ticks since the oldest waiting step, or the last finished write.
    pub(super) fn waiting_ticks(&self) -> u64 {
        if self.is_writing() { self.ticks - self.writing.since } else { 0 }
    }

    /// Whether writes fail or hang.
    pub(super) fn cannot_write(&self) -> bool {
        self.writing.has_failed || self.waiting_ticks() >= HUNG_ELECTIONS * self.election_ticks()
    }

    /// The shortest election timeout in ticks.
    pub(super) fn election_ticks(&self) -> u64 {
        u64::from(self.settings.election_ticks)
    }
}
