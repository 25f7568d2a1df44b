//! Files of a role that nothing it does for others reads, by whatever path, link or mount they are named: its keys, its token,
//! the cluster's secret, and the files in which it keeps what is of all its callers. A folder that merely holds some of them is
//! not among them: data may lie beside.
//!
//! They are looked up anew at each check, since keys are exchanged and files made while a role runs. Who checks many paths in a
//! row takes one look for all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Files and folders of a role itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnFiles {
    paths: Vec<PathBuf>,
}

/// Where they are, as it was seen at one moment.
#[derive(Debug)]
pub struct OwnFilesSnapshot {
    places: Vec<Place>,
}

/// One of the paths.
#[derive(Debug)]
struct Place {
    given: PathBuf,
    /// The folder in which its last part lies, or its first with a `*`; links are followed.
    begin: PathBuf,
    /// The parts from there on.
    parts: Vec<OsString>,
    /// What is there by just this name.
    found: Option<Metadata>,
}

/// Device and inode: what a file is, by whatever name.
type Id = (u64, u64);

/// A path without links, and the folders above it, each with what it is.
type Way<'a> = [(&'a Path, Option<Id>)];

impl OwnFiles {
    /// These files, and these folders with all that lies below them. They need not be there yet. In a part of a path `*` stands
    /// for any text.
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

    /// Sees where they are now.
    pub fn look(&self) -> OwnFilesSnapshot {
        OwnFilesSnapshot { places: self.paths.iter().map(|path| Place::new(path)).collect() }
    }

    /// Checks where a path leads. Of one that leads nowhere its nearest folder is looked at.
    ///
    /// # Errors
    /// One sentence where that is one of these, or lies below one; it names which.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        self.look().check(path)
    }
}

impl OwnFilesSnapshot {
    /// As [`OwnFiles::check`].
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, path: &Path) -> Result<(), String> {
        if self.places.is_empty() {
            return Ok(());
        }
        // Links that the kernel makes up, such as those in /proc, lead elsewhere than their text.
        let itself = fs::metadata(path).ok().map(|found| id(&found));
        let real = follow(path);
        let way = way(&real);
        let is_own = |place: &&Place| {
            path.starts_with(&place.given) || place.holds(&way) || itself.is_some() && itself == place.id()
        };
        self.places.iter().find(is_own).map_or(Ok(()), |place| Err(place.refuse(path)))
    }

    /// Checks a file or folder of which only the way to it was looked at; `found` tells of it.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_found(&self, path: &Path, found: &Metadata) -> Result<(), String> {
        let found = Some(id(found));
        let own = self.places.iter().find(|place| place.id() == found);
        own.map_or(Ok(()), |place| Err(place.refuse(path)))
    }

    /// Checks a folder that is gone through. `finds` tells whether that would come upon a path below it, in which `*` stands for
    /// any text in a part.
    ///
    /// # Errors
    /// One sentence where it would come upon one of these.
    pub fn check_listing(&self, folder: &Path, mut finds: impl FnMut(&Path) -> bool) -> Result<(), String> {
        let real = follow(folder);
        let is_found = |place: &&Place| place.below(&real).is_some_and(|path| finds(&path));
        self.places.iter().find(is_found).map_or(Ok(()), |place| Err(place.refuse(folder)))
    }

    /// Whether names in a folder that may be read tell which of its entries are among these.
    pub fn may_lie_in(&self, folder: &Path) -> bool {
        let real = follow(folder);
        let way = way(&real);
        self.places.iter().any(|place| place.may_lie_below(&way))
    }

    /// What is known of those that are files and there.
    pub fn files(&self) -> impl Iterator<Item = &Metadata> {
        self.places.iter().filter_map(|place| place.found.as_ref()).filter(|found| found.is_file())
    }
}

