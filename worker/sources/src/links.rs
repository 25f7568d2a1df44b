//! Resolves symbolic links in local paths. Rejects paths that resolve to the process's own files, or to files outside of the
//! allowed directories.
//!
//! The resolved path of a directory is cached. The last component of a path is checked at each read. The file is then opened at the
//! resolved path without following links, so that a link that is created after the check has no effect. A listing may follow
//! links that are created during the listing, and reveal the names and sizes of files outside of the allowed directories. The
//! content of these files is not read.

use std::collections::HashMap;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use feedline_access::{ProtectedFiles, ProtectedFilesSnapshot};
use feedline_data::manifest::ShardRef;
use feedline_data::urls::UrlPolicy;

use crate::local::{self, LocalFile};

/// Maximum number of cached directories, which need about 0.5 MB. A full cache is cleared.
const MAX_CACHED_FOLDERS: usize = 1 << 10;
/// How long the snapshot of the process's own files is reused.
const SNAPSHOT_LIFETIME: Duration = Duration::from_secs(1);

/// Directories that a policy allows.
#[derive(Debug)]
pub(crate) struct AllowedFolders {
    pub(crate) policy: UrlPolicy,
    /// The setting to change if a directory should be allowed, for error messages.
    pub(crate) setting: &'static str,
}

/// Checks the local paths that one dataset reads.
#[derive(Debug)]
pub(crate) struct LinkPolicy {
    own: ProtectedFiles,
    allowed: Vec<AllowedFolders>,
    own_snapshot: Mutex<Option<Arc<OwnFilesCache>>>,
    /// The resolved paths of allowed directories.
    folders: Mutex<HashMap<PathBuf, PathBuf>>,
}

/// A snapshot of the process's own files.
#[derive(Debug)]
struct OwnFilesCache {
    created: Instant,
    snapshot: ProtectedFilesSnapshot,
    /// The version and the metadata of each file.
    versions: Vec<(String, Metadata)>,
}

impl LinkPolicy {
    pub(crate) fn new(own: ProtectedFiles, allowed: impl IntoIterator<Item = AllowedFolders>) -> Self {
        Self {
            own,
            allowed: allowed.into_iter().filter(|folders| !folders.policy.allows_all()).collect(),
            own_snapshot: Mutex::default(),
            folders: Mutex::default(),
        }
    }

    /// Whether every local file may be read.
    pub(crate) fn is_unrestricted(&self) -> bool {
        self.own.is_empty() && self.allowed.is_empty()
    }

    /// Clears the cached directories and the snapshot of the process's own files.
    pub(crate) fn clear_cache(&self) {
        self.folders().clear();
        *self.own_snapshot.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Checks a path. Returns the file at the resolved path. If a shard is passed, its version must differ from the versions
    /// of the process's own files, because a hard link has the version of its target. A missing file passes the check, but
    /// cannot be read.
    pub(crate) fn check(&self, path: &str, shard: Option<&ShardRef>) -> Result<LocalFile, String> {
        if self.is_unrestricted() {
            return Ok(LocalFile::linked(path));
        }
        let own_files = self.own_files();
        // Remove a trailing slash, because the system follows a link if its path ends with a slash.
        let path = &Path::new(path).components().collect::<PathBuf>();
        if let Some(shard) = shard
            && let Some((_, own)) = own_files.versions.iter().find(|(version, _)| *version == shard.version)
        {
            own_files.snapshot.check_metadata(path, own)?;
        }
        // Resolve the directory, which is usually cached, and then check the file in it.
        if let Some((folder, name)) = path.parent().zip(path.file_name())
            && let Some(real) = self.allowed_folder(folder, &own_files.snapshot)
        {
            let real = real.join(name);
            match local::metadata_without_links(&real) {
                Ok(found) if !found.is_symlink() => {
                    own_files.snapshot.check_metadata(path, &found)?;
                    return Ok(LocalFile::plain(real));
                }
                Ok(_) => {}
                // The directory may have been replaced by a link.
                Err(_) => drop(self.folders().remove(folder)),
            }
        }
        let real = self.check_resolved(path, &own_files.snapshot)?;
        Ok(LocalFile::plain(real.unwrap_or_else(|| path.clone())))
    }

    fn own_files(&self) -> Arc<OwnFilesCache> {
        let mut cache = self.own_snapshot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cached) = cache.as_ref().filter(|cached| cached.created.elapsed() < SNAPSHOT_LIFETIME) {
            return Arc::clone(cached);
        }
        let created = Instant::now();
        let snapshot = self.own.snapshot();
        let versions = snapshot.files().map(|found| (local::file_version(found), found.clone())).collect();
        Arc::clone(cache.insert(Arc::new(OwnFilesCache { created, snapshot, versions })))
    }

    /// Returns the resolved path of an allowed directory that contains no own files. `None` for all other directories. A missing directory is
    /// not cached.
    fn allowed_folder(&self, folder: &Path, own: &ProtectedFilesSnapshot) -> Option<PathBuf> {
        if let Some(real) = self.folders().get(folder) {
            return Some(real.clone());
        }
        let real = self.check_resolved(folder, own).ok().flatten()?;
        if !real.is_dir() || own.may_be_in(&real) {
            return None;
        }
        let mut folders = self.folders();
        if folders.len() >= MAX_CACHED_FOLDERS {
            folders.clear();
        }
        folders.insert(folder.to_owned(), real.clone());
        Some(real)
    }

