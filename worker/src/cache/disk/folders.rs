//! The folders of a disk tier: the part that a worker claims, with one folder for each prefix.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::cache::rows::Prefix;

/// The largest number of workers that share a folder.
const MAX_PARTS: usize = 256;
/// A part that is unused for this time belongs to no worker that restarts or scales up again.
const UNUSED: Duration = Duration::from_secs(24 * 3600);
/// The file that the worker of a part locks. Its modification time is the last use of the part.
const CLAIM: &str = "claim";

/// A file in the folder of a prefix. Files are ordered by age, the oldest first.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentFile {
    modified: SystemTime,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// The first part of a folder that no other worker holds, with the claim on it.
pub(super) fn claim(folder: &Path) -> io::Result<(PathBuf, File)> {
    for part in 0..MAX_PARTS {
        let part = part_folder(folder, part);
        std::fs::create_dir_all(&part)?;
        let file = File::options().create(true).truncate(false).write(true).open(part.join(CLAIM))?;
        match file.try_lock() {
            Ok(()) => {
                note_use(&part);
                return Ok((part, file));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MAX_PARTS} workers already share the folder")))
}

/// Records that a part is in use. If that fails, the times of its segments are used.
pub(super) fn note_use(part: &Path) {
    let noted = File::options().write(true).open(part.join(CLAIM));
    let _ = noted.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Deletes the rows of parts that no worker holds and that are unused for a day, the longest unused first, until all
/// parts together hold at most this number of bytes.
pub(super) fn clear_unused(folder: &Path, limit_bytes: u64) {
    let parts = (0..MAX_PARTS).map(|part| part_folder(folder, part));
    let mut parts: Vec<(SystemTime, u64, PathBuf)> = parts
        .filter_map(|part| {
            Some((last_use(&part)?, found(&part).iter().map(|(_, bytes)| bytes).sum::<u64>(), part))
        })
        .collect();
    parts.sort_unstable();
    let mut held_bytes: u64 = parts.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, part) in parts {
        if held_bytes <= limit_bytes {
            return;
        }
        match clear(&part) {
            Ok(true) => held_bytes -= bytes,
            Ok(false) => {}
            Err(error) => {
                let part = part.display();
                tracing::warn!(%part, %error, "cannot delete cached rows that are unused for a day");
            }
        }
    }
}

/// Deletes the rows of a part that no worker holds and that is unused for a day. Returns whether it did.
fn clear(part: &Path) -> io::Result<bool> {
    let claim = File::options().write(true).open(part.join(CLAIM))?;
    match claim.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let is_unused = |used| SystemTime::now().duration_since(used).is_ok_and(|unused| unused >= UNUSED);
    if !last_use(part).is_some_and(is_unused) {
        return Ok(false);
    }
    for (_, folder) in prefix_folders(part) {
        for file in segment_files(&folder)? {
            std::fs::remove_file(&file.path)?;
        }
        // Other files in the folder do not belong to the cache.
        let _ = std::fs::remove_dir(&folder);
    }
    Ok(true)
}

/// When a part was last claimed or written; `None` for a missing part.
fn last_use(part: &Path) -> Option<SystemTime> {
    let claimed = std::fs::metadata(part.join(CLAIM)).ok()?.modified().ok()?;
    let newest = |(_, folder): (Prefix, PathBuf)| Some(segment_files(&folder).ok()?.last()?.modified);
    Some(prefix_folders(part).filter_map(newest).fold(claimed, SystemTime::max))
}

fn part_folder(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:03}"))
}

pub(super) fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// The prefixes with a folder, with the bytes in it, the least recently written first. Other entries of `folder` do
/// not belong to the cache.
pub(super) fn found(folder: &Path) -> Vec<(Prefix, u64)> {
    let ours = prefix_folders(folder).filter_map(|(prefix, path)| {
        let files = segment_files(&path).ok()?;
        Some((files.last()?.modified, prefix, files.iter().map(|file| file.bytes).sum::<u64>()))
    });
    let mut ours: Vec<(SystemTime, Prefix, u64)> = ours.collect();
    ours.sort_unstable();
    ours.into_iter().map(|(_, prefix, bytes)| (prefix, bytes)).collect()
}

/// The folders of prefixes.
fn prefix_folders(folder: &Path) -> impl Iterator<Item = (Prefix, PathBuf)> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let prefix = Prefix::from_str_radix(name, 16).ok().filter(|prefix| folder_name(*prefix) == name)?;
        Some((prefix, path))
    })
}

/// The files in the folder of a prefix, the oldest first; empty if the folder is missing.
pub(super) fn segment_files(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        // A file that is deleted at the same time is ignored.
        if let Ok(metadata) = entry.metadata()
            && metadata.is_file()
        {
            let bytes = metadata.len();
            files.push(SegmentFile { modified: metadata.modified()?, path: entry.path(), bytes });
        }
    }
    files.sort_unstable();
    Ok(files)
}
