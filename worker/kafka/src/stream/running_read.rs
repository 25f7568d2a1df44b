//! The state of one read of a partition: what it has received, and how long it has waited.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::connection::Connection;
use crate::error::KafkaError;
use crate::memory::BlockMemory;
use crate::probe::Probes;
use crate::records::{MissingRecords, RecordBlock};
use crate::request::{GapPolicy, ReadRequest};

/// Interval in which a read that receives nothing checks whether the topic still exists.
const STALL_CHECK: Duration = Duration::from_secs(2);

/// One read.
pub(super) struct RunningRead<'a> {
    pub(super) client: &'a Connection,
    pub(super) request: &'a ReadRequest,
    pub(super) is_cancelled: &'a dyn Fn() -> bool,
    pub(super) block: RecordBlock,
    /// The memory of the block.
    pub(super) memory: BlockMemory,
    /// When the read began to wait for the brokers.
    pub(super) started: Instant,
    /// When the last record arrived, or the read began.
    pub(super) progress: Instant,
    stall_checked: Instant,
    /// How long the read waits for brokers that do not answer. The caller then reads again, for as long as it may.
    pub(super) patience: Duration,
    /// Whether the patience was exhausted.
    pub(super) is_silent: bool,
    probes: Probes,
    /// Since when the partition ends before the range.
    pub(super) short_since: Option<Instant>,
    pub(super) last_event: Option<String>,
}

impl<'a> RunningRead<'a> {
    /// Begins a read. `silent_reads` is the number of consecutive reads of the partition for which the patience was too short.
    pub(super) fn new(
        client: &'a Connection,
        request: &'a ReadRequest,
        is_cancelled: &'a dyn Fn() -> bool,
        memory: BlockMemory,
        silent_reads: u32,
    ) -> Self {
        let rows = request.offsets.end.saturating_sub(request.offsets.start).min(4096) as usize;
        // Half of the blocks are a little larger than expected. Growing would copy them.
        let bytes = request.expected_bytes + request.expected_bytes / 16;
        let now = Instant::now();
        Self {
            client,
            request,
            is_cancelled,
            block: RecordBlock::with_capacity(rows, bytes),
            memory,
            started: now,
            progress: now,
            stall_checked: now,
            patience: patience(request.patience, client.budget, silent_reads),
            is_silent: false,
            probes: Probes::default(),
            short_since: None,
            last_event: None,
        }
    }

    /// The wait for other partitions of this worker says nothing about the brokers.
    pub(super) fn on_waited(&mut self) {
        let now = Instant::now();
        (self.started, self.progress, self.stall_checked) = (now, now, now);
    }

    pub(super) fn on_progress(&mut self) {
        let now = Instant::now();
        (self.progress, self.stall_checked, self.short_since) = (now, now, None);
        self.client.context().on_success();
    }

    /// Logs that the job skips offsets whose records no longer exist. Returns whether it does, or else the caller handles them.
    pub(super) fn log_gap(&self, offsets: Range<i64>) -> bool {
        let is_skipped = self.request.gaps == GapPolicy::Warn;
        if is_skipped {
            let (topic, partition) = (&self.request.topic, self.request.partition);
            tracing::warn!(%topic, partition, from = offsets.start, to = offsets.end, "skipping records that no longer exist");
        }
        is_skipped
    }

    /// Logs that the job continues with records that have replaced others.
    pub(super) fn log_replacement(&self, offset: i64) {
        let (topic, partition) = (&self.request.topic, self.request.partition);
        tracing::warn!(%topic, partition, offset, "continuing with records that replaced others after a change of the leader");
    }

    /// Adds offsets whose records no longer exist to the block.
    pub(super) fn add_missing(&mut self, offsets: Range<i64>, reason: String) {
        self.block.missing.push(MissingRecords { offsets: offsets.start as u64..offsets.end as u64, reason });
    }

    /// Fails a read whose records are in a response that is larger than the limit. Reads of other partitions continue.
    fn check_response_size(&mut self, next: i64) -> Result<(), KafkaError> {
        let Some(rejected) = self.client.context().rejected_response() else { return Ok(()) };
        if !self.probes.is_due(rejected.at, self.progress.elapsed()) {
            return Ok(());
        }
        // One read at a time, because each of them may receive as many bytes as a response may have.
        let Ok(_alone) = self.client.probing.try_lock() else { return Ok(()) };
        self.probes.on_examined(rejected.at);
        let (topic, partition) = (&self.request.topic, self.request.partition);
        match self.client.oversized_response(topic, partition, next, self.is_cancelled) {
            Some(bytes) => Err(KafkaError::permanent(format!(
                "a response of the brokers with the records from offset {next} has {bytes} bytes, which exceeds the limit of the worker: {}",
                self.memory.advice(bytes)
            ))),
            None => Ok(()),
        }
    }

    /// Checks whether a read that receives nothing from the offset `next` must end.
    pub(super) fn on_silence(&mut self, next: i64) -> Result<(), KafkaError> {
        if (self.is_cancelled)() {
            return Err(KafkaError::retryable("the read was cancelled"));
        }
        if let Some(error) = self.client.context().authentication_error() {
            return Err(error);
        }
        self.check_response_size(next)?;
        if self.stall_checked.elapsed() > STALL_CHECK {
            self.stall_checked = Instant::now();
            self.client.check_topic_id_if_reachable(&self.request.topic, &self.request.topic_id)?;
        }
        let silence = self.progress.max(self.started).elapsed();
        if silence < self.patience {
            return Ok(());
        }
        self.is_silent = true;
        let reason = self.client.context().reason().or_else(|| self.last_event.clone());
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        Err(KafkaError::retryable(format!(
            "no records arrived for {} s{reason}: check the brokers and the network, and try again",
            silence.as_secs()
        )))
    }
}

/// How long a read waits for the next record, after a number of consecutive reads for which this was too short.
fn patience(initial: Option<Duration>, budget: Duration, silent_reads: u32) -> Duration {
    let doubled =
        |patience: Duration| patience.saturating_mul(1_u32.checked_shl(silent_reads).unwrap_or(u32::MAX));
    initial.map_or(budget, |patience| doubled(patience).min(budget))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_patience_doubles_with_each_silent_read_up_to_the_budget() {
        let after = |silent_reads| {
            patience(Some(Duration::from_secs(15)), Duration::from_secs(60), silent_reads).as_secs()
        };
        assert_eq!([0, 1, 2, 3, 32].map(after), [15, 30, 60, 60, 60]);
        assert_eq!(patience(None, Duration::from_secs(60), 0).as_secs(), 60);
        assert_eq!(patience(Some(Duration::from_secs(15)), Duration::from_secs(5), 1).as_secs(), 5);
    }
}
