//! Reads blocks of one partition one after the other. Consecutive blocks use the records that were fetched ahead.

mod running_read;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;

use self::running_read::RunningRead;
use crate::connection::Connection;
use crate::error::KafkaError;
use crate::memory::{ClientMemory, FetchSlot};
use crate::native::{FetchedPartition, Messages};
use crate::records::RecordBlock;
use crate::request::{GapPolicy, ReadRequest, ReplacementCheck};

/// Maximum number of messages that are taken out of the queue of librdkafka at a time.
const BATCH_MESSAGES: usize = 1024;
/// How long a read waits before it looks for errors and cancellation.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Maximum number of offsets that are skipped by reading instead of seeking, which discards the records that were fetched ahead.
const MAX_SKIPPED_OFFSETS: i64 = 512;
/// How long a partition may end before the range. After a change of the leader, the new leader learns the end of the partition
/// from its followers.
const SHORT_LOG_GRACE: Duration = Duration::from_secs(10);
/// Time limit for a seek, which needs no request.
const SEEK_TIMEOUT: Duration = Duration::from_secs(10);

/// Part of the text of an event after which the position is no longer in the log.
const TRUNCATION_TEXT: &str = "log truncation detected";

/// A partition that is being fetched, and its position.
pub(crate) struct PartitionStream {
    memory: Arc<ClientMemory>,
    /// The number of reads since the last complete one that ended because of silence.
    silent_reads: u32,
    /// Messages that have arrived. Dropped before the partition.
    messages: Messages,
    partition: Option<OpenPartition>,
    /// All records before this offset were returned or skipped.
    next: i64,
    /// The end of the partition that librdkafka has reported. It reports each end once, so later reads need it.
    end: Option<i64>,
    /// The start of the log when a read found it.
    log_start: Option<LogStart>,
    /// The offset and the leader epoch of the last record since the last seek.
    last_record: Option<(i64, i32)>,
    /// The end of the last read, from which the next one may continue.
    read_end: Option<ReadEnd>,
    /// Whether the brokers verify the position of the last seek, and no record has arrived since then.
    is_verifying: bool,
    /// The leader epoch of the replaced records that the worker has logged.
    logged_epoch: Option<i32>,
}

/// The end of a read, directly after its last record.
struct ReadEnd {
    topic_id: Arc<str>,
    offset: i64,
    /// Of the last record.
    leader_epoch: i32,
}

/// The start of the log of a partition. Records before it never exist again.
struct LogStart {
    topic_id: Arc<str>,
    offset: i64,
    /// The first offset of the gap that the worker has logged. `None` if it has logged none.
    logged_from: Option<i64>,
}

/// A partition that is fetched.
struct OpenPartition {
    partition: FetchedPartition,
    /// Released after the partition.
    slot: FetchSlot,
}

impl PartitionStream {
    /// Creates a stream that fetches nothing yet.
    pub(crate) fn new(memory: &Arc<ClientMemory>) -> Self {
        let (memory, messages) = (Arc::clone(memory), Messages::default());
        Self {
            memory,
            silent_reads: 0,
            messages,
            partition: None,
            next: -1,
            end: None,
            log_start: None,
            last_record: None,
            read_end: None,
            is_verifying: false,
            logged_epoch: None,
        }
    }

    /// Whether records are fetched ahead.
    pub(crate) fn is_fetching(&self) -> bool {
        self.partition.is_some()
    }

    /// Whether the stream must continue to exist, so that a later read detects replaced records.
    pub(crate) fn has_read_end(&self) -> bool {
        self.read_end.is_some()
    }

    /// The position: reading from here needs no seek.
    pub(crate) fn next(&self) -> i64 {
        self.next
    }

