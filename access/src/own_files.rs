//! Files of a role that nothing it does for others reads, by whatever path, link or mount they are named: its keys, its token,
//! the cluster's secret, and the folders in which it keeps what is of all its callers.
//!
//! They are looked up anew at each check, since keys are exchanged and folders made while a role runs.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Files and folders of a role itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnFiles {
    paths: Vec<PathBuf>,
}

/// Device and inode: what a file is, by whatever name.
type Id = (u64, u64);

impl OwnFiles {
    /// These files, and these folders with all that lies below them. They need not be there yet.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        // An empty path would be the beginning of every other.
        Self { paths: paths.into_iter().filter(|path| !path.as_os_str().is_empty()).collect() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// The paths, as they were given.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().map(PathBuf::as_path)
    }

    /// Checks where a path leads. Of one that leads nowhere its nearest folder is looked at.
    ///
    /// # Errors
    /// One sentence where that is one of these, or lies below one.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        if self.paths.is_empty() {
            return Ok(());
        }
        // Links that the kernel makes up, such as those in /proc, lead elsewhere than their text.
        let itself = fs::metadata(path).ok();
        let real = path.ancestors().find_map(|place| fs::canonicalize(place).ok()).unwrap_or_default();
        let above = real.ancestors().filter_map(|place| fs::metadata(place).ok());
        let own = self.ids();
        let is_own = self.paths.iter().any(|own| path.starts_with(own) || real.starts_with(own))
            || above.chain(itself).any(|found| own.contains(&id(&found)));
        if is_own { Err(refused(path)) } else { Ok(()) }
    }

    /// Checks a file or folder of which only the way to it was looked at; `found` tells of it.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_found(&self, path: &Path, found: &Metadata) -> Result<(), String> {
        if self.ids().contains(&id(found)) { Err(refused(path)) } else { Ok(()) }
    }

    /// What is known now of those that are there.
    pub fn present(&self) -> impl Iterator<Item = Metadata> {
        self.paths.iter().filter_map(|path| fs::metadata(path).ok())
    }

    fn ids(&self) -> Vec<Id> {
        self.present().map(|found| id(&found)).collect()
    }
}

fn id(found: &Metadata) -> Id {
    (found.dev(), found.ino())
}

fn refused(path: &Path) -> String {
    format!(
        "`{}` is one of the files that a coordinator or worker keeps for itself, such as its keys, its token and its log, which no \
         pipeline reads: read from a folder in which none of them lies",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_folders_are_known_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for made in ["keys", "data/log", "sets"] {
            fs::create_dir_all(at(made)).unwrap();
        }
        for file in ["keys/token", "keys/other", "data/log/1", "sets/a"] {
            fs::write(at(file), file).unwrap();
        }
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(at(to), at(name)).unwrap();
        link("keys/token", "sets/link");
        link("data", "sets/folder");
        fs::hard_link(at("keys/token"), at("sets/hard")).unwrap();
        let own = OwnFiles::new([at("keys/token"), at("data"), at("later")]);
        for name in [
            "keys/token",
            "keys/../keys/./token",
            "sets/link",
            "sets/hard",
            "data",
            "data/log/1",
            "data/log/none",
            "sets/folder/log/1",
            "later/x",
        ] {
            let told = own.check(&at(name)).unwrap_err();
            assert!(told.contains("keeps for itself"), "{name}: {told}");
        }
        for name in ["keys/other", "sets/a", "sets", "keys", "sets/none"] {
            assert_eq!(own.check(&at(name)), Ok(()), "{name}");
        }
        let found = |name: &str| fs::metadata(at(name)).unwrap();
        assert!(own.check_found(&at("sets/hard"), &found("sets/hard")).is_err());
        assert_eq!(own.check_found(&at("sets/a"), &found("sets/a")), Ok(()));
        // A token that was exchanged is the new one.
        fs::write(at("keys/new"), "new").unwrap();
        fs::rename(at("keys/new"), at("keys/token")).unwrap();
        assert!(own.check(&at("sets/link")).is_err());
        assert_eq!(OwnFiles::default().check(&at("keys/token")), Ok(()));
    }
}
