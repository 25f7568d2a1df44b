//! Files that take the place of others as a whole: a crash or a full disk leaves the old one or the new one, and of two that are
//! written at once one.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// Replaces the file at `path` by what `write` writes; a new one has the permissions of any new file.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = new_beside(path)?;
    write(&mut file)?;
    if let Ok(replaced) = fs::metadata(path) {
        file.as_file().set_permissions(replaced.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    // The new name, too, is to outlive a crash.
    File::open(folder_of(path))?.sync_all()
}

/// A file that takes the place of `path` when it is whole.
pub(crate) fn new_beside(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
