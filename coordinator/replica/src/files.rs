//! Writing files so that a crash leaves the old one or the new one, and saying what the system said.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {purpose} {path}: {reason}; choose a directory that this user can write to")]
pub struct DirectoryError {
    /// What the directory is for.
    pub purpose: &'static str,
    /// The directory.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
}

/// Puts `parts` into the file at `path`, durably and at once.
///
/// # Errors
/// What the system said.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let result = write_and_rename(Path::new(&temporary), path, parts);
    if result.is_err() {
        // What cannot be removed is overwritten the next time.
        let _ = fs::remove_file(&temporary);
    }
    result
}

fn write_and_rename(temporary: &Path, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::create(temporary)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(temporary, path)?;
    sync_folder_of(path)
}

/// Makes a file's name durable.
pub(crate) fn sync_folder_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Creates the directory where it is missing and checks that files can be written to it.
///
/// # Errors
/// When that is not so: one sentence with the fix.
pub fn prepare_directory(path: &Path, purpose: &'static str) -> Result<(), DirectoryError> {
    let probe = path.join(".feedline-probe");
    fs::create_dir_all(path)
        .and_then(|()| File::create(&probe))
        .and_then(|_| fs::remove_file(&probe))
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

/// What to do about an error while writing.
pub fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free some space",
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => "make it writable",
        _ => "check the disk",
    }
}
