//! The disk of a coordinator: writes the log on a thread, or drops all writes of a coordinator in memory.

use feedline_raft::LogWrite;
use feedline_raft::log::{FileLog, LogError};
use metrics::{gauge, histogram};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::CoordinatorError;
use crate::metrics::{LOG_APPEND_SECONDS, LOG_BYTES};

/// A log that can be written.
pub(crate) trait WriteLog: Send + 'static {
    /// Writes durably and in order. After an error, `writes` contains the unfinished writes.
    fn write(&mut self, writes: &mut Vec<LogWrite>) -> Result<(), LogError>;

    /// Returns the size of the log in bytes.
    fn len_bytes(&self) -> u64;
}

impl WriteLog for FileLog {
    fn write(&mut self, writes: &mut Vec<LogWrite>) -> Result<(), LogError> {
        Self::write(self, writes)
    }

    fn len_bytes(&self) -> u64 {
        Self::len_bytes(self)
    }
}

/// The outcome of a write.
pub(crate) struct WriteOutcome {
    /// The number of the last durable write.
    pub(crate) number: Option<u64>,
    /// The error, if a write failed.
    pub(crate) error: Option<LogError>,
}

/// The log, the unfinished writes, and the result.
type FinishedWrite = (Box<dyn WriteLog>, Vec<LogWrite>, Result<(), LogError>);

/// A write in progress.
struct RunningWrite {
    numbers: Vec<Option<u64>>,
    task: JoinHandle<FinishedWrite>,
}

/// The disk.
pub(crate) struct Disk {
    /// `None` during a write, and for a coordinator in memory.
    log: Option<Box<dyn WriteLog>>,
    is_durable: bool,
    queued: Vec<LogWrite>,
    running: Option<RunningWrite>,
}

impl Disk {
    /// Creates a disk that drops all writes.
    pub(crate) fn memory() -> Self {
        Self { log: None, is_durable: false, queued: Vec::new(), running: None }
    }

    /// Creates a disk that writes to `log`.
    pub(crate) fn new(log: Box<dyn WriteLog>) -> Self {
        Self { log: Some(log), is_durable: true, ..Self::memory() }
    }

    /// Queues writes. Returns the number of the last write that is already finished.
    pub(crate) fn push(&mut self, writes: Vec<LogWrite>) -> Option<u64> {
        if !self.is_durable {
            return writes.iter().rev().find_map(LogWrite::number);
        }
        self.queued.extend(writes);
        None
    }

    /// Returns whether unfinished writes exist.
    pub(crate) fn has_work(&self) -> bool {
        self.running.is_some() || !self.queued.is_empty()
    }

    /// Starts the queued writes unless a write is in progress.
    pub(crate) fn start(&mut self) {
        let Some(mut log) = self.log.take_if(|_| !self.queued.is_empty()) else { return };
        let mut writes = std::mem::take(&mut self.queued);
        let numbers = writes.iter().map(LogWrite::number).collect();
        let task = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            let result = log.write(&mut writes);
            histogram!(LOG_APPEND_SECONDS).record(start.elapsed().as_secs_f64());
            gauge!(LOG_BYTES).set(log.len_bytes() as f64);
            (log, writes, result)
        });
        self.running = Some(RunningWrite { numbers, task });
    }

    /// Waits for the write in progress, or forever if there is none. Cancel safe.
    pub(crate) async fn written(&mut self) -> Result<WriteOutcome, CoordinatorError> {
        let Some(write) = &mut self.running else { return std::future::pending().await };
        let ended = (&mut write.task).await;
        let (log, rest, result) = ended.map_err(|error| CoordinatorError::Stopped(error.to_string()))?;
        let numbers = self.running.take().map(|write| write.numbers).unwrap_or_default();
        self.log = Some(log);
        let written = numbers.len() - rest.len();
        self.queued.splice(0..0, rest);
        let number = numbers[..written].iter().rev().find_map(|number| *number);
        Ok(WriteOutcome { number, error: result.err() })
    }
}
