//! Where local paths really lead: not into the role's own files, and not, through symbolic links, out of the folders that
//! pipelines may read.
//!
//! The way to a folder is followed once as long as it is among the folders remembered, with where it led; of what lies in it each
//! entry is looked at itself, and the links among them are followed each time. A file is then opened where its links led, and
//! through none there, so that a link that comes after the look leads nowhere. The listing of a store follows links that come
//! meanwhile, and so may tell names and sizes from elsewhere; what they name is not read.

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feedline_access::{OwnFiles, OwnFilesSnapshot};
use feedline_data::manifest::ShardRef;
use feedline_data::urls::UrlPolicy;

use crate::local::{self, LocalFile};

/// Folders that are remembered; all are forgotten when there are more. With their paths they take half a megabyte.
const MOST_FOLDERS: usize = 1 << 10;
/// Time for which the role's own files are taken to be where they were seen, by those who read shard after shard.
const LOOK: Duration = Duration::from_secs(1);

/// Prefixes within which local files must lie.
#[derive(Debug)]
pub(crate) struct AllowedFolders {
    pub(crate) policy: UrlPolicy,
    /// How one more folder is let be read.
    pub(crate) fix: &'static str,
}

/// What one dataset may read, of what was looked at.
#[derive(Debug)]
pub(crate) struct LinkPolicy {
    own: OwnFiles,
    confines: Vec<AllowedFolders>,
    seen: Mutex<Option<Arc<Seen>>>,
    /// Those whose entries may be read, links and the role's own files aside, each with the folder that its links lead to.
    folders: Mutex<HashMap<PathBuf, PathBuf>>,
}

/// The role's own files as they were seen.
#[derive(Debug)]
struct Seen {
    at: Instant,
    look: OwnFilesSnapshot,
    /// Versions of those that are files, each with what is known of it.
    versions: Vec<(String, Metadata)>,
}

impl LinkPolicy {
    pub(crate) fn new(own: OwnFiles, confines: impl IntoIterator<Item = AllowedFolders>) -> Self {
        Self {
            own,
            confines: confines.into_iter().filter(|confine| !confine.policy.is_open()).collect(),
            seen: Mutex::default(),
            folders: Mutex::default(),
        }
    }

    /// Whether local files are read wherever they lie.
    pub(crate) fn is_free(&self) -> bool {
        self.own.is_empty() && self.confines.is_empty()
    }

    /// Sees anew where the role's own files are, and where folders lead.
    pub(crate) fn look_anew(&self) {
        self.folders().clear();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Checks where a path leads and returns the file; with a shard, whatever path it was listed by, also that its version is that of no
    /// file of the role itself. A path that leads nowhere passes: who reads it says so.
    pub(crate) fn check(&self, path: &str, shard: Option<&ShardRef>) -> Result<LocalFile, String> {
        if self.is_free() {
            return Ok(LocalFile::linked(path));
        }
        let seen = self.seen();
        // With a slash at the end the system would follow a link instead of describing it.
        let path = &Path::new(path).components().collect::<PathBuf>();
        if let Some(shard) = shard
            && let Some((_, own)) = seen.versions.iter().find(|(version, _)| *version == shard.version)
        {
            seen.look.check_found(path, own)?;
        }
        // The files of a folder have the way to it in common.
        if let Some((folder, name)) = path.parent().zip(path.file_name())
            && let Some(real) = self.allowed_folder(folder, &seen.look)
        {
            let real = real.join(name);
            match local::look_at(&real) {
                Ok(found) if !found.is_symlink() => {
                    seen.look.check_found(path, &found)?;
                    return Ok(LocalFile::plain(real));
                }
                Ok(_) => {}
                // The folder may lead elsewhere by now.
                Err(_) => drop(self.folders().remove(folder)),
            }
        }
        let real = self.check_way(path, &seen.look)?;
        Ok(LocalFile::plain(real.unwrap_or_else(|| path.clone())))
    }

    fn seen(&self) -> Arc<Seen> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(seen) = seen.as_ref().filter(|seen| seen.at.elapsed() < LOOK) {
            return Arc::clone(seen);
        }
        let at = Instant::now();
        let look = self.own.look();
        let versions = look.files().map(|found| (local::tag(found), found.clone())).collect();
        Arc::clone(seen.insert(Arc::new(Seen { at, look, versions })))
    }

