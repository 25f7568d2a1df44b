//! Checks and syncs of directories, and messages for file system errors.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

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

/// Makes the name of a file durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates a directory with mode 0700 if it is missing and checks that it is writable. `flag` sets the directory.
///
/// # Errors
/// Returns an error if the directory is not writable.
pub fn prepare_directory(
    path: &Path,
    purpose: &'static str,
    flag: &'static str,
) -> Result<(), DirectoryError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| tempfile::Builder::new().prefix(".feedline-probe").tempfile_in(path))
        .map(drop)
        .map_err(|error| DirectoryError {
            purpose,
            path: path.to_owned(),
            reason: error_reason(&error),
            flag,
        })
}

/// Returns options that create a file with mode 0600. An existing file keeps its mode.
pub(crate) fn private_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
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
    use std::fs;
    use std::thread;

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
}
