//! The reads of one partition. They run one after the other, in the order of their offsets, so that records that were fetched ahead
//! are used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::connection::Connection;
use crate::error::KafkaError;
use crate::memory::{ClientMemory, IdleReader, IdleTurn};
use crate::records::RecordBlock;
use crate::request::ReadRequest;
use crate::shared_wait::SharedWait;
use crate::stream::PartitionStream;

/// How long a read may wait while reads at later offsets are served. Each seek discards the records that were fetched ahead.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The reads of one partition, and the stream that serves them.
pub(crate) struct PartitionReader {
    this: Weak<Self>,
    memory: Arc<ClientMemory>,
    state: Mutex<ReaderState>,
    /// Of the reads that failed because the leader of the partition did not answer.
    pub(crate) leader_wait: SharedWait,
}

struct ReaderState {
    /// Waiting reads by their first offset and the order of arrival.
    waiting: BTreeMap<(u64, u64), WaitingRead>,
    arrivals: u64,
    /// The stream; `None` while a thread reads.
    stream: Option<PartitionStream>,
    /// Set while the partition is fetched and no thread reads.
    idle: Option<IdleTurn>,
    used_at: Instant,
}

struct WaitingRead {
    request: ReadRequest,
    since: Instant,
    reply: oneshot::Sender<Result<RecordBlock, KafkaError>>,
}

impl PartitionReader {
    pub(crate) fn new(memory: &Arc<ClientMemory>) -> Arc<Self> {
        let stream = Some(PartitionStream::new(memory));
        let state = ReaderState {
            waiting: BTreeMap::new(),
            arrivals: 0,
            stream,
            idle: None,
            used_at: Instant::now(),
        };
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            memory: Arc::clone(memory),
            state: Mutex::new(state),
            leader_wait: SharedWait::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ReaderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a block.
    pub(crate) async fn read(
        self: &Arc<Self>,
        client: &Arc<Connection>,
        request: ReadRequest,
    ) -> Result<RecordBlock, KafkaError> {
        let (reply, result) = oneshot::channel();
        if let Some(stream) = self.enqueue(WaitingRead { request, since: Instant::now(), reply }) {
            let (this, client) = (Arc::clone(self), Arc::clone(client));
            // The thread replies to this read and to all reads that arrive meanwhile.
            drop(tokio::task::spawn_blocking(move || this.serve(&client, stream)));
        }
        result
            .await
            .unwrap_or_else(|_| Err(KafkaError::retryable("the reader of the partition stopped: try again")))
    }

    /// Adds a read. Returns the stream if no thread reads.
    fn enqueue(&self, read: WaitingRead) -> Option<PartitionStream> {
        let mut state = self.lock();
        state.arrivals += 1;
        let place = (read.request.offsets.start, state.arrivals);
        state.waiting.insert(place, read);
        let stream = state.stream.take();
        if let Some(turn) = state.idle.take_if(|_| stream.is_some()) {
            self.memory.remove_idle(turn);
        }
        stream
    }

    /// Returns the stream after the last waiting read.
    fn return_stream(&self, state: &mut ReaderState, stream: PartitionStream) {
        if stream.is_fetching() {
            state.idle = Some(self.memory.add_idle(self.this.clone()));
        }
        state.stream = Some(stream);
    }

    /// Serves reads until none waits.
    fn serve(&self, client: &Connection, stream: PartitionStream) {
        let mut serving = Serving { reader: self, stream: Some(stream) };
        while let (Some(read), Some(stream)) = (serving.next_read(), &mut serving.stream) {
            if read.reply.is_closed() {
                continue;
            }
            let result = stream.read(client, &read.request, &|| read.reply.is_closed());
            if let Err(error) = &result
                && error.is_retryable
                && !read.reply.is_closed()
            {
                self.fail_waiting(error);
            }
            // The reader may have been cancelled.
            let _ = read.reply.send(result);
        }
    }

    /// Fails the waiting reads for the same reason, because they hold permits and memory that reads of other partitions need.
    fn fail_waiting(&self, error: &KafkaError) {
        for read in std::mem::take(&mut self.lock().waiting).into_values() {
            // The reader may have been cancelled.
            let _ = read.reply.send(Err(error.clone()));
        }
    }

    /// Stops fetching if nothing was read for some time. Returns whether the reader is no longer needed.
    pub(crate) fn stop_if_idle(&self, idle: Duration) -> bool {
        let mut state = self.lock();
        if state.used_at.elapsed() < idle || state.stream.is_none() {
            return false;
        }
        self.stop(&mut state);
        state.stream.as_ref().is_none_or(|stream| !stream.has_read_end())
    }

    /// Stopping takes about a millisecond. Meanwhile the lock prevents that a read starts to fetch the same partition.
    fn stop(&self, state: &mut ReaderState) {
        if let Some(stream) = &mut state.stream {
            stream.stop();
            if let Some(turn) = state.idle.take() {
                self.memory.remove_idle(turn);
            }
        }
    }
}

impl IdleReader for PartitionReader {
    fn stop_if_unused(&self) {
        self.stop(&mut self.lock());
    }
}

/// A thread that serves reads. Returns the stream when it ends.
struct Serving<'a> {
    reader: &'a PartitionReader,
    stream: Option<PartitionStream>,
}

