//! Warnings about files with secrets that other users can access.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Permission bits of the group and of other users.
const NON_OWNER_BITS: u32 = 0o077;
/// The permission of the group to read.
const GROUP_READ_BIT: u32 = 0o040;
/// The link through which the kubelet replaces all files of a mounted Secret at once.
const KUBELET_LINK: &str = "..data";

/// Logs a warning if other users can access a file that contains `what`.
pub fn warn_if_exposed(what: &str, file: &Path) {
    if let Some(warning) = exposure_warning(what, file) {
        tracing::warn!("{warning}");
    }
}

fn exposure_warning(what: &str, file: &Path) -> Option<String> {
    // A missing file is reported by the code that reads it.
    let mode = fs::metadata(file).ok()?.permissions().mode() & 0o777;
    let is_mounted = is_mounted_by_kubelet(file);
    // The kubelet owns the files of a mounted Secret. The pod reads them as a member of their group (`fsGroup`).
    let allowed = if is_mounted { GROUP_READ_BIT } else { 0 };
    if mode & NON_OWNER_BITS & !allowed == 0 {
        return None;
    }
    let file = file.display();
    let fix = if is_mounted {
        "set defaultMode: 0440 in the volume, and fsGroup in the pod".to_owned()
    } else {
        format!("run `chmod 600 {file}`")
    };
    Some(format!("other users can access {file}, which contains {what} (mode {mode:03o}); {fix}"))
}

fn is_mounted_by_kubelet(file: &Path) -> bool {
    let link = file.parent().map(|folder| folder.join(KUBELET_LINK));
    link.and_then(|link| fs::symlink_metadata(link).ok()).is_some_and(|found| found.is_symlink())
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
            [(0o600, false), (0o400, false), (0o440, true), (0o640, true), (0o604, true), (0o622, true)]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let warning = exposure_warning("a token", &file);
            assert_eq!(warning.is_some(), is_exposed, "{mode:o}");
            let text = format!("mode {mode:03o}");
            assert!(warning.is_none_or(|warning| warning.contains(&text) && !warning.contains("hunter2")));
        }
        assert_eq!(exposure_warning("a token", &folder.path().join("none")), None);
    }

    #[test]
    fn the_group_may_read_a_secret_that_the_kubelet_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("..2026")).unwrap();
        let target = path("..2026").join("token");
        fs::write(&target, "feedline-token-1.hunter2").unwrap();
        std::os::unix::fs::symlink("..2026", path("..data")).unwrap();
        std::os::unix::fs::symlink("..data/token", path("token")).unwrap();
        for (mode, is_exposed) in
            [(0o400, false), (0o440, false), (0o640, false), (0o660, true), (0o444, true), (0o644, true)]
        {
            fs::set_permissions(&target, fs::Permissions::from_mode(mode)).unwrap();
            let warning = exposure_warning("a token", &path("token"));
            assert_eq!(warning.is_some(), is_exposed, "{mode:o}");
            assert!(warning.is_none_or(|warning| warning.contains("set defaultMode: 0440")));
        }
    }
}
