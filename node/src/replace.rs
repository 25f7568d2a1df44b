//! Replaces files atomically: after a crash, a full disk or concurrent writes, a file has either its old or its new
//! content.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use tempfile::NamedTempFile;

/// Replaces the content of the file at `path` with the output of `write`. The permissions do not change. A new file has
/// the default permissions.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut NamedTempFile) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = create_temporary(path)?;
    write(&mut file)?;
    if let Ok(replaced) = fs::metadata(path) {
        file.as_file().set_permissions(replaced.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    // Sync the directory, so that the new name survives a crash.
    File::open(folder_of(path))?.sync_all()
}

/// Creates a temporary file in the directory of `path`.
pub(crate) fn create_temporary(path: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().permissions(Permissions::from_mode(0o666)).tempfile_in(folder_of(path))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
