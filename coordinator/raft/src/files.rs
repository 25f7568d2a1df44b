//! Atomic and durable file replacement, and messages for file system errors.

use std::fs::{self, DirEntry, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Suffix that is appended to the final name of a file while the file is incomplete.
const INCOMPLETE_SUFFIX: &str = ".new";
/// Age above which an incomplete file is assumed to be from a killed process.
const INCOMPLETE_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// A directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {purpose} {path}: {reason}; pass {flag} with a directory that this user can write to")]
pub struct DirectoryError {
    /// The purpose of the directory.
    pub purpose: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// The reason reported by the operating system.
    pub reason: String,
    /// The flag that sets the directory.
    pub flag: &'static str,
}

/// Replaces the contents of the file at `path` with `parts`, atomically and durably. If several processes replace a file at
/// the same time, the last write wins.
///
/// # Errors
/// Returns file system errors.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(INCOMPLETE_SUFFIX);
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    sync_folder_of(path)
}

/// Removes incomplete files that killed processes have left in `folder`. The final names of these files end with `suffix`.
pub fn remove_incomplete_files(folder: &Path, suffix: &str) {
    let incomplete = format!("{suffix}{INCOMPLETE_SUFFIX}");
    let unfinished = |entry: &DirEntry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = changed.and_then(|changed| changed.elapsed().ok());
        entry.file_name().to_string_lossy().contains(&incomplete)
            && age.is_some_and(|age| age > INCOMPLETE_MAX_AGE)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(unfinished) {
        // A remaining file only occupies disk space.
        let _ = fs::remove_file(entry.path());
    }
}

/// Makes the name of a file durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a directory if it is missing and checks that it is writable. `flag` sets the directory.
///
/// # Errors
/// Returns an error if the directory is not writable.
pub fn prepare_directory(
    path: &Path,
    purpose: &'static str,
    flag: &'static str,
) -> Result<(), DirectoryError> {
    fs::create_dir_all(path)
        .and_then(|()| tempfile::Builder::new().prefix(".feedline-probe").tempfile_in(path))
        .map(drop)
        .map_err(|error| DirectoryError {
            purpose,
            path: path.to_owned(),
            reason: error_reason(&error),
            flag,
        })
}

/// Returns the text of a system error without its error number.
pub fn error_reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Returns how to fix a write error.
pub fn write_error_fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some disk space",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "make it writable",
        _ => "check the disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::SystemTime;

    #[test]
    fn processes_that_start_at_the_same_time_can_use_the_same_directory() {
        let root = tempfile::tempdir().expect("a directory");
        let folder = root.path().join("index");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..200).for_each(|_| {
                        prepare_directory(&folder, "the index directory", "--index-dir").expect("usable");
                    })
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).expect("a directory").count(), 0, "no probe file is left");
    }

    #[test]
    fn simultaneous_replacements_leave_one_complete_file() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("key.index");
        let written: Vec<Vec<u8>> = (1..=8).map(|by| vec![by; usize::from(by) * 5_000]).collect();
        thread::scope(|scope| {
            for body in &written {
                scope.spawn(|| {
                    for _ in 0..20 {
                        replace_file(&path, &[body]).expect("replaced");
                        let read = fs::read(&path).expect("a file");
                        assert!(written.contains(&read), "{} bytes of {:?}", read.len(), read.first());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(root.path()).expect("a directory").count(), 1, "no incomplete file is left");
    }

    #[test]
    fn only_old_incomplete_files_are_removed() {
        let root = tempfile::tempdir().expect("a directory");
        let long_ago = SystemTime::now() - INCOMPLETE_MAX_AGE * 2;
        for name in ["key.index", "key.index.newAbC", "other.index.newDeF", "theirs.newGhI"] {
            let file = File::create(root.path().join(name)).expect("written");
            if name != "other.index.newDeF" {
                file.set_modified(long_ago).expect("set");
            }
        }
        remove_incomplete_files(root.path(), ".index");
        let mut left: Vec<_> = fs::read_dir(root.path())
            .expect("a directory")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["key.index", "other.index.newDeF", "theirs.newGhI"]);
    }
}
