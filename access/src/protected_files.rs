//! Protected files of a role, which no pipeline may read through any path, link or mount: keys, tokens, the cluster secret,
//! logs, indexes and cached rows. A directory that only contains a protected file is not protected, so data may be in the
//! same directory.
//!
//! Each check looks the files up again, because keys are replaced and files are created while a role runs. A caller that
//! checks many paths uses one snapshot.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Protected files and directories of a role.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProtectedFiles {
    paths: Vec<PathBuf>,
}

/// The locations of the protected files at one time.
#[derive(Debug)]
pub struct ProtectedFilesSnapshot {
    paths: Vec<ProtectedPath>,
}

/// A protected path.
#[derive(Debug)]
struct ProtectedPath {
    /// The path as configured.
    given: PathBuf,
    /// The parent directory of the last component, or of the first component with a `*`. Contains no symbolic links.
    base: PathBuf,
    /// The components below `base`.
    components: Vec<OsString>,
    /// Metadata of the file with exactly this name.
    metadata: Option<Metadata>,
}

/// Device and inode, which identify a file independently of its name.
type FileId = (u64, u64);

/// A path without symbolic links and its parent directories, each with its id.
type Ancestry<'a> = [(&'a Path, Option<FileId>)];

impl ProtectedFiles {
    /// Protects files, and directories with everything below them. They do not have to exist. In a component, `*` matches
    /// any text.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        // An empty path is a prefix of every path.
        Self { paths: paths.into_iter().filter(|path| !path.as_os_str().is_empty()).collect() }
    }

    /// Returns whether no path is protected.
    pub fn is_empty(&self) -> bool {
        self.paths.is_empty()
    }

    /// Returns the paths as configured.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.paths.iter().map(PathBuf::as_path)
    }

    /// Returns the current locations of the protected files.
    pub fn snapshot(&self) -> ProtectedFilesSnapshot {
        ProtectedFilesSnapshot { paths: self.paths.iter().map(|path| ProtectedPath::new(path)).collect() }
    }

    /// Checks the target of a path. For a path that does not exist, the nearest existing directory is checked.
    ///
    /// # Errors
    /// Returns a message that names the protected path, if the target is protected.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        self.snapshot().check(path)
    }
}

impl ProtectedFilesSnapshot {
    /// Checks the target of a path, like [`ProtectedFiles::check`].
    ///
    /// # Errors
    /// Returns the errors of [`ProtectedFiles::check`].
    pub fn check(&self, path: &Path) -> Result<(), String> {
        if self.paths.is_empty() {
            return Ok(());
        }
        // The text of a kernel-provided link, such as one in /proc, is not the path of its target.
        let target = fs::metadata(path).ok().map(|metadata| file_id(&metadata));
        let real = resolve_links(path);
        let ancestry = ancestry(&real);
        let is_protected = |protected: &&ProtectedPath| {
            path.starts_with(&protected.given)
                || protected.contains(&ancestry)
                || target.is_some() && target == protected.id()
        };
        self.paths.iter().find(is_protected).map_or(Ok(()), |protected| Err(protected.error(path)))
    }

    /// Checks the metadata of a file or directory whose path has already been checked.
    ///
    /// # Errors
    /// Returns the errors of [`Self::check`].
    pub fn check_metadata(&self, path: &Path, metadata: &Metadata) -> Result<(), String> {
        let id = Some(file_id(metadata));
        let protected = self.paths.iter().find(|protected| protected.id() == id);
        protected.map_or(Ok(()), |protected| Err(protected.error(path)))
    }

    /// Checks a directory before it is listed. `would_list` decides whether the listing would contain a relative path, in
    /// which `*` matches any text of a component.
    ///
    /// # Errors
    /// Returns a message if the listing would contain a protected path.
    pub fn check_listing(
        &self,
        folder: &Path,
        mut would_list: impl FnMut(&Path) -> bool,
    ) -> Result<(), String> {
        let real = resolve_links(folder);
        let is_listed =
            |protected: &&ProtectedPath| protected.relative_to(&real).is_some_and(|path| would_list(&path));
        self.paths.iter().find(is_listed).map_or(Ok(()), |protected| Err(protected.error(folder)))
    }

    /// Returns whether a readable directory may contain protected files that are identified only by name.
    pub fn may_be_in(&self, folder: &Path) -> bool {
        let real = resolve_links(folder);
        let ancestry = ancestry(&real);
        self.paths.iter().any(|protected| protected.may_be_below(&ancestry))
    }

    /// Metadata of the protected files that exist.
    pub fn files(&self) -> impl Iterator<Item = &Metadata> {
        self.paths.iter().filter_map(|path| path.metadata.as_ref()).filter(|metadata| metadata.is_file())
    }
}

