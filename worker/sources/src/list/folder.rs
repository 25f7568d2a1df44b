//! Lists the files of a local directory.
//!
//! Every entry that may be a shard is listed or is an error, because a missing file would mean missing rows. This includes
//! symbolic links without a target, special files, and names that URLs cannot contain.

use std::collections::HashSet;
use std::fs::{self, FileType, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use feedline_data::manifest::ShardRef;
use rustix::io::Errno;
use walkdir::WalkDir;

use super::pattern::PathPattern;
use crate::error::SourceError;
use crate::local::file_version;
use crate::location::local_url;
use crate::table_roots::{DELTA_LOG, ICEBERG_METADATA, is_table_metadata};

/// Files that writers of datasets add to mark a directory.
const MARKER_FILES: [&str; 3] = ["_SUCCESS", "_metadata", "_common_metadata"];
/// Maximum number of files that are examined in a directory that may contain the metadata of a table.
const MAX_EXAMINED_FILES: usize = 1_000;

/// The entries of a directory that are shards.
#[derive(Debug)]
pub(super) enum EntrySelection {
    /// All files below the directory, except hidden files, files in hidden directories, and marker files.
    Visible,
    /// The files that match a glob.
    Glob(PathPattern),
    /// The files with these paths.
    Named(HashSet<String>),
}

impl EntrySelection {
    /// Whether a file is a shard. `path` is relative to the directory.
    pub(super) fn selects(&self, path: &str) -> bool {
        match self {
            Self::Visible => !is_hidden(path) && !is_marker(path),
            Self::Glob(pattern) => pattern.matches(path),
            Self::Named(paths) => paths.contains(path),
        }
    }

    /// Whether a directory may contain shards. `path` is relative to the directory.
    fn selects_below(&self, path: &str) -> bool {
        match self {
            Self::Visible => !is_hidden(path),
            Self::Glob(pattern) => pattern.may_match_below(path),
            Self::Named(paths) => {
                paths.iter().any(|one| one.strip_prefix(path).is_some_and(|rest| rest.starts_with('/')))
            }
        }
    }

    /// The glob; empty without one.
    pub(super) fn as_str(&self) -> &str {
        match self {
            Self::Visible | Self::Named(_) => "",
            Self::Glob(pattern) => pattern.as_str(),
        }
    }

    fn max_depth(&self) -> Option<usize> {
        match self {
            Self::Visible | Self::Named(_) => None,
            Self::Glob(pattern) => pattern.max_depth(),
        }
    }
}

fn is_hidden(path: &str) -> bool {
    path.split('/').any(|name| name.starts_with('.'))
}

fn is_marker(path: &str) -> bool {
    MARKER_FILES.contains(&path.rsplit('/').next().unwrap_or_default())
}

/// Lists the selected files below a directory. Also returns the URLs of files of Delta and Iceberg tables, selected or not.
/// Follows symbolic links. `count` is called for each file, selected or not. Blocks.
pub(super) fn list_files(
    folder: &Path,
    selection: &EntrySelection,
    mut count: impl FnMut() -> Result<(), SourceError>,
) -> Result<(Vec<ShardRef>, Vec<String>), SourceError> {
    let relative = |path: &Path| path.strip_prefix(folder).unwrap_or(path).to_string_lossy().into_owned();
    let max_depth = selection.max_depth().unwrap_or(usize::MAX);
    let (mut shards, mut of_tables) = (Vec::new(), Vec::new());
    let mut walk = WalkDir::new(folder).min_depth(1).max_depth(max_depth).follow_links(true).into_iter();
    while let Some(entry) = walk.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) => {
                check_unreadable(&error, |path| {
                    let path = relative(path);
                    (selection.selects(&path), selection.selects_below(&path))
                })?;
                continue;
            }
        };
        let path = relative(entry.path());
        if entry.file_type().is_dir() {
            let is_walked = selection.selects_below(&path);
            if !is_walked {
                walk.skip_current_dir();
            }
            if !is_walked || entry.depth() == max_depth {
                of_tables.extend(table_metadata(entry.path()));
            }
            continue;
        }
        count()?;
        let absolute = entry.path().to_string_lossy();
        if is_table_metadata(&absolute) {
            of_tables.push(local_url(&absolute));
        }
        if !selection.selects(&path) {
            continue;
        }
        match entry.metadata() {
            Ok(metadata) => shards.push(file_shard(entry.path(), &metadata)?),
            Err(error) => check_unreadable(&error, |_| (true, false))?,
        }
    }
    Ok((shards, of_tables))
}

