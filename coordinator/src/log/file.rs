//! The log as one file. The lock beside it keeps a second coordinator out.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use feedline_core::cluster::records::Record;
use rustix::fs::{FlockOperation, flock};

use super::frames::{self, Start};
use super::{LogError, RecordLog};
use crate::error::CoordinatorError;
use crate::files::{fix, prepare_directory, reason, sync_folder_of};

const LOG_FILE: &str = "records.log";
const LOCK_FILE: &str = "lock";
/// A smaller log is quick to read whatever it holds.
const COMPACT_BYTES: u64 = 8 << 20;
/// A log this many times as large as its last snapshot is mostly past.
const COMPACT_GROWTH: u64 = 4;
/// After a compaction that failed the log grows by this part of its size before the next one.
const RETRY_GROWTH: u64 = 4;

/// The log in a directory.
#[derive(Debug)]
pub(crate) struct FileLog {
    path: PathBuf,
    file: File,
    /// End of the last acknowledged frame; what lies behind it is cut off before the next write.
    len: u64,
    /// Whether something may lie behind `len`.
    dirty: bool,
    snapshot_len: u64,
    compact_bytes: u64,
    /// Size up to which it is not compacted, since that failed; 0 at first.
    retry_len: u64,
    /// Held for as long as the log is open.
    _lock: File,
}

impl FileLog {
    /// Opens or creates the log in `folder` and reads its records.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Vec<Record>), CoordinatorError> {
        prepare_directory(folder, "the coordinator's data directory")?;
        let lock = take_lock(folder)?;
        let path = folder.join(LOG_FILE);
        let (file, bytes) =
            read(&path).map_err(|error| LogError::Read { path: path.clone(), reason: reason(&error) })?;
        let mut log = Self {
            path,
            file,
            len: bytes.len() as u64,
            dirty: false,
            snapshot_len: 0,
            compact_bytes: COMPACT_BYTES,
            retry_len: 0,
            _lock: lock,
        };
        // What a crash amid a compaction left; where it cannot be removed, the next compaction overwrites it.
        let _ = fs::remove_file(log.part());
        match frames::read_start(&bytes) {
            Start::Ours => {}
            Start::Torn => {
                log.begin().map_err(|error| log.write_error(&error))?;
                return Ok((log, Vec::new()));
            }
            Start::Foreign(what) => return Err(LogError::Foreign { path: log.path, what }.into()),
        }
        let contents = frames::read_all(&bytes).map_err(|damage| LogError::Damaged {
            path: log.path.clone(),
            offset: damage.offset as u64,
            what: damage.what,
        })?;
        if contents.end < bytes.len() {
            tracing::warn!(
                path = %log.path.display(),
                bytes = bytes.len() - contents.end,
                "the log's last commit was cut short by a crash before it was acknowledged; it is left out"
            );
            log.len = contents.end as u64;
            log.cut_off().map_err(|error| log.write_error(&error))?;
        }
        Ok((log, contents.records))
    }

    /// Writes the header of a new log.
    fn begin(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&frames::header())?;
        self.file.sync_all()?;
        self.len = frames::HEADER_BYTES as u64;
        sync_folder_of(&self.path)
    }

    /// Removes what lies behind the last acknowledged frame.
    fn cut_off(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len))?;
        self.dirty = false;
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.dirty {
            self.cut_off()?;
        }
        self.dirty = true;
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.dirty = false;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Where a snapshot is written before it becomes the log.
    fn part(&self) -> PathBuf {
        self.path.with_extension("part")
    }

    fn write_error(&self, error: &io::Error) -> LogError {
        LogError::Write { path: self.path.clone(), reason: reason(error), fix: fix(error) }
    }

    #[cfg(test)]
    pub(super) fn compact_above(&mut self, bytes: u64) {
        self.compact_bytes = bytes;
    }
}

impl RecordLog for FileLog {
    fn append(&mut self, records: &[Record]) -> Result<(), LogError> {
        if records.is_empty() {
            return Ok(());
        }
        let result = frames::frame(records).map_err(io::Error::other).and_then(|bytes| self.write(&bytes));
        result.map_err(|error| {
            if let Err(cut) = self.cut_off() {
                // Still dirty: the next append begins with this.
                tracing::warn!(path = %self.path.display(), error = %cut, "cannot cut off a partial write yet");
            }
            self.write_error(&error)
        })
    }

    fn len_bytes(&self) -> u64 {
        self.len
    }

    fn wants_compaction(&self) -> bool {
        self.len > self.compact_bytes
            && self.len > COMPACT_GROWTH * self.snapshot_len
            && self.len > self.retry_len
    }

    fn compact(&mut self, snapshot: &[Record]) -> Result<(), LogError> {
        let compacted = frames::snapshot(snapshot).map_err(io::Error::other).and_then(|bytes| {
            let part = self.part();
            let mut file =
                OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&part)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            fs::rename(&part, &self.path)?;
            // From here on the new file is the log, whatever fails behind: the old one has no name any more.
            let len = bytes.len() as u64;
            (self.file, self.len, self.snapshot_len, self.dirty) = (file, len, len, false);
            sync_folder_of(&self.path)
        });
        compacted.map_err(|error| {
            // A part would take the space that appends need.
            let _ = fs::remove_file(self.part());
            self.retry_len = self.len + self.len / RETRY_GROWTH;
            self.write_error(&error)
        })
    }
}

fn take_lock(folder: &Path) -> Result<File, CoordinatorError> {
    let unusable = |error: io::Error| CoordinatorError::Directory {
        purpose: "the coordinator's data directory",
        path: folder.to_owned(),
        reason: reason(&error),
    };
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open(folder.join(LOCK_FILE))
        .map_err(unusable)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(CoordinatorError::Locked { path: folder.to_owned() }),
        Err(error) => Err(unusable(error.into())),
    }
}

fn read(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((file, bytes))
}