    fn folders(&self) -> MutexGuard<'_, HashMap<PathBuf, PathBuf>> {
        self.folders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves all links in a path and checks the result. Returns `None` if the file does not exist.
    fn check_resolved(&self, path: &Path, own: &ProtectedFilesSnapshot) -> Result<Option<PathBuf>, String> {
        let real = std::fs::canonicalize(path).ok();
        own.check(path)?;
        let Some(real) = real else { return Ok(None) };
        // Check both paths, because links may have changed since they were resolved.
        if real != path {
            own.check(&real)?;
        }
        self.allowed.iter().try_for_each(|folders| folders.check(path, &real))?;
        Ok(Some(real))
    }
}

impl AllowedFolders {
    /// Checks that a resolved path is in one of the allowed directories, whose paths are resolved too.
    fn check(&self, path: &Path, real: &Path) -> Result<(), String> {
        let real_folder =
            |folder: String| std::fs::canonicalize(&folder).unwrap_or_else(|_| PathBuf::from(folder));
        if self.policy.folders().map(real_folder).any(|folder| real.starts_with(folder)) {
            return Ok(());
        }
        let prefixes: Vec<String> = self.policy.prefixes().map(|prefix| format!("`{prefix}`")).collect();
        Err(format!(
            "`{}` contains a symbolic link to a directory outside the allowed URLs ({}): remove the link, or add the target directory to {}",
            path.display(),
            prefixes.join(", "),
            self.setting
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(prefixes: &[&str]) -> LinkPolicy {
        let policy = UrlPolicy::new(prefixes).unwrap();
        LinkPolicy::new(ProtectedFiles::default(), [AllowedFolders { policy, setting: "`--allow-url`" }])
    }

    #[test]
    fn links_out_of_the_allowed_folders_are_rejected() {
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
        // The allowed directory may itself be a link.
        let aliased = links(&[&at("alias")]);
        assert_eq!(aliased.check(&at("alias/a"), None).map(drop), Ok(()));
        assert!(aliased.check(&at("alias/away/secret"), None).is_err());
        assert_eq!(links(&[]).check(&at("out/secret"), None).map(drop), Ok(()));
    }

    #[test]
    fn a_prefix_that_resolves_through_a_link_allows_only_its_target() {
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
    fn a_missing_folder_is_not_cached() {
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
    fn own_files_are_rejected_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir_all(root.join("sets")).unwrap();
        std::fs::write(root.join("token"), "x").unwrap();
        std::fs::write(root.join("sets/a"), "xy").unwrap();
        std::fs::hard_link(root.join("token"), root.join("sets/hard")).unwrap();
        std::os::unix::fs::symlink(root.join("token"), root.join("sets/link")).unwrap();
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let links = LinkPolicy::new(ProtectedFiles::new([root.join("token")]), []);
        assert!(!links.is_unrestricted());
        for name in ["token", "sets/hard", "sets/link"] {
            assert!(links.check(&at(name), None).unwrap_err().contains("the protected file"), "{name}");
        }
        assert_eq!(links.check(&at("sets/a"), None).map(drop), Ok(()));
        let shard = |name: &str| {
            let found = std::fs::metadata(root.join(name)).unwrap();
            ShardRef {
                url: "file:///any".to_owned(),
                size_bytes: found.len(),
                version: local::file_version(&found),
                ..ShardRef::default()
            }
        };
        let message = links.check("/any", Some(&shard("sets/hard"))).unwrap_err();
        assert!(message.starts_with("cannot read `/any`: ") && message.contains(&at("token")), "{message}");
        assert_eq!(links.check("/any", Some(&shard("sets/a"))).map(drop), Ok(()));
    }

    #[test]
    fn a_new_link_in_a_cached_folder_is_resolved() {
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
    fn a_cached_folder_that_becomes_a_link_is_resolved() {
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
        // A link within the allowed directories is accepted.
        replace("in/next");
        assert_eq!(within.check(&path, None), Ok(LocalFile::plain(root.join("in/next/a"))));
    }

    #[test]
    fn a_linked_file_is_read_at_its_resolved_path() {
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
        // Readers use the cached path until a listing clears the cache.
        is_at("in/current/a", "in/v1/a");
        within.clear_cache();
        is_at("in/current/a", "in/v2/a");
        assert_eq!(
            LinkPolicy::new(ProtectedFiles::default(), []).check("/x", None),
            Ok(LocalFile::linked("/x"))
        );
    }

    #[test]
    fn data_next_to_own_files_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        std::fs::create_dir(root.join("sets")).unwrap();
        for file in ["1.index", "a", "sets/1.index"] {
            std::fs::write(root.join(file), file).unwrap();
        }
        let at = |name: &str| root.join(name).to_str().unwrap().to_owned();
        let links = LinkPolicy::new(ProtectedFiles::new([root.join("*.index")]), []);
        for name in ["a", "sets/1.index", "sets", "."] {
            assert_eq!(links.check(&at(name), None).map(drop), Ok(()), "{name}");
        }
        assert!(links.check(&at("1.index"), None).unwrap_err().contains("*.index"));
        // A new file that matches the pattern of own files is rejected too.
        std::fs::write(root.join("2.index"), "x").unwrap();
        assert!(links.check(&at("2.index"), None).is_err());
    }

    #[test]
    fn the_number_of_cached_folders_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        let within = links(&[root.to_str().unwrap()]);
        for number in 0..=MAX_CACHED_FOLDERS {
            let own = root.join(number.to_string());
            std::fs::create_dir(&own).unwrap();
            for file in ["a", "b"] {
                std::fs::write(own.join(file), file).unwrap();
                assert_eq!(within.check(own.join(file).to_str().unwrap(), None).map(drop), Ok(()));
            }
            let known = within.folders.lock().unwrap();
            assert!(known.contains_key(&own) && known.len() <= MAX_CACHED_FOLDERS);
        }
    }
}