    /// Where a folder leads, if whatever lies in it may be read, links and entries that are the role's own by what they are
    /// aside. Of one that is not there nothing is remembered.
    fn allowed_folder(&self, folder: &Path, own: &OwnFilesSnapshot) -> Option<PathBuf> {
        if let Some(real) = self.folders().get(folder) {
            return Some(real.clone());
        }
        let real = self.check_way(folder, own).ok().flatten()?;
        if !real.is_dir() || own.may_lie_in(&real) {
            return None;
        }
        let mut folders = self.folders();
        if folders.len() >= MOST_FOLDERS {
            folders.clear();
        }
        folders.insert(folder.to_owned(), real.clone());
        Some(real)
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<PathBuf, PathBuf>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows all links of a path: to a path without any, if something is there.
    fn check_way(&self, path: &Path, own: &OwnFilesSnapshot) -> Result<Option<PathBuf>, String> {
        let real = std::fs::canonicalize(path).ok();
        own.check(path)?;
        let Some(real) = real else { return Ok(None) };
        // The links may have changed between the two looks.
        if real != path {
            own.check(&real)?;
        }
        self.confines.iter().try_for_each(|confine| confine.check(path, &real))?;
        Ok(Some(real))
    }
}

impl AllowedFolders {
    /// Checks that a path is in one of the policy's folders, after the links of both are followed.
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

