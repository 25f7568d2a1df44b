//! Where local paths really lead: not into the role's own files, and not, through symbolic links, out of the folders that
//! pipelines may read.
//!
//! What was looked at is remembered, as long as the dataset lives. A link that is changed between a look and a read is found out
//! where the file's version is compared: it is another file.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use feedline_access::OwnFiles;
use feedline_core::manifest::ShardRef;
use feedline_core::urls::UrlPolicy;

use crate::local;

/// Objects that are remembered, 8 bytes each; all are forgotten when there are more.
const MOST_OBJECTS: usize = 1 << 20;
/// Folders that are remembered. Theirs is a set of their own, so that datasets of very many objects do not push them out.
const MOST_FOLDERS: usize = 1 << 16;

/// Prefixes within which local files must lie.
#[derive(Debug)]
pub(crate) struct Confine {
    pub(crate) policy: UrlPolicy,
    /// How one more folder is let be read.
    pub(crate) fix: &'static str,
}

/// What one dataset may read, of what was looked at.
#[derive(Debug)]
pub(crate) struct Links {
    own: OwnFiles,
    confines: Vec<Confine>,
    /// Nobody can make up an object whose hash is that of another: its keys are random.
    hasher: RandomState,
    objects: Mutex<HashSet<u64>>,
    folders: Mutex<HashSet<PathBuf>>,
}

impl Links {
    pub(crate) fn new(own: OwnFiles, confines: impl IntoIterator<Item = Confine>) -> Self {
        Self {
            own,
            confines: confines.into_iter().filter(|confine| !confine.policy.is_open()).collect(),
            hasher: RandomState::new(),
            objects: Mutex::default(),
            folders: Mutex::default(),
        }
    }

    /// Whether local files are read wherever they lie.
    pub(crate) fn is_free(&self) -> bool {
        self.own.is_empty() && self.confines.is_empty()
    }

    /// `check`, unless it went well for the same version of the object before.
    pub(crate) fn check_once(
        &self,
        (url, version): (&str, &str),
        check: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), String> {
        let key = self.hasher.hash_one((url, version));
        if self.objects.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return Ok(());
        }
        check()?;
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        if objects.len() >= MOST_OBJECTS {
            objects.clear();
        }
        objects.insert(key);
        Ok(())
    }

    /// Checks where a path leads. One that leads nowhere passes: who reads it says so.
    pub(crate) fn check(&self, path: &str) -> Result<(), String> {
        if self.is_free() {
            return Ok(());
        }
        // Behind a slash at the end the system would follow a link before it tells of it.
        let path = &Path::new(path).components().collect::<PathBuf>();
        // The files of a folder have the way to it in common.
        if path.parent().is_none_or(|folder| !self.is_allowed_folder(folder)) {
            return self.check_way(path);
        }
        match path.symlink_metadata() {
            Ok(found) if found.is_symlink() => self.check_way(path),
            Ok(found) => self.own.check_found(path, &found),
            Err(_) => Ok(()),
        }
    }

    /// Checks that a shard, whatever path it was listed by, is no file of the role itself: what is read is of the shard's version.
    pub(crate) fn check_version(&self, path: &str, shard: &ShardRef) -> Result<(), String> {
        match self.own.present().find(|own| own.is_file() && local::tag(own) == shard.version) {
            Some(own) => self.own.check_found(Path::new(path), &own),
            None => Ok(()),
        }
    }

    /// Whether whatever lies in a folder, links aside, may be read. Of one that is not there nothing is remembered.
    fn is_allowed_folder(&self, folder: &Path) -> bool {
        if self.folders.lock().unwrap_or_else(PoisonError::into_inner).contains(folder) {
            return true;
        }
        if !folder.is_dir() || self.check_way(folder).is_err() {
            return false;
        }
        let mut folders = self.folders.lock().unwrap_or_else(PoisonError::into_inner);
        if folders.len() >= MOST_FOLDERS {
            folders.clear();
        }
        folders.insert(folder.to_owned());
        true
    }

    /// Follows all links of a path.
    fn check_way(&self, path: &Path) -> Result<(), String> {
        self.own.check(path)?;
        let Ok(real) = std::fs::canonicalize(path) else { return Ok(()) };
        self.confines.iter().try_for_each(|confine| confine.check(path, &real))
    }
}