impl ProtectedPath {
    fn new(given: &Path) -> Self {
        let all: Vec<Component<'_>> = given.components().collect();
        let has_star = |component: &Component<'_>| component.as_os_str().as_bytes().contains(&b'*');
        let last_is_name = usize::from(matches!(all.last(), Some(Component::Normal(_))));
        let first_star = all.iter().position(has_star);
        let (base, rest) = all.split_at(first_star.unwrap_or(all.len() - last_is_name));
        let base: PathBuf = base.iter().collect();
        let is_relative_name = base.as_os_str().is_empty();
        Self {
            given: given.to_owned(),
            base: resolve_links(if is_relative_name { Path::new(".") } else { &base }),
            components: rest.iter().map(|component| component.as_os_str().to_owned()).collect(),
            // A file name may contain a `*`.
            metadata: fs::metadata(given).ok(),
        }
    }

    fn id(&self) -> Option<FileId> {
        self.metadata.as_ref().map(file_id)
    }

    /// Returns whether a path is this path or below this path.
    fn contains(&self, ancestry: &Ancestry<'_>) -> bool {
        let has_ancestor = self.metadata.is_some() && ancestry.iter().any(|(_, id)| *id == self.id());
        has_ancestor
            || self
                .matches_below_base(ancestry)
                .any(|path| path.components().count() >= self.components.len())
    }

    /// Returns whether this path may be below another path.
    fn may_be_below(&self, ancestry: &Ancestry<'_>) -> bool {
        self.matches_below_base(ancestry).any(|path| path.components().count() < self.components.len())
    }

    /// Returns the remainder of a path below `base`, if its components match the protected components, up to the end of the
    /// shorter list.
    fn matches_below_base<'a>(&self, ancestry: &'a Ancestry<'a>) -> impl Iterator<Item = &'a Path> {
        let base_id = fs::metadata(&self.base).ok().map(|metadata| file_id(&metadata));
        let whole = ancestry.first().map_or(Path::new(""), |(path, _)| *path);
        let is_base = move |(folder, id): &&(&Path, Option<FileId>)| {
            *folder == self.base || base_id.is_some() && *id == base_id
        };
        let bases = ancestry.iter().filter(is_base);
        let rests = bases.filter_map(move |(folder, _)| whole.strip_prefix(folder).ok());
        rests.filter(move |path| {
            let mut pairs = path.components().zip(&self.components);
            pairs.all(|(name, pattern)| matches_pattern(name.as_os_str(), pattern))
        })
    }

    /// Returns the path relative to an ancestor directory. For a directory, the path ends with `*`, which represents its
    /// contents.
    fn relative_to(&self, folder: &Path) -> Option<PathBuf> {
        let whole = self.components.iter().fold(self.base.clone(), |path, component| path.join(component));
        let mut path = whole.strip_prefix(folder).ok()?.to_owned();
        if self.metadata.as_ref().is_some_and(Metadata::is_dir) {
            path.push("*");
        }
        Some(path)
    }

    fn error(&self, path: &Path) -> String {
        // Kernel files cannot be moved.
        let is_movable = !self.given.starts_with("/proc");
        let or_move = if is_movable { ", or move the protected files" } else { "" };
        format!(
            "cannot read `{}`: the path is, links to or contains the protected file `{}` of a coordinator or worker; choose other files{or_move}",
            path.display(),
            self.given.display()
        )
    }
}

fn file_id(metadata: &Metadata) -> FileId {
    (metadata.dev(), metadata.ino())
}

/// Returns the path without symbolic links. Components that do not exist stay unchanged.
fn resolve_links(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for ancestor in whole.ancestors() {
        let Ok(real) = fs::canonicalize(ancestor) else { continue };
        return match whole.strip_prefix(ancestor) {
            Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
            _ => real,
        };
    }
    whole
}

fn ancestry(real: &Path) -> Vec<(&Path, Option<FileId>)> {
    let id = |path: &Path| fs::metadata(path).ok().map(|metadata| file_id(&metadata));
    real.ancestors().map(|path| (path, id(path))).collect()
}

/// Returns whether a name matches a pattern, in which `*` matches any text.
fn matches_pattern(name: &OsStr, pattern: &OsStr) -> bool {
    let mut texts = pattern.as_bytes().split(|byte| *byte == b'*');
    let first = texts.next().unwrap_or_default();
    let Some(name) = name.as_bytes().strip_prefix(first) else { return false };
    let Some(last) = texts.next_back() else { return name.is_empty() };
    let Some(mut middle) = name.strip_suffix(last) else { return false };
    for text in texts.filter(|text| !text.is_empty()) {
        let Some(at) = middle.windows(text.len()).position(|part| part == text) else { return false };
        middle = &middle[at + text.len()..];
    }
    true
}

#[cfg(test)]
mod tests;