impl Place {
    fn new(given: &Path) -> Self {
        let parts: Vec<Component<'_>> = given.components().collect();
        let has_star = |part: &Component<'_>| part.as_os_str().as_bytes().contains(&b'*');
        let names_last = usize::from(matches!(parts.last(), Some(Component::Normal(_))));
        let first = parts.iter().position(has_star);
        let (begin, rest) = parts.split_at(first.unwrap_or(parts.len() - names_last));
        let begin: PathBuf = begin.iter().collect();
        let here = begin.as_os_str().is_empty();
        Self {
            given: given.to_owned(),
            begin: follow(if here { Path::new(".") } else { &begin }),
            parts: rest.iter().map(|part| part.as_os_str().to_owned()).collect(),
            // A name may have a `*` in it.
            found: fs::metadata(given).ok(),
        }
    }

    fn id(&self) -> Option<Id> {
        self.found.as_ref().map(id)
    }

    /// Whether this is the end of a way, or a folder on it.
    fn holds(&self, way: &Way<'_>) -> bool {
        let is_on_it = self.found.is_some() && way.iter().any(|(_, id)| *id == self.id());
        is_on_it || self.behind(way).any(|path| path.components().count() >= self.parts.len())
    }

    /// Whether this may lie below the end of a way without being known by what it is.
    fn may_lie_below(&self, way: &Way<'_>) -> bool {
        self.behind(way).any(|path| path.components().count() < self.parts.len())
    }

    /// What of a way comes behind the place where this begins, as far as their parts are alike.
    fn behind<'a>(&self, way: &'a Way<'a>) -> impl Iterator<Item = &'a Path> {
        let begin = fs::metadata(&self.begin).ok().map(|found| id(&found));
        let whole = way.first().map_or(Path::new(""), |(path, _)| *path);
        let is_begin = move |(folder, id): &&(&Path, Option<Id>)| {
            *folder == self.begin || begin.is_some() && *id == begin
        };
        let behind = way.iter().filter(is_begin);
        let behind = behind.filter_map(move |(folder, _)| whole.strip_prefix(folder).ok());
        behind.filter(move |path| {
            path.components().zip(&self.parts).all(|(name, part)| is_like(name.as_os_str(), part))
        })
    }

    /// Its path from a folder on, if it lies below; of a folder that of whatever it holds.
    fn below(&self, folder: &Path) -> Option<PathBuf> {
        let whole = self.parts.iter().fold(self.begin.clone(), |path, part| path.join(part));
        let mut path = whole.strip_prefix(folder).ok()?.to_owned();
        if self.found.as_ref().is_some_and(Metadata::is_dir) {
            path.push("*");
        }
        Some(path)
    }

    fn refuse(&self, path: &Path) -> String {
        // What the kernel tells lies where it lies.
        let is_moved = !self.given.starts_with("/proc");
        let or_move = if is_moved { ", or start that role with it elsewhere" } else { "" };
        format!(
            "`{}` is not read: it is, leads to or holds `{}`, which a coordinator or worker keeps for itself, as it does its keys, \
             tokens, log, indexes and kept rows: name files without it{or_move}",
            path.display(),
            self.given.display()
        )
    }
}

fn id(found: &Metadata) -> Id {
    (found.dev(), found.ino())
}

/// A path with its links followed, as far as it is there.
fn follow(path: &Path) -> PathBuf {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for place in whole.ancestors() {
        let Ok(real) = fs::canonicalize(place) else { continue };
        return match whole.strip_prefix(place) {
            Ok(rest) if !rest.as_os_str().is_empty() => real.join(rest),
            _ => real,
        };
    }
    whole
}

fn way(real: &Path) -> Vec<(&Path, Option<Id>)> {
    real.ancestors().map(|place| (place, fs::metadata(place).ok().map(|found| id(&found)))).collect()
}

/// Whether a name is as a pattern says, in which `*` stands for any text.
fn is_like(name: &OsStr, pattern: &OsStr) -> bool {
    let mut texts = pattern.as_bytes().split(|byte| *byte == b'*');
    let first = texts.next().unwrap_or_default();
    let Some(name) = name.as_bytes().strip_prefix(first) else { return false };
    let Some(last) = texts.next_back() else { return name.is_empty() };
    let Some(mut between) = name.strip_suffix(last) else { return false };
    for text in texts.filter(|text| !text.is_empty()) {
        let Some(at) = between.windows(text.len()).position(|part| part == text) else { return false };
        between = &between[at + text.len()..];
    }
    true
}

#[cfg(test)]
mod tests;
