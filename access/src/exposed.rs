//! Warnings about files with secrets that other users can access.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permission bits of the group and of other users.
const NON_OWNER_BITS: u32 = 0o077;

/// Logs a warning if other users can access a file that contains `what`.
pub fn warn_if_exposed(what: &str, file: &Path) {
    if let Some(warning) = exposure_warning(what, file) {
        tracing::warn!("{warning}");
    }
}

fn exposure_warning(what: &str, file: &Path) -> Option<String> {
    // A missing file is reported by the code that reads it.
    let mode = fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let file = file.display();
    (mode & NON_OWNER_BITS != 0).then(|| {
        format!(
            "other users can access {file}, which contains {what} (mode {mode:03o}); run `chmod 600 {file}`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_other_users_can_access_causes_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "feedline-token-1.hunter2").unwrap();
        for (mode, is_exposed) in
            [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o622, true)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let warning = exposure_warning("a token", &file);
            assert_eq!(warning.is_some(), is_exposed, "{mode:o}");
            let text = format!("mode {mode:03o}");
            assert!(warning.is_none_or(|warning| warning.contains(&text) && !warning.contains("hunter2")));
        }
        assert_eq!(exposure_warning("a token", &folder.path().join("none")), None);
    }
}
