//! Atomic and durable replacement of files, and messages for errors of the file system.

use std::fs::{self, DirEntry, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Follows the final name in the name of an incomplete file.
const UNFINISHED: &str = ".new";
/// Incomplete files older than this belong to killed processes.
const ABANDONED: Duration = Duration::from_secs(24 * 3600);

/// A directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {purpose} {path}: {reason}; choose a directory that this user can write to")]
pub struct DirectoryError {
    /// What the directory is for.
    pub purpose: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// The error of the system.
    pub reason: String,
}

/// Replaces the file at `path` by `parts`, atomically and durably. Of several simultaneous processes the last one wins.
///
/// # Errors
/// Errors of the file system.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(UNFINISHED);
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

/// Removes incomplete files in `folder` that killed processes left. The final names of these files end with `suffix`.
pub fn remove_unfinished(folder: &Path, suffix: &str) {
    let begun = format!("{suffix}{UNFINISHED}");
    let unfinished = |entry: &DirEntry| {
        let changed = entry.metadata().and_then(|metadata| metadata.modified()).ok();
        let age = changed.and_then(|changed| changed.elapsed().ok());
        entry.file_name().to_string_lossy().contains(&begun) && age.is_some_and(|age| age > ABANDONED)
    };
    for entry in fs::read_dir(folder).into_iter().flatten().flatten().filter(unfinished) {
        // A file that remains only occupies space.
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

/// Creates a directory if it is missing and checks that it is writable.
///
/// # Errors
/// If it is not: one sentence with a remedy.
pub fn prepare_directory(path: &Path, purpose: &'static str) -> Result<(), DirectoryError> {
    fs::create_dir_all(path)
        .and_then(|()| tempfile::Builder::new().prefix(".feedline-probe").tempfile_in(path))
        .map(drop)
        .map_err(|error| DirectoryError { purpose, path: path.to_owned(), reason: reason(&error) })
}

/// What the system said, without its error number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// The remedy for a write error.
pub fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
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
    fn processes_that_start_together_can_use_the_same_directory() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("index");
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    (0..200).for_each(|_| prepare_directory(&folder, "the index directory").expect("usable"))
                });
            }
        });
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0, "no probe file is left");
    }

    #[test]
    fn simultaneous_replacements_leave_one_complete_file() {
        let root = tempfile::tempdir().expect("a folder");
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
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 1, "no incomplete file is left");
    }

    #[test]
    fn only_old_incomplete_files_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let long_ago = SystemTime::now() - ABANDONED * 2;
        for name in ["key.index", "key.index.newAbC", "other.index.newDeF", "theirs.newGhI"] {
            let file = File::create(root.path().join(name)).expect("written");
            if name != "other.index.newDeF" {
                file.set_modified(long_ago).expect("set");
            }
        }
        remove_unfinished(root.path(), ".index");
        let mut left: Vec<_> = fs::read_dir(root.path())
            .expect("a folder")
            .map(|entry| entry.expect("read").file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["key.index", "other.index.newDeF", "theirs.newGhI"]);
    }
}
