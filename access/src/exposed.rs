//! Files with secrets in them that others than their owner can get at.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What a mode may allow those who do not own the file.
const OTHERS: u32 = 0o077;

/// Says in the log that others than its owner can get at a file that has `what` in it, where they can.
pub fn warn_if_exposed(what: &str, file: &Path) {
    if let Some(sentence) = exposed(what, file) {
        tracing::warn!("{sentence}");
    }
}

fn exposed(what: &str, file: &Path) -> Option<String> {
    // Of a file that is not there whoever reads it tells.
    let mode = fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let file = file.display();
    (mode & OTHERS != 0).then(|| {
        format!("{file} has {what} in it, and others than its owner can get at it (mode {mode:03o}); `chmod 600 {file}` keeps them out")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_others_can_get_at_are_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        fs::write(&file, "feedline-token-1.hunter2").unwrap();
        for (mode, is_told) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true), (0o622, true)] {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let said = exposed("a token", &file);
            assert_eq!(said.is_some(), is_told, "{mode:o}");
            assert!(
                said.is_none_or(
                    |said| said.contains(&format!("mode {mode:03o}")) && !said.contains("hunter2")
                )
            );
        }
        assert_eq!(exposed("a token", &folder.path().join("none")), None);
    }
}
