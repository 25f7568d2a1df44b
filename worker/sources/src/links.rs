//! Where local paths really lead: symbolic links must not lead out of the folders that pipelines may read.
//!
//! What was looked at is remembered. A link that is changed between a look and a read is found out where the file's version is
//! compared: it is another file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use feedline_core::urls::UrlPolicy;

/// Objects and folders that are remembered; all are forgotten when there are more.
const MOST_REMEMBERED: usize = 1 << 16;

/// What may be read, of what was looked at.
#[derive(Debug, Default)]
pub(crate) struct Links {
    allowed: Mutex<HashSet<String>>,
}

impl Links {
    /// `check`, unless it went well for the same object and credentials before.
    pub(crate) fn check_once(
        &self,
        url: &str,
        credentials: Option<&str>,
        check: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        // No name of credentials has a space.
        let key = format!("{} {url}", credentials.unwrap_or_default());
        if self.is_known(&key) {
            return Ok(());
        }
        check()?;
        self.remember(key);
        Ok(())
    }

    /// Checks where a path leads. One that leads nowhere passes: who reads it says so.
    pub(crate) fn check(&self, path: &str, policy: &UrlPolicy) -> Result<(), String> {
        if policy.is_open() {
            return Ok(());
        }
        let path = Path::new(path);
        let folder = path.parent().unwrap_or(path);
        // The files of a folder have the way to it in common.
        let key = format!("folder {}", folder.display());
        if !self.is_known(&key) {
            follow(folder, policy)?;
            self.remember(key);
        }
        if path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink()) {
            follow(path, policy)
        } else {
            Ok(())
        }
    }

    fn is_known(&self, key: &str) -> bool {
        self.allowed.lock().unwrap_or_else(PoisonError::into_inner).contains(key)
    }

    fn remember(&self, key: String) {
        let mut allowed = self.allowed.lock().unwrap_or_else(PoisonError::into_inner);
        if allowed.len() >= MOST_REMEMBERED {
            allowed.clear();
        }
        allowed.insert(key);
    }
}

/// Checks that a path, its links followed, lies in one of the policy's folders, their links followed too.
fn follow(path: &Path, policy: &UrlPolicy) -> Result<(), String> {
    let Ok(real) = std::fs::canonicalize(path) else { return Ok(()) };
    let real_folder =
        |folder: String| std::fs::canonicalize(&folder).unwrap_or_else(|_| PathBuf::from(folder));
    if is_above(path, policy) || policy.folders().map(real_folder).any(|folder| real.starts_with(folder)) {
        return Ok(());
    }
    let prefixes: Vec<String> = policy.prefixes().map(|prefix| format!("`{prefix}`")).collect();
    Err(format!(
        "`{}` leads, through a symbolic link, outside of what may be read here ({}): remove the link, or have `--allow-url` name \
         the folder that it leads to",
        path.display(),
        prefixes.join(", ")
    ))
}

/// Whether a path is the folder in which one of the policy's prefixes lies: of what is in it, only that prefix itself was let
/// through by its text.
fn is_above(path: &Path, policy: &UrlPolicy) -> bool {
    policy.folders().any(|folder| Path::new(&folder).parent() == Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_lead_out_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for name in ["in/sub", "out"] {
            std::fs::create_dir_all(root.join(name)).unwrap();
        }
        for file in ["in/a", "in/sub/b", "out/secret"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(root.join(to), root.join(at)).unwrap();
        link("out", "in/away");
        link("out/secret", "in/file");
        link("in/sub", "in/near");
        link("in", "alias");
        link("nowhere", "in/gone");
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let policy = UrlPolicy::new([at("in")]).unwrap();
        let links = Links::default();
        for name in ["in/a", "in/sub/b", "in/near/b", "in", "in/absent", "in/gone"] {
            assert_eq!(links.check(&at(name), &policy), Ok(()), "{name}");
        }
        for name in ["in/away/secret", "in/file", "in/away", "out/secret"] {
            let refused = links.check(&at(name), &policy).unwrap_err();
            assert!(refused.contains("symbolic link") && refused.contains("--allow-url"), "{refused}");
        }
        // The allowed folder may be a link itself.
        let policy = UrlPolicy::new([at("alias")]).unwrap();
        let links = Links::default();
        assert_eq!(links.check(&at("alias/a"), &policy), Ok(()));
        assert!(links.check(&at("alias/away/secret"), &policy).is_err());
        assert_eq!(links.check(&at("out/secret"), &UrlPolicy::default()), Ok(()));
    }

    #[test]
    fn what_went_well_is_not_looked_at_again() {
        let links = Links::default();
        let mut looks = 0;
        for _ in 0..3 {
            let looked = links.check_once("u", None, || {
                looks += 1;
                Ok(())
            });
            assert_eq!(looked, Ok(()));
        }
        assert_eq!(looks, 1);
        assert!(links.check_once("u", Some("name"), || Err("no".to_owned())).is_err());
        assert!(links.check_once("u", Some("name"), || Err("no".to_owned())).is_err());
    }
}
