//! Writing files so that a crash leaves the old one or the new one, and saying what the system said.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
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

/// Puts `parts` into the file at `path`, durably and at once; of several processes that do so at a time, each in turn.
///
/// # Errors
/// What the system said.
pub fn replace_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = Path::new(&temporary);
    let file = lock_new(temporary)?;
    let result = write_and_rename(&file, temporary, path, parts);
    if result.is_err() {
        // What cannot be removed is overwritten the next time.
        let _ = fs::remove_file(temporary);
    }
    result?;
    sync_folder_of(path)
}

/// The file at `temporary`, which is nobody else's until it is dropped.
fn lock_new(temporary: &Path) -> io::Result<File> {
    loop {
        let file = File::options().write(true).create(true).truncate(false).open(temporary)?;
        file.lock()?;
        // Who had the lock before may have renamed or removed the file.
        let locked = file.metadata()?;
        match fs::metadata(temporary) {
            Ok(named) if (named.dev(), named.ino()) == (locked.dev(), locked.ino()) => return Ok(file),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
}

fn write_and_rename(mut file: &File, temporary: &Path, path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    // A process that was killed may have left a longer one.
    file.set_len(0)?;
    for part in parts {
        file.write_all(part)?;
    }
    file.sync_all()?;
    fs::rename(temporary, path)
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
        .and_then(|_| match fs::remove_file(&probe) {
            // Another process that checks the same directory removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

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
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0, "nothing is left");
    }

    #[test]
    fn a_file_that_several_replace_at_once_is_one_of_theirs() {
        let root = tempfile::tempdir().expect("a folder");
        let path = root.path().join("key.index");
        fs::write(root.path().join("key.index.new"), [9; 100_000]).expect("what a killed process left");
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
        assert_eq!(fs::read_dir(root.path()).expect("a folder").count(), 1, "nothing else is left");
    }
}