    fn links(prefixes: &[&str]) -> LinkPolicy {
        let policy = UrlPolicy::new(prefixes).unwrap();
        LinkPolicy::new(OwnFiles::default(), [AllowedFolders { policy, fix: "`--allow-url`" }])
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
            assert_eq!(within.check(&at(name), None).map(drop), Ok(()), "{name}");
        }
        for name in ["in/away/secret", "in/file", "in/away", "out/secret"] {
            let refused = within.check(&at(name), None).unwrap_err();
            assert!(refused.contains("symbolic link") && refused.contains("--allow-url"), "{refused}");
        }
        // The allowed folder may be a link itself.
        let aliased = links(&[&at("alias")]);
        assert_eq!(aliased.check(&at("alias/a"), None).map(drop), Ok(()));
        assert!(aliased.check(&at("alias/away/secret"), None).is_err());
        assert_eq!(links(&[]).check(&at("out/secret"), None).map(drop), Ok(()));
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
            assert_eq!(within.check(&at(name), None).map(drop), Ok(()), "{name}");
        }
        assert!(within.check(&at("a/link/secret"), None).is_err());
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
        assert_eq!(within.check(&at("in/later/secret"), None).map(drop), Ok(()));
        std::os::unix::fs::symlink(root.join("out"), root.join("in/later")).unwrap();
        assert!(within.check(&at("in/later/secret"), None).is_err());
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
        let links = LinkPolicy::new(OwnFiles::new([root.join("token")]), []);
        assert!(!links.is_free());
        for name in ["token", "sets/hard", "sets/link"] {
            assert!(links.check(&at(name), None).unwrap_err().contains("keeps for itself"), "{name}");
        }
        assert_eq!(links.check(&at("sets/a"), None).map(drop), Ok(()));
        let shard = |name: &str| {
            let found = std::fs::metadata(root.join(name)).unwrap();
            ShardRef {
                url: "file:///any".to_owned(),
                size_bytes: found.len(),
                version: local::tag(&found),
                part: 0,
            }
        };
        let message = links.check("/any", Some(&shard("sets/hard"))).unwrap_err();
        assert!(message.starts_with("`/any` ") && message.contains(&at("token")), "{message}");
        assert_eq!(links.check("/any", Some(&shard("sets/a"))).map(drop), Ok(()));
    }

    #[test]
    fn a_link_that_comes_into_a_known_folder_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for file in ["in/a", "out/secret"] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), file).unwrap();
        }
        let path = root.join("in/a").to_str().unwrap().to_owned();
        let within = links(&[root.join("in").to_str().unwrap()]);
        assert_eq!(within.check(&path, None).map(drop), Ok(()));
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(root.join("out/secret"), &path).unwrap();
        assert!(within.check(&path, None).is_err());
    }

    #[test]
    fn a_known_folder_that_becomes_a_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for file in ["in/sub/a", "in/next/a", "out/a"] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), file).unwrap();
        }
        let path = root.join("in/sub/a").to_str().unwrap().to_owned();
        let within = links(&[root.join("in").to_str().unwrap()]);
        assert_eq!(within.check(&path, None), Ok(LocalFile::plain(root.join("in/sub/a"))));
        let replace = |to: &str| {
            std::fs::rename(root.join("in/sub"), root.join(format!("in/before-{}", to.len()))).unwrap();
            std::os::unix::fs::symlink(root.join(to), root.join("in/sub")).unwrap();
        };
        replace("out");
        assert!(within.check(&path, None).unwrap_err().contains("symbolic link"));
        // One that stays inside goes on.
        replace("in/next");
        assert_eq!(within.check(&path, None), Ok(LocalFile::plain(root.join("in/next/a"))));
    }

    #[test]
    fn a_file_behind_links_is_read_where_they_lead() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for file in ["in/v1/a", "in/v2/a"] {
            std::fs::create_dir_all(root.join(file).parent().unwrap()).unwrap();
            std::fs::write(root.join(file), file).unwrap();
        }
        let link = |to: &str, at: &str| std::os::unix::fs::symlink(root.join(to), root.join(at)).unwrap();
        link("in/v1", "in/current");
        link("in/v1/a", "in/v2/b");
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let within = links(&[&at("in")]);
        let is_at = |name: &str, real: &str| {
            assert_eq!(within.check(&at(name), None), Ok(LocalFile::plain(root.join(real))), "{name}");
        };
        is_at("in/current/a", "in/v1/a");
        is_at("in/v2/b", "in/v1/a");
        is_at("in/none", "in/none");
        std::fs::remove_file(root.join("in/current")).unwrap();
        link("in/v2", "in/current");
        // Those who read have begun with the first; who lists looks anew.
        is_at("in/current/a", "in/v1/a");
        within.look_anew();
        is_at("in/current/a", "in/v2/a");
        assert_eq!(LinkPolicy::new(OwnFiles::default(), []).check("/x", None), Ok(LocalFile::linked("/x")));
    }

    #[test]
    fn in_a_folder_with_files_of_the_role_names_count_and_data_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir(root.join("sets")).unwrap();
        for file in ["1.index", "a", "sets/1.index"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let links = LinkPolicy::new(OwnFiles::new([root.join("*.index")]), []);
        for name in ["a", "sets/1.index", "sets", "."] {
            assert_eq!(links.check(&at(name), None).map(drop), Ok(()), "{name}");
        }
        assert!(links.check(&at("1.index"), None).unwrap_err().contains("*.index"));
        // One that was not there before.
        std::fs::write(root.join("2.index"), "x").unwrap();
        assert!(links.check(&at("2.index"), None).is_err());
    }

    #[test]
    fn of_any_number_of_files_only_some_of_their_folders_are_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let within = links(&[root.to_str().unwrap()]);
        for number in 0..=MOST_FOLDERS {
            let own = root.join(number.to_string());
            std::fs::create_dir(&own).unwrap();
            for file in ["a", "b"] {
                std::fs::write(own.join(file), file).unwrap();
                assert_eq!(within.check(own.join(file).to_str().unwrap(), None).map(drop), Ok(()));
            }
            let known = within.folders.lock().unwrap();
            assert!(known.contains_key(&own) && known.len() <= MOST_FOLDERS);
        }
    }
}