impl Confine {
    /// Checks that a path, its links followed, lies in one of the policy's folders, their links followed too.
    fn check(&self, path: &Path, real: &Path) -> Result<(), String> {
        let real_folder =
            |folder: String| std::fs::canonicalize(&folder).unwrap_or_else(|_| PathBuf::from(folder));
        if self.policy.folders().map(real_folder).any(|folder| real.starts_with(folder)) {
            return Ok(());
        }
        let prefixes: Vec<String> = self.policy.prefixes().map(|prefix| format!("`{prefix}`")).collect();
        Err(format!(
            "`{}` leads, through a symbolic link, outside of what may be read here ({}): remove the link, or have {} name the folder \
             that it leads to",
            path.display(),
            prefixes.join(", "),
            self.fix
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(prefixes: &[&str]) -> Links {
        let policy = UrlPolicy::new(prefixes).unwrap();
        Links::new(OwnFiles::default(), [Confine { policy, fix: "`--allow-url`" }])
    }

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
        let within = links(&[&at("in")]);
        for name in ["in/a", "in/sub/b", "in/near/b", "in", "in/absent", "in/gone"] {
            assert_eq!(within.check(&at(name)), Ok(()), "{name}");
        }
        for name in ["in/away/secret", "in/file", "in/away", "out/secret"] {
            let refused = within.check(&at(name)).unwrap_err();
            assert!(refused.contains("symbolic link") && refused.contains("--allow-url"), "{refused}");
        }
        // The allowed folder may be a link itself.
        let aliased = links(&[&at("alias")]);
        assert_eq!(aliased.check(&at("alias/a")), Ok(()));
        assert!(aliased.check(&at("alias/away/secret")).is_err());
        assert_eq!(links(&[]).check(&at("out/secret")), Ok(()));
    }

    #[test]
    fn a_prefix_behind_a_link_lets_nothing_else_through() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::create_dir_all(root.join("out/b")).unwrap();
        for file in ["out/secret", "out/b/x", "one"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        std::os::unix::fs::symlink(root.join("out"), root.join("a/link")).unwrap();
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let within = links(&[&at("a"), &at("a/link/b"), &at("one")]);
        for name in ["a/link/b/x", "a/link/b", "one"] {
            assert_eq!(within.check(&at(name)), Ok(()), "{name}");
        }
        assert!(within.check(&at("a/link/secret")).is_err());
    }

    #[test]
    fn a_folder_that_was_not_there_is_looked_at_again() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for name in ["in", "out"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        std::fs::write(root.join("out/secret"), "x").unwrap();
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let within = links(&[&at("in")]);
        assert_eq!(within.check(&at("in/later/secret")), Ok(()));
        std::os::unix::fs::symlink(root.join("out"), root.join("in/later")).unwrap();
        assert!(within.check(&at("in/later/secret")).is_err());
    }

    #[test]
    fn the_roles_own_files_are_refused_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir_all(root.join("sets")).unwrap();
        std::fs::write(root.join("token"), "x").unwrap();
        std::fs::write(root.join("sets/a"), "xy").unwrap();
        std::fs::hard_link(root.join("token"), root.join("sets/hard")).unwrap();
        std::os::unix::fs::symlink(root.join("token"), root.join("sets/link")).unwrap();
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let links = Links::new(OwnFiles::new([root.join("token")]), []);
        assert!(!links.is_free());
        for name in ["token", "sets/hard", "sets/link"] {
            assert!(links.check(&at(name)).unwrap_err().contains("keeps for itself"), "{name}");
        }
        assert_eq!(links.check(&at("sets/a")), Ok(()));
        let shard = |name: &str| {
            let found = std::fs::metadata(root.join(name)).unwrap();
            ShardRef { url: "file:///any".to_owned(), size_bytes: found.len(), version: local::tag(&found) }
        };
        assert!(links.check_version("/any", &shard("sets/hard")).is_err());
        assert_eq!(links.check_version("/any", &shard("sets/a")), Ok(()));
    }

    #[test]
    fn what_went_well_is_not_looked_at_again() {
        let links = links(&[]);
        let mut looks = 0;
        for version in ["1", "1", "2"] {
            let looked = links.check_once(("u", version), || {
                looks += 1;
                Ok(())
            });
            assert_eq!(looked, Ok(()));
        }
        assert_eq!(looks, 2, "another version is another file");
        assert!(links.check_once(("v", ""), || Err("no".to_owned())).is_err());
        assert!(links.check_once(("v", ""), || Err("no".to_owned())).is_err());
    }

    #[test]
    fn folders_stay_known_however_many_objects_there_are() {
        let links = links(&["/"]);
        let folder = tempfile::tempdir().unwrap();
        assert!(links.is_allowed_folder(folder.path()));
        for object in 0..=MOST_OBJECTS {
            links.check_once(("u", &object.to_string()), || Ok(())).unwrap();
        }
        assert!(links.objects.lock().unwrap().len() < MOST_OBJECTS);
        assert!(links.folders.lock().unwrap().contains(folder.path()));
    }
}