/// Returns the URL of a file of a table in a directory that is not listed. Reads only directories whose name is that of such files.
fn table_metadata(folder: &Path) -> Option<String> {
    let name = folder.file_name()?;
    if name != DELTA_LOG && name != ICEBERG_METADATA {
        return None;
    }
    // A directory that cannot be read contains no files that the source selects.
    let files = fs::read_dir(folder).ok()?.take(MAX_EXAMINED_FILES);
    let mut urls = files.filter_map(|file| Some(local_url(file.ok()?.path().to_str()?)));
    urls.find(|url| is_table_metadata(url))
}

/// Returns the names of the directories directly below a directory, sorted, without hidden ones. Blocks.
pub(super) fn list_directories(folder: &Path) -> Result<Vec<String>, SourceError> {
    let failed = |error: io::Error| SourceError::Store {
        url: folder.display().to_string(),
        reason: error.to_string(),
        retryable: false,
    };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.file_name().unwrap_or_default().as_encoded_bytes().starts_with(b".") {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_dir() => {
                names.push(usable_path(&path)?.rsplit('/').next().unwrap_or_default().to_owned())
            }
            Ok(_) => {}
            Err(error) => check_io(&path, &error)?,
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the metadata of a file or directory. `None` if it does not exist. Blocks.
pub(super) fn find(path: &Path) -> Result<Option<Metadata>, SourceError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Ok(None),
        Err(error) => check_io(path, &error).map(|()| None),
    }
}

/// Describes a local file as a shard.
pub(super) fn file_shard(path: &Path, metadata: &Metadata) -> Result<ShardRef, SourceError> {
    if is_special(metadata.file_type()) {
        return Err(unusable(
            path,
            "the file is a named pipe, a socket or a device: remove it, or select other files",
        ));
    }
    Ok(ShardRef {
        url: local_url(usable_path(path)?),
        size_bytes: metadata.len(),
        version: file_version(metadata),
        ..ShardRef::default()
    })
}

/// Returns a path that a URL can contain.
fn usable_path(path: &Path) -> Result<&str, SourceError> {
    let text = path
        .to_str()
        .ok_or_else(|| unusable(path, "the name is not UTF-8: rename the file or its directory"))?;
    if text.contains(|character: char| character.is_ascii_control()) {
        let reason =
            "the name contains a control character, such as a line break: rename the file or its directory";
        return Err(unusable(path, reason));
    }
    Ok(text)
}

fn unusable(path: &Path, reason: &str) -> SourceError {
    SourceError::Url { url: path.display().to_string(), reason: reason.to_owned() }
}

fn is_special(file_type: FileType) -> bool {
    file_type.is_fifo() || file_type.is_socket() || file_type.is_block_device() || file_type.is_char_device()
}

/// Returns an error for an entry that cannot be listed, if it may be a shard or contain shards. `selects` returns both.
fn check_unreadable(
    error: &walkdir::Error,
    selects: impl Fn(&Path) -> (bool, bool),
) -> Result<(), SourceError> {
    let path = error.path().unwrap_or_else(|| Path::new(""));
    let (is_selected, is_selected_below) = selects(path);
    if error.loop_ancestor().is_some() && is_selected_below {
        return Err(link_error(path, "leads to a directory that contains the link: remove the link"));
    }
    match error.io_error() {
        Some(cause) if is_selected || is_selected_below => check_io(path, cause),
        _ => Ok(()),
    }
}

/// Returns the error for a path that cannot be listed, unless the path was removed.
fn check_io(path: &Path, error: &io::Error) -> Result<(), SourceError> {
    let is_loop = Errno::from_io_error(error) == Some(Errno::LOOP);
    if !is_loop && error.kind() != ErrorKind::NotFound {
        let (url, reason) = (path.display().to_string(), error.to_string());
        return Err(SourceError::Store { url, reason, retryable: false });
    }
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_symlink() && is_loop => {
            Err(link_error(path, "leads to itself: remove the link"))
        }
        Ok(metadata) if metadata.is_symlink() => {
            let target = fs::read_link(path).unwrap_or_default();
            let target = target.display();
            Err(link_error(
                path,
                &format!("leads to `{target}`, which does not exist: restore that file, or remove the link"),
            ))
        }
        _ => Ok(()),
    }
}

fn link_error(path: &Path, reason: &str) -> SourceError {
    SourceError::Url { url: path.display().to_string(), reason: format!("the symbolic link {reason}") }
}

#[cfg(test)]
mod tests;