    /// Reads a block. Blocks this thread.
    pub(crate) fn read(
        &mut self,
        client: &Connection,
        request: &ReadRequest,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<RecordBlock, KafkaError> {
        let (from, to) = (request.offsets.start as i64, request.offsets.end as i64);
        let memory = self.memory.block(2 * request.expected_bytes as u64);
        let mut read = RunningRead::new(client, request, is_cancelled, memory, self.silent_reads);
        let from = self.skip_deleted(&mut read, from..to);
        let result = self.fill_from(&mut read, from, to);
        match &result {
            Ok(()) => self.silent_reads = 0,
            Err(_) => {
                self.silent_reads += u32::from(read.is_silent);
                // The next read starts afresh.
                self.stop();
            }
        }
        result?;
        client.check_topic_id(&request.topic, &request.topic_id, read.patience)?;
        read.block.next = if from >= to { to } else { self.next } as u64;
        if from < to && request.replacements == ReplacementCheck::Continuation {
            self.store_read_end(&request.topic_id);
        }
        Ok(read.block)
    }

    /// Stores the end of a read. If no record is directly before it, later leaders may have written markers there, so that its leader
    /// epoch is not known.
    fn store_read_end(&mut self, topic_id: &Arc<str>) {
        let last = self.last_record.filter(|(offset, epoch)| offset + 1 == self.next && *epoch >= 0);
        self.read_end = last.map(|(_, leader_epoch)| ReadEnd {
            topic_id: Arc::clone(topic_id),
            offset: self.next,
            leader_epoch,
        });
    }

    pub(crate) fn stop(&mut self) {
        self.messages.clear();
        self.partition = None;
        self.next = -1;
        self.end = None;
    }

    fn fill_from(&mut self, read: &mut RunningRead<'_>, from: i64, to: i64) -> Result<(), KafkaError> {
        if from >= to {
            // The position of the partition does not matter, because no record was read.
            return Ok(());
        }
        self.move_to(read, from)?;
        self.fill(read, to)
    }

    /// Skips offsets before the known start of the log without a request. Returns the first offset to read.
    fn skip_deleted(&mut self, read: &mut RunningRead<'_>, offsets: Range<i64>) -> i64 {
        let Some(log_start) = &mut self.log_start else { return offsets.start };
        if log_start.topic_id != read.request.topic_id || log_start.offset <= offsets.start {
            return offsets.start;
        }
        // A read that only reports gaps may have found the start of the log.
        let unlogged = offsets.start..log_start.logged_from.unwrap_or(log_start.offset);
        if !unlogged.is_empty() && read.log_gap(unlogged) {
            log_start.logged_from = Some(offsets.start);
        }
        let missing = offsets.start..offsets.end.min(log_start.offset);
        read.add_missing(missing.clone(), deleted_before(log_start.offset));
        missing.end
    }

    fn move_to(&mut self, read: &mut RunningRead<'_>, offset: i64) -> Result<(), KafkaError> {
        let skipped = offset - self.next;
        if self.partition.is_some() && self.next >= 0 && (0..=MAX_SKIPPED_OFFSETS).contains(&skipped) {
            self.next = offset;
            let is_short = self.end.is_some_and(|end| end < read.request.offsets.end as i64);
            read.short_since = is_short.then_some(read.started);
            return Ok(());
        }
        self.restart(read, offset)
    }

    /// Fetches from an offset.
    fn restart(&mut self, read: &mut RunningRead<'_>, offset: i64) -> Result<(), KafkaError> {
        self.messages.clear();
        self.next = offset;
        self.end = None;
        self.last_record = None;
        let leader_epoch = self.leader_epoch_before(read.request, offset);
        self.is_verifying = leader_epoch.is_some();
        let seek = self.partition.as_mut().map(|open| match leader_epoch {
            Some(epoch) => open.partition.seek_verified(offset, epoch, SEEK_TIMEOUT),
            None => open.partition.seek(offset, SEEK_TIMEOUT),
        });
        if let Some(Ok(())) = seek {
            return Ok(());
        }
        // A read that holds memory keeps its slot, because reads with other slots may wait for this memory.
        let slot = match self.partition.take() {
            Some(OpenPartition { partition, slot }) => {
                drop(partition);
                slot
            }
            None => {
                let slot = self.memory.open_slot(read.is_cancelled)?;
                read.on_waited();
                slot
            }
        };
        let (topic, partition) = (&read.request.topic, read.request.partition);
        let mut partition = FetchedPartition::start(&read.client.client, topic, partition, offset)
            .map_err(|code| KafkaError::retryable(format!("cannot fetch records: {code}; try again")))?;
        if let Some(epoch) = leader_epoch {
            // Without the verification, the records are read as before.
            self.is_verifying = partition.seek_verified(offset, epoch, SEEK_TIMEOUT).is_ok();
        }
        self.partition = Some(OpenPartition { partition, slot });
        Ok(())
    }

    /// The leader epoch of the record before an offset, if the brokers must verify that the log still contains this record.
    fn leader_epoch_before(&self, request: &ReadRequest, offset: i64) -> Option<i32> {
        let end = self.read_end.as_ref()?;
        let is_continued = request.replacements == ReplacementCheck::Continuation
            && end.offset == offset
            && end.topic_id == request.topic_id;
        is_continued.then_some(end.leader_epoch)
    }

    fn fill(&mut self, read: &mut RunningRead<'_>, to: i64) -> Result<(), KafkaError> {
        let limit = read.request.max_bytes.unwrap_or(u64::MAX);
        while self.next < to && read.block.read_bytes < limit {
            let Some(message) = self.messages.first() else {
                if self.end.is_some_and(|end| end >= to) {
                    // No record follows, so the last offsets of the block have none.
                    self.next = to;
                    break;
                }
                self.receive(read, to)?;
                continue;
            };
            if let Some(event) = message.event() {
                let (offset, text) = (message.offset(), message.event_text());
                self.messages.remove_first();
                self.on_event(read, event, offset, &text)?;
                continue;
            }
            let offset = message.offset();
            if offset >= to {
                // The last offsets of the block have no record. The message belongs to the next block.
                self.next = to;
                break;
            }
            let leader_epoch = message.leader_epoch();
            if offset >= self.next && is_replaced(read.request, leader_epoch) {
                if read.request.gaps == GapPolicy::Report {
                    read.add_missing(self.next..to, replaced(self.next));
                    self.next = to;
                    break;
                }
                if self.logged_epoch != Some(leader_epoch) {
                    self.logged_epoch = Some(leader_epoch);
                    read.log_replacement(offset);
                }
            }
            self.last_record = Some((offset, leader_epoch));
            self.is_verifying = false;
            let is_wanted = read.request.payloads.is_none() || message.value().is_some();
            if offset >= self.next && is_wanted {
                read.block.push(message, read.request.parts, &mut read.memory, read.is_cancelled)?;
            }
            self.next = self.next.max(offset + 1);
            self.messages.remove_first();
            if read.request.payloads.is_some_and(|count| read.block.records.len() >= count) {
                break;
            }
        }
        Ok(())
    }

    /// Waits for messages. Fails if none arrives for too long.
    fn receive(&mut self, read: &mut RunningRead<'_>, to: i64) -> Result<(), KafkaError> {
        let Some(OpenPartition { partition, .. }) = &mut self.partition else {
            return self.restart(read, self.next);
        };
        let count = usize::try_from(to - self.next).unwrap_or(BATCH_MESSAGES).clamp(1, BATCH_MESSAGES);
        partition.receive(&mut self.messages, count, WAIT_SLICE);
        if self.messages.first().is_some_and(|message| message.event().is_none()) {
            read.on_progress();
            return Ok(());
        }
        if self.messages.first().is_none() {
            read.on_silence(self.next)?;
            if read.short_since.is_some_and(|since| since.elapsed() > SHORT_LOG_GRACE) {
                return self.on_gap(read);
            }
        }
        Ok(())
    }

    fn on_event(
        &mut self,
        read: &mut RunningRead<'_>,
        event: Code,
        offset: i64,
        text: &str,
    ) -> Result<(), KafkaError> {
        match event {
            Code::PartitionEOF => {
                // All records before the end have arrived.
                self.end = Some(offset);
                if offset < read.request.offsets.end as i64 {
                    read.short_since.get_or_insert_with(Instant::now);
                }
                Ok(())
            }
            Code::AutoOffsetReset if text.contains(TRUNCATION_TEXT) => self.on_truncation(read),
            Code::OffsetOutOfRange | Code::AutoOffsetReset => self.on_gap(read),
            Code::TopicAuthorizationFailed => Err(KafkaError::permanent(
                "the brokers deny reads of the topic: grant READ on it to the user of `credentials`",
            )),
            Code::BadMessage | Code::BadCompression => Err(KafkaError::permanent(format!(
                "a batch of records from offset {} is corrupted ({text}): repair the topic",
                self.next
            ))),
            _ => {
                read.last_event = Some(read.client.context().clean(text));
                if matches!(
                    event,
                    Code::UnknownTopic | Code::UnknownPartition | Code::UnknownTopicOrPartition
                ) {
                    read.client.check_topic_id_now(
                        &read.request.topic,
                        &read.request.topic_id,
                        read.patience,
                    )?;
                }
                Ok(())
            }
        }
    }

    /// Handles a position at which the brokers have no records: before the start of the log, or after its end.
    fn on_gap(&mut self, read: &mut RunningRead<'_>) -> Result<(), KafkaError> {
        let request = read.request;
        read.client.check_topic_id_now(&request.topic, &request.topic_id, read.patience)?;
        let (low, high) = read.client.watermarks(&request.topic, request.partition, read.patience)?;
        let to = request.offsets.end as i64;
        let is_deleted = low > self.next;
        let (missing, reason) = if is_deleted {
            (self.next..low.min(to), deleted_before(low))
        } else if high < to && (read.short_since.is_some() || high < self.next) {
            (
                self.next.max(high)..to,
                format!("the log ends at offset {high}: a replica without them became the leader"),
            )
        } else {
            read.on_silence(self.next)?;
            read.short_since = None;
            return self.restart(read, self.next);
        };
        // The line also contains the later blocks before the start of the log.
        let gap_end = if is_deleted { low } else { missing.end };
        let logged_from = read.log_gap(missing.start..gap_end).then_some(missing.start);
        read.add_missing(missing.clone(), reason);
        read.short_since = None;
        self.messages.clear();
        self.next = missing.end;
        if is_deleted {
            self.log_start =
                Some(LogStart { topic_id: Arc::clone(&request.topic_id), offset: low, logged_from });
        }
        if self.next < to {
            return self.restart(read, self.next);
        }
        // librdkafka has stopped fetching at the gap, so the next read starts afresh.
        self.partition = None;
        Ok(())
    }

    /// Handles a log that lost records before the position. librdkafka has stopped fetching.
    fn on_truncation(&mut self, read: &mut RunningRead<'_>) -> Result<(), KafkaError> {
        // An event from before the last seek may concern another position.
        let is_current = self.is_verifying || self.last_record.is_some();
        if read.request.replacements != ReplacementCheck::Continuation || !is_current {
            read.on_silence(self.next)?;
            return self.restart(read, self.next);
        }
        self.read_end = None;
        if read.request.gaps == GapPolicy::Warn {
            read.log_replacement(self.next);
            return self.restart(read, self.next);
        }
        let to = read.request.offsets.end as i64;
        read.add_missing(self.next..to, replaced(self.next));
        self.messages.clear();
        self.partition = None;
        self.next = to;
        self.last_record = None;
        Ok(())
    }
}

/// Whether a record with this leader epoch has replaced one that existed when the range was determined.
fn is_replaced(request: &ReadRequest, leader_epoch: i32) -> bool {
    matches!(request.replacements, ReplacementCheck::LeaderEpoch(last) if leader_epoch > last)
}

/// Why records after a replacement are not those of the range.
fn replaced(offset: i64) -> String {
    format!(
        "the log was truncated before or at offset {offset} and has other records now: a replica without them became the leader"
    )
}

/// Why the records before the start of the log no longer exist.
fn deleted_before(log_start: i64) -> String {
    format!("the log starts at offset {log_start}: retention or a user has deleted them")
}

#[cfg(test)]
mod tests;
