//! What is being written, what waits for it, and a disk that refuses or does not get done.

use std::collections::VecDeque;

use raft::eraftpb::Message;

use super::{MonotonicTime, RaftNode, planted};

/// A write hangs once the shortest election could have been held so often while it lasted.
const HUNG_ELECTIONS: u64 = 2;

/// What became of a step of raft's, in their order.
pub(super) struct PendingWrite {
    pub(super) number: u64,
    /// Messages that say what must have been written before.
    pub(super) messages: Vec<Message>,
    /// Whether something of it is being written.
    pub(super) waits: bool,
    /// Whether that is a leader's snapshot.
    pub(super) installs: bool,
}

/// What the disk has to do.
#[derive(Default)]
pub(super) struct WriteQueue {
    /// The first one waits, where there is one.
    steps: VecDeque<PendingWrite>,
    /// Tick at which a write was last done, or something began to wait for one.
    since: u64,
    /// Whether the last write was refused. It is tried again.
    has_failed: bool,
}

impl RaftNode {
    /// Something was written. Where that has a number, everything up to it is on disk.
    pub fn on_written(&mut self, now: MonotonicTime, number: Option<u64>) {
        self.pass(now);
        (self.writing.has_failed, self.writing.since) = (false, self.ticks);
        while let Some(step) = self.writing.steps.pop_front_if(|step| Some(step.number) <= number) {
            self.on_step_kept(step);
        }
        self.pass_kept_steps();
    }

    /// A write was refused. It will be tried again, and nothing behind it is written before.
    pub fn on_write_failed(&mut self, now: MonotonicTime) {
        self.pass(now);
        self.writing.has_failed = true;
        self.yield_lead();
    }

    /// What follows from a step of raft's, once it is written.
    pub(super) fn keep_step(&mut self, step: PendingWrite) {
        if self.writing.steps.is_empty() {
            self.writing.since = self.ticks;
        }
        self.writing.steps.push_back(step);
        self.pass_kept_steps();
    }

    fn pass_kept_steps(&mut self) {
        while let Some(step) = self.writing.steps.pop_front_if(|step| !step.waits) {
            self.on_step_kept(step);
        }
    }

    /// Where a test has it so: what waits for longer than a disk takes that only is slow counts as written.
    pub(super) fn pass_hung_steps(&mut self) {
        if planted::passes_hung_writes(&self.settings) && self.waits_ticks() >= self.election_ticks() / 2 {
            let last = self.writing.steps.back().map(|step| step.number);
            self.on_written(self.now, last);
        }
    }

    fn on_step_kept(&mut self, step: PendingWrite) {
        self.out.messages.extend(step.messages);
        self.node.on_persist_ready(step.number);
        self.tell_applied();
    }

    /// Raft wants a snapshot to be written before it counts as applied.
    pub(super) fn tell_applied(&mut self) {
        if !self.installs() {
            self.node.advance_apply_to(self.applied.index);
        }
    }

    /// Whether a snapshot of another member is being written.
    pub(super) fn installs(&self) -> bool {
        self.writing.steps.iter().any(|step| step.installs)
    }

    /// Whether something waits for the disk.
    pub(super) fn is_writing(&self) -> bool {
        !self.writing.steps.is_empty()
    }

    /// Ticks for which something has waited and nothing was written.
    pub(super) fn waits_ticks(&self) -> u64 {
        if self.is_writing() { self.ticks - self.writing.since } else { 0 }
    }

    /// Whether the disk refuses, or hangs.
    pub(super) fn cannot_write(&self) -> bool {
        self.writing.has_failed || self.waits_ticks() >= HUNG_ELECTIONS * self.election_ticks()
    }

    /// Ticks of the shortest election.
    pub(super) fn election_ticks(&self) -> u64 {
        u64::from(self.settings.election_ticks)
    }
}