impl Serving<'_> {
    /// Takes the next read: the first one at or after the position, or the first of all. A read that has waited for
    /// [`MAX_WAIT`] precedes them, so that jobs at different offsets take turns. Returns the stream if none waits.
    fn next_read(&mut self) -> Option<WaitingRead> {
        let position = self.stream.as_ref().map_or(0, |stream| stream.next().max(0) as u64);
        let mut state = self.reader.lock();
        state.used_at = Instant::now();
        let oldest = state.waiting.iter().min_by_key(|((_, arrival), _)| *arrival);
        let place = oldest.filter(|(_, read)| read.since.elapsed() >= MAX_WAIT);
        let place = place.or_else(|| state.waiting.range((position, 0)..).next());
        let place = place.or_else(|| state.waiting.iter().next());
        let Some(place) = place.map(|(place, _)| *place) else {
            if let Some(stream) = self.stream.take() {
                self.reader.return_stream(&mut state, stream);
            }
            return None;
        };
        state.waiting.remove(&place)
    }
}

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.stream.take() else { return };
        let mut state = self.reader.lock();
        self.reader.return_stream(&mut state, stream);
        if std::thread::panicking() {
            // Their readers receive an error.
            state.waiting.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::ClientLimits;
    use crate::records::RecordParts;
    use crate::request::{GapPolicy, ReplacementCheck};

    #[test]
    fn reads_that_wait_for_a_silent_partition_fail_together() {
        let limits = ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
        let reader = PartitionReader::new(&ClientMemory::new(limits, Arc::default()));
        let request = |from: u64| ReadRequest {
            topic: "t".into(),
            topic_id: "id".into(),
            partition: 0,
            offsets: from..from + 1,
            parts: RecordParts { key: false, headers: false, value: true },
            gaps: GapPolicy::Report,
            replacements: ReplacementCheck::None,
            expected_bytes: 0,
            patience: None,
            max_bytes: None,
            payloads: None,
        };
        let enqueue = |from| {
            let (reply, result) = oneshot::channel();
            let stream = reader.enqueue(WaitingRead { request: request(from), since: Instant::now(), reply });
            (stream.is_some(), result)
        };
        let [(true, mut first), (false, mut second)] = [enqueue(0), enqueue(1)] else {
            panic!("one thread serves both reads")
        };
        let error = KafkaError::retryable("no records arrived");
        reader.fail_waiting(&error);
        assert_eq!([first.try_recv(), second.try_recv()], [Ok(Err(error.clone())), Ok(Err(error))]);
        assert!(!enqueue(2).0, "the thread still serves");
    }
}
