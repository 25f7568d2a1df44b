//! Atomic and durable replacement of files: after a crash, a full disk or concurrent writes, a file has either its old or its
//! new content. Also creates folders and files that only their owner can use.

use std::fs::{self, DirBuilder, DirEntry, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use tempfile::NamedTempFile;

/// Suffix that is appended to the final name of a file while the file is incomplete.
const INCOMPLETE_SUFFIX: &str = ".new";
/// Age above which an incomplete file is assumed to be from a killed process.
const INCOMPLETE_MAX_AGE: Duration = Duration::from_secs(24 * 3600);

/// Who can read a replaced file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileAccess {
    /// The mode of the replaced file. A new file has the default permissions of the process.
    Unchanged,
    /// Only the owner: mode 0600, at any time. For secrets.
    OwnerOnly,
}

/// Replaces the content of the file at `path` with the output of `write`, atomically and durably. If several processes replace
/// a file at the same time, the last write wins.
///
/// # Errors
/// Returns file system errors. The old content stays in place, unless only the sync of the directory failed.
pub fn replace_file(
    path: &Path,
    access: FileAccess,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = create_incomplete_file(path, access)?;
    write(file.as_file_mut())?;
    if let (FileAccess::Unchanged, Ok(replaced)) = (access, fs::metadata(path)) {
        file.as_file().set_permissions(replaced.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    // Sync the directory, so that the new name survives a crash.
    File::open(folder_of(path))?.sync_all()
}

/// Creates a temporary file in the directory of `path`. Dropping it removes it.
///
/// # Errors
/// Returns file system errors, for example if no file can be created in the directory of `path`.
pub fn create_incomplete_file(path: &Path, access: FileAccess) -> io::Result<NamedTempFile> {
    let mut prefix = path.file_name().unwrap_or_default().to_owned();
    prefix.push(INCOMPLETE_SUFFIX);
    let mode = match access {
        FileAccess::Unchanged => 0o666,
        FileAccess::OwnerOnly => 0o600,
    };
    tempfile::Builder::new()
        .prefix(&prefix)
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(folder_of(path))
}

/// Creates a folder and its missing parents with mode 0700. Existing folders keep their mode.
///
/// # Errors
/// Returns file system errors.
pub fn create_private_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Returns options that create a file with mode 0600. An existing file keeps its mode.
pub fn private_file_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
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

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests;
