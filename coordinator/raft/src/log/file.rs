//! The log file, and the lock that excludes a second coordinator.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::LogError;
use super::frames::{self, FileHeader};
use crate::files::{DirectoryError, fix, prepare_directory, reason, sync_folder_of};
use crate::members::MemberId;
use crate::persisted::{LogWrite, PersistedState};

const LOG_FILE: &str = "records.log";
const LOCK_FILE: &str = "lock";
const PURPOSE: &str = "the coordinator's data directory";

/// The log in a directory.
#[derive(Debug)]
pub struct FileLog {
    id: MemberId,
    path: PathBuf,
    file: File,
    /// End of the last acknowledged frame. The next write first truncates the file to this length.
    len: u64,
    /// Whether the file may be longer than `len`.
    dirty: bool,
    /// Whether the name of the file is not durable yet. No write is acknowledged before it is.
    renamed: bool,
    /// Held for as long as the log is open.
    _lock: File,
}

impl FileLog {
    /// The paths of the files of a log in `folder`.
    pub fn files(folder: &Path) -> [PathBuf; 3] {
        let log = folder.join(LOG_FILE);
        let part = part_of(&log);
        [log, part, folder.join(LOCK_FILE)]
    }

    /// Opens the log in `folder` and reads it, or creates one for the member `new_id`.
    ///
    /// # Errors
    /// If the log cannot be used: one sentence with a remedy.
    pub fn open(folder: &Path, new_id: MemberId) -> Result<(Self, PersistedState), LogError> {
        prepare_directory(folder, PURPOSE)?;
        let lock = take_lock(folder)?;
        let path = folder.join(LOG_FILE);
        let (file, bytes) =
            read(&path).map_err(|error| LogError::Read { path: path.clone(), reason: reason(&error) })?;
        let mut log = Self {
            id: new_id,
            path,
            file,
            len: bytes.len() as u64,
            dirty: false,
            renamed: false,
            _lock: lock,
        };
        // A crash during a compaction leaves this file. The next compaction would overwrite it.
        let _ = fs::remove_file(log.part());
        match frames::read_start(&bytes) {
            FileHeader::Ours => {}
            FileHeader::Torn => return log.begin(),
            FileHeader::Foreign(what) => return Err(LogError::Foreign { path: log.path, what }),
        }
        let contents = frames::read_all(&bytes).map_err(|damage| LogError::Damaged {
            path: log.path.clone(),
            offset: damage.offset as u64,
            what: damage.what,
        })?;
        let Some(id) = contents.id else { return log.begin() };
        log.id = id;
        if contents.end < bytes.len() {
            tracing::warn!(
                path = %log.path.display(),
                bytes = bytes.len() - contents.end,
                "the last write of the log was torn by a crash before it was acknowledged; it is dropped"
            );
            log.len = contents.end as u64;
            log.truncate_unacknowledged().map_err(|error| log.write_error(&error))?;
        }
        Ok((log, contents.stored))
    }

    /// The member that owns the log.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// The size of the log in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Writes durably and in order, until the first error. Removes finished writes from `writes`, so that the rest can be retried.
    ///
    /// # Errors
    /// If a write fails.
    pub fn write(&mut self, writes: &mut Vec<LogWrite>) -> Result<(), LogError> {
        while !writes.is_empty() {
            let appends = writes.iter().take_while(|write| matches!(write, LogWrite::Append { .. })).count();
            if appends > 0 {
                self.append(&writes[..appends])?;
                writes.drain(..appends);
            } else {
                self.replace(&writes[0])?;
                writes.remove(0);
            }
        }
        Ok(())
    }

    /// Appends several writes in one frame.
    fn append(&mut self, writes: &[LogWrite]) -> Result<(), LogError> {
        let appends = writes.iter().filter_map(|write| match write {
            LogWrite::Append { hard_state, entries, .. } => Some((hard_state.as_ref(), entries.as_slice())),
            _ => None,
        });
        let bytes = frames::appended(appends).map_err(|what| self.write_error(&io::Error::other(what)))?;
        self.add(&bytes).map_err(|error| {
            if let Err(cut) = self.truncate_unacknowledged() {
                // The next append retries the truncation.
                tracing::warn!(path = %self.path.display(), error = %cut, "cannot truncate a partial write; the next write retries");
            }
            self.write_error(&error)
        })
    }

    fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.renamed {
            sync_folder_of(&self.path)?;
            self.renamed = false;
        }
        if self.dirty {
            self.truncate_unacknowledged()?;
        }
        self.dirty = true;
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.dirty = false;
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the file after the last acknowledged frame.
    fn truncate_unacknowledged(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len))?;
        self.dirty = false;
        Ok(())
    }

    fn replace(&mut self, write: &LogWrite) -> Result<(), LogError> {
        let (stored, must) = match write {
            LogWrite::Compact(stored) => (stored, false),
            LogWrite::Install { stored, .. } => (stored, true),
            LogWrite::Append { .. } => return Ok(()),
        };
        let replaced = frames::whole(self.id, stored)
            .map_err(io::Error::other)
            .and_then(|bytes| self.replace_by(&bytes));
        match replaced {
            Err(error) if must => Err(self.write_error(&error)),
            Err(error) => {
                let error = self.write_error(&error);
                tracing::warn!(%error, "the log cannot be compacted and continues to grow");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Replaces the file by one with these bytes. An error leaves the old file.
    fn replace_by(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = self.part();
        let written = || {
            let mut file =
                OpenOptions::new().create(true).truncate(true).read(true).write(true).open(&part)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&part, &self.path)?;
            Ok(file)
        };
        let file = written().inspect_err(|_: &io::Error| {
            // An incomplete file would occupy space that appends need.
            let _ = fs::remove_file(&part);
        })?;
        // The new file is the log now, even if a later step fails: the old file has no name.
        (self.file, self.len, self.dirty) = (file, bytes.len() as u64, false);
        // Until the directory is written, a power failure may restore the old file.
        self.renamed = true;
        sync_folder_of(&self.path)?;
        self.renamed = false;
        Ok(())
    }

    /// Creates a new log.
    fn begin(mut self) -> Result<(Self, PersistedState), LogError> {
        let begun =
            frames::empty(self.id).map_err(io::Error::other).and_then(|bytes| self.replace_by(&bytes));
        begun.map_err(|error| self.write_error(&error))?;
        Ok((self, PersistedState::default()))
    }

    /// The path of a new log before it replaces the old one.
    fn part(&self) -> PathBuf {
        part_of(&self.path)
    }

    fn write_error(&self, error: &io::Error) -> LogError {
        LogError::Write { path: self.path.clone(), reason: reason(error), fix: fix(error) }
    }
}

fn part_of(log: &Path) -> PathBuf {
    log.with_extension("part")
}

fn take_lock(folder: &Path) -> Result<File, LogError> {
    let unusable = |error: io::Error| DirectoryError {
        purpose: PURPOSE,
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
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LogError::Locked { path: folder.to_owned() }),
        Err(error) => Err(unusable(error.into()).into()),
    }
}

fn read(path: &Path) -> io::Result<(File, Vec<u8>)> {
    let mut file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((file, bytes))
}
