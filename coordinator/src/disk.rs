//! Where a coordinator's log goes: to a file, without keeping the driver from listening, or nowhere.

use feedline_raft::LogWrite;
use feedline_raft::log::{FileLog, LogError};
use metrics::{gauge, histogram};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::error::CoordinatorError;
use crate::metrics::{LOG_APPEND_SECONDS, LOG_BYTES};

/// Writes a member's log.
pub(crate) trait WriteLog: Send + 'static {
    /// Writes everything, durably and in order. After an error, `writes` is what was not written.
    fn write(&mut self, writes: &mut Vec<LogWrite>) -> Result<(), LogError>;

    /// Size in bytes.
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

/// What a write has come to.
pub(crate) struct WriteOutcome {
    /// Everything up to this number is on disk.
    pub(crate) number: Option<u64>,
    /// Why not all of it is.
    pub(crate) error: Option<LogError>,
}

/// The log, what of the writes is left, and how it went.
type Done = (Box<dyn WriteLog>, Vec<LogWrite>, Result<(), LogError>);

/// A write that a thread is at.
struct Busy {
    numbers: Vec<Option<u64>>,
    task: JoinHandle<Done>,
}

/// Where the log goes.
pub(crate) struct Disk {
    /// `None` while a thread has it, and where nothing is kept.
    log: Option<Box<dyn WriteLog>>,
    keeps: bool,
    queued: Vec<LogWrite>,
    busy: Option<Busy>,
}

impl Disk {
    /// One that keeps nothing: what is written is there at once.
    pub(crate) fn memory() -> Self {
        Self { log: None, keeps: false, queued: Vec::new(), busy: None }
    }

    /// One that keeps everything in `log`.
    pub(crate) fn new(log: Box<dyn WriteLog>) -> Self {
        Self { log: Some(log), keeps: true, ..Self::memory() }
    }

    /// Takes writes; gives the number up to which everything is kept already.
    pub(crate) fn push(&mut self, writes: Vec<LogWrite>) -> Option<u64> {
        if !self.keeps {
            return writes.iter().rev().find_map(LogWrite::number);
        }
        self.queued.extend(writes);
        None
    }

    /// Whether something is not written yet.
    pub(crate) fn has_work(&self) -> bool {
        self.busy.is_some() || !self.queued.is_empty()
    }

    /// Begins to write what is queued, if nothing is being written.
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
        self.busy = Some(Busy { numbers, task });
    }

    /// Waits for the write under way; for ever where there is none. Can be dropped and called again.
    pub(crate) async fn written(&mut self) -> Result<WriteOutcome, CoordinatorError> {
        let Some(busy) = &mut self.busy else { return std::future::pending().await };
        let ended = (&mut busy.task).await;
        let (log, rest, result) = ended.map_err(|error| CoordinatorError::Stopped(error.to_string()))?;
        let numbers = self.busy.take().map(|busy| busy.numbers).unwrap_or_default();
        self.log = Some(log);
        let written = numbers.len() - rest.len();
        self.queued.splice(0..0, rest);
        let number = numbers[..written].iter().rev().find_map(|number| *number);
        Ok(WriteOutcome { number, error: result.err() })
    }
}
