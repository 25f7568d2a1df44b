//! The effects of durable, failed and hung writes.

use super::write_queue::PendingWrite;
use super::{MonotonicTime, RaftNode, injected_faults};

/// Number of minimum election timeouts after which a write counts as hung.
const HUNG_WRITE_TIMEOUTS: u64 = 2;

impl RaftNode {
    /// Handles a finished write: all steps up to `number`, if any, are durable.
    pub fn on_written(&mut self, now: MonotonicTime, number: Option<u64>) {
        self.advance_clock(now);
        (self.write_queue.has_failed, self.write_queue.waiting_since) = (false, self.ticks);
        while let Some(step) = self.write_queue.steps.pop_front_if(|step| Some(step.number) <= number) {
            self.on_step_durable(step);
        }
        self.finish_durable_steps();
    }

    /// Handles a failed write. The disk retries a failed write before all later writes.
    pub fn on_write_failed(&mut self, now: MonotonicTime) {
        self.advance_clock(now);
        self.write_queue.has_failed = true;
        self.transfer_if_unfit();
    }

    /// Queues a raft step until its writes are durable.
    pub(super) fn queue_step(&mut self, step: PendingWrite) {
        if self.write_queue.steps.is_empty() {
            self.write_queue.waiting_since = self.ticks;
        }
        self.write_queue.steps.push_back(step);
        self.finish_durable_steps();
    }

    fn finish_durable_steps(&mut self) {
        while let Some(step) = self.write_queue.steps.pop_front_if(|step| !step.must_write) {
            self.on_step_durable(step);
        }
    }

    /// Treats hung writes as durable, if a simulation injects this fault.
    pub(super) fn finish_hung_steps(&mut self) {
        if injected_faults::finishes_hung_writes(&self.settings)
            && self.waiting_ticks() >= self.election_ticks() / 2
        {
            let last = self.write_queue.steps.back().map(|step| step.number);
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

    /// Returns whether a snapshot from another member is being written.
    pub(super) fn is_installing(&self) -> bool {
        self.write_queue.steps.iter().any(|step| step.is_install)
    }

    /// Returns whether a step waits for the disk.
    pub(super) fn is_writing(&self) -> bool {
        !self.write_queue.steps.is_empty()
    }

    /// Returns the number of ticks since the oldest waiting step or the last finished write.
    pub(super) fn waiting_ticks(&self) -> u64 {
        if self.is_writing() { self.ticks - self.write_queue.waiting_since } else { 0 }
    }

    /// Returns whether writes fail or hang.
    pub(super) fn cannot_write(&self) -> bool {
        self.write_queue.has_failed || self.waiting_ticks() >= HUNG_WRITE_TIMEOUTS * self.election_ticks()
    }

    /// Returns the minimum election timeout in ticks.
    pub(super) fn election_ticks(&self) -> u64 {
        u64::from(self.settings.election_ticks)
    }
}
