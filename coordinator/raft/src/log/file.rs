//! The log file, and the lock against a second coordinator.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::LogError;
use super::frames::{self, FileHeader};
use crate::files::{
    DirectoryError, error_reason, prepare_directory, private_file_options, sync_folder_of, write_error_fix,
};
use crate::members::MemberId;
use crate::persisted::{LogWrite, PersistedState};

const LOG_FILE: &str = "records.log";
const LOCK_FILE: &str = "lock";
const DIRECTORY_PURPOSE: &str = "the coordinator's data directory";
/// The flag that sets the directory.
const DIRECTORY_FLAG: &str = "--data-dir";

/// The log in a directory.
#[derive(Debug)]
pub struct FileLog {
    id: MemberId,
    path: PathBuf,
    file: File,
    /// Length of the header and all acknowledged frames.
    acknowledged_bytes: u64,
    /// Whether the file may contain a partial write after the acknowledged bytes.
    has_partial_write: bool,
    /// Whether the file's name is not durable yet. No write is acknowledged before the directory is synced.
    needs_folder_sync: bool,
    /// The lock on the directory while the log is open.
    _lock: File,
}

impl FileLog {
    /// Returns the paths of all files of a log in `folder`.
    pub fn files(folder: &Path) -> [PathBuf; 3] {
        let log = folder.join(LOG_FILE);
        let part = incomplete_path(&log);
        [log, part, folder.join(LOCK_FILE)]
    }

    /// Opens and reads the log in `folder`, or creates a log for the member `new_id`.
    ///
    /// # Errors
    /// Returns an error if the log cannot be used.
    pub fn open(folder: &Path, new_id: MemberId) -> Result<(Self, PersistedState), LogError> {
        prepare_directory(folder, DIRECTORY_PURPOSE, DIRECTORY_FLAG)?;
        let lock = take_lock(folder)?;
        let path = folder.join(LOG_FILE);
        let (file, bytes) = read(&path)
            .map_err(|error| LogError::Read { path: path.clone(), reason: error_reason(&error) })?;
        let mut log = Self {
            id: new_id,
            path,
            file,
            acknowledged_bytes: bytes.len() as u64,
            has_partial_write: false,
            needs_folder_sync: false,
            _lock: lock,
        };
        // A crash during a compaction may leave this file behind.
        let _ = fs::remove_file(incomplete_path(&log.path));
        match frames::read_header(&bytes) {
            FileHeader::Valid => {}
            FileHeader::Torn => return log.create(),
            FileHeader::Foreign(difference) => return Err(LogError::Foreign { path: log.path, difference }),
        }
        let contents = frames::decode_log(&bytes).map_err(|corrupt| LogError::Damaged {
            path: log.path.clone(),
            offset: corrupt.offset as u64,
            damage: corrupt.damage,
        })?;
        let Some(id) = contents.id else { return log.create() };
        log.id = id;
        if contents.end < bytes.len() {
            tracing::warn!(
                path = %log.path.display(),
                bytes = bytes.len() - contents.end,
                "a crash interrupted the last write to the log; discarding the unacknowledged write"
            );
            log.acknowledged_bytes = contents.end as u64;
            log.truncate_unacknowledged().map_err(|error| log.write_error(&error))?;
        }
        Ok((log, contents.stored))
    }

    /// Returns the id of the member that owns the log.
    pub fn id(&self) -> MemberId {
        self.id
    }

    /// Returns the size of the log in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.acknowledged_bytes
    }

    /// Writes durably and in order, until the first error. Removes finished writes from `writes`. The caller can retry the
    /// remaining writes.
    ///
    /// # Errors
    /// Returns an error if a write fails.
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
        let bytes =
            frames::encode_appends(appends).map_err(|error| self.write_error(&io::Error::other(error)))?;
        self.append_bytes(&bytes).map_err(|error| {
            if let Err(cut) = self.truncate_unacknowledged() {
                // The next append retries the truncation.
                tracing::warn!(path = %self.path.display(), error = %cut, "cannot truncate a partial write; retrying on the next write");
            }
            self.write_error(&error)
        })
    }

    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.needs_folder_sync {
            sync_folder_of(&self.path)?;
            self.needs_folder_sync = false;
        }
        if self.has_partial_write {
            self.truncate_unacknowledged()?;
        }
        self.has_partial_write = true;
        self.file.write_all(bytes)?;
        self.file.sync_data()?;
        self.has_partial_write = false;
        self.acknowledged_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Truncates the file after the last acknowledged frame.
    fn truncate_unacknowledged(&mut self) -> io::Result<()> {
        self.file.set_len(self.acknowledged_bytes)?;
        self.file.seek(SeekFrom::Start(self.acknowledged_bytes))?;
        self.has_partial_write = false;
        Ok(())
    }

    fn replace(&mut self, write: &LogWrite) -> Result<(), LogError> {
        let (stored, is_required) = match write {
            LogWrite::Compact(stored) => (stored, false),
            LogWrite::Install { stored, .. } => (stored, true),
            LogWrite::Append { .. } => return Ok(()),
        };
        let replaced = frames::encode_log(self.id, stored)
            .map_err(io::Error::other)
            .and_then(|bytes| self.replace_file_with(&bytes));
        match replaced {
            Err(error) if is_required => Err(self.write_error(&error)),
            Err(error) => {
                let error = self.write_error(&error);
                tracing::warn!(%error, "log compaction failed; the log grows until compaction succeeds");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Replaces the file with a new file that contains `bytes`. If an error occurs, the old file stays in place.
    fn replace_file_with(&mut self, bytes: &[u8]) -> io::Result<()> {
        let part = incomplete_path(&self.path);
        let written = || {
            let mut file =
                private_file_options().create(true).truncate(true).read(true).write(true).open(&part)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&part, &self.path)?;
            Ok(file)
        };
        let file = written().inspect_err(|_: &io::Error| {
            // An incomplete file would take space from later appends.
            let _ = fs::remove_file(&part);
        })?;
        // The new file is now the log, even if a later step fails, because the old file has no name.
        (self.file, self.acknowledged_bytes, self.has_partial_write) = (file, bytes.len() as u64, false);
        // Until the directory is synced, a power failure may restore the old file.
        self.needs_folder_sync = true;
        sync_folder_of(&self.path)?;
        self.needs_folder_sync = false;
        Ok(())
    }

    /// Creates a new log.
    fn create(mut self) -> Result<(Self, PersistedState), LogError> {
        let created = frames::encode_empty_log(self.id)
            .map_err(io::Error::other)
            .and_then(|bytes| self.replace_file_with(&bytes));
        created.map_err(|error| self.write_error(&error))?;
        Ok((self, PersistedState::default()))
    }

    fn write_error(&self, error: &io::Error) -> LogError {
        LogError::Write { path: self.path.clone(), reason: error_reason(error), fix: write_error_fix(error) }
    }
}

/// Returns the path of a new log before the log is complete.
fn incomplete_path(log: &Path) -> PathBuf {
    log.with_extension("part")
}

fn take_lock(folder: &Path) -> Result<File, LogError> {
    let unusable = |error: io::Error| DirectoryError {
        purpose: DIRECTORY_PURPOSE,
        flag: DIRECTORY_FLAG,
        path: folder.to_owned(),
        reason: error_reason(&error),
    };
    let lock = private_file_options()
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
    let mut file = private_file_options().create(true).truncate(false).read(true).write(true).open(path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok((file, bytes))
}
