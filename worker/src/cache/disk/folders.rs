//! The directory layout of the disk tier: `part-NNN/PREFIX/SEGMENT`. Each worker claims one part.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use feedline_common::files::{create_private_folder, private_file_options};

use crate::cache::rows::Prefix;

/// Maximum number of workers that share a cache directory.
const MAX_PARTS: usize = 256;
/// Age at which an unused part can be deleted. A worker that restarts within this time finds its rows.
const UNUSED_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Name of the lock file in a part. Its modification time is the time of the part's last use.
const CLAIM_FILE: &str = "claim";

/// A segment file of a prefix. Files are ordered by modification time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentFile {
    modified: SystemTime,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

/// Claims the first part that no other worker uses. Returns the directory of the part, and the locked file.
pub(crate) fn claim_part(folder: &Path) -> io::Result<(PathBuf, File)> {
    for part in 0..MAX_PARTS {
        let part = part_folder(folder, part);
        create_private_folder(&part)?;
        let claim = part.join(CLAIM_FILE);
        let file = match private_file_options().create(true).truncate(false).write(true).open(claim) {
            // The part belongs to another user.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => {
                record_use(&part);
                return Ok((part, file));
            }
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!(
        "the directory is already in use by {MAX_PARTS} workers, which is the limit"
    )))
}

/// Records the current time as the last use of a part. If this fails, the modification times of its segments are used.
pub(super) fn record_use(part: &Path) {
    let noted = File::options().write(true).open(part.join(CLAIM_FILE));
    let _ = noted.and_then(|file| file.set_modified(SystemTime::now()));
}

/// Deletes parts that no worker has used for a day, the least recently used first, until the size of all parts is at most
/// `limit_bytes`.
pub(super) fn delete_unused_parts(folder: &Path, limit_bytes: u64) {
    let parts = (0..MAX_PARTS).map(|part| part_folder(folder, part));
    let mut parts: Vec<(SystemTime, u64, PathBuf)> = parts
        .filter_map(|part| {
            Some((last_use(&part)?, prefix_sizes(&part).iter().map(|(_, bytes)| bytes).sum::<u64>(), part))
        })
        .collect();
    parts.sort_unstable();
    let mut held_bytes: u64 = parts.iter().map(|(_, bytes, _)| bytes).sum();
    for (_, bytes, part) in parts {
        if held_bytes <= limit_bytes {
            return;
        }
        match clear_part(&part) {
            Ok(true) => held_bytes -= bytes,
            Ok(false) => {}
            Err(error) => {
                let part = part.display();
                tracing::warn!(%part, %error, "cannot delete a cache part that no worker has used for a day");
            }
        }
    }
}

/// Deletes the rows of a part if no worker has used the part for a day. Returns whether rows were deleted.
fn clear_part(part: &Path) -> io::Result<bool> {
    let claim = File::options().write(true).open(part.join(CLAIM_FILE))?;
    match claim.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let is_unused = |used| SystemTime::now().duration_since(used).is_ok_and(|unused| unused >= UNUSED_AFTER);
    if !last_use(part).is_some_and(is_unused) {
        return Ok(false);
    }
    for (_, folder) in prefix_folders(part) {
        for file in segment_files(&folder)? {
            std::fs::remove_file(&file.path)?;
        }
        // Fails if the directory contains user files, which must not be deleted.
        let _ = std::fs::remove_dir(&folder);
    }
    Ok(true)
}

/// The time at which a part was last claimed or written. `None` if the part does not exist.
fn last_use(part: &Path) -> Option<SystemTime> {
    let claimed = std::fs::metadata(part.join(CLAIM_FILE)).ok()?.modified().ok()?;
    let newest = |(_, folder): (Prefix, PathBuf)| Some(segment_files(&folder).ok()?.last()?.modified);
    Some(prefix_folders(part).filter_map(newest).fold(claimed, SystemTime::max))
}

fn part_folder(folder: &Path, part: usize) -> PathBuf {
    folder.join(format!("part-{part:03}"))
}

pub(super) fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// The prefixes in a part and the sizes of their segments, the least recently written prefix first.
pub(super) fn prefix_sizes(folder: &Path) -> Vec<(Prefix, u64)> {
    let sizes = prefix_folders(folder).filter_map(|(prefix, path)| {
        let files = segment_files(&path).ok()?;
        Some((files.last()?.modified, prefix, files.iter().map(|file| file.bytes).sum::<u64>()))
    });
    let mut sizes: Vec<(SystemTime, Prefix, u64)> = sizes.collect();
    sizes.sort_unstable();
    sizes.into_iter().map(|(_, prefix, bytes)| (prefix, bytes)).collect()
}

/// The directories of prefixes in a part. Ignores entries with other names, which are user files.
fn prefix_folders(folder: &Path) -> impl Iterator<Item = (Prefix, PathBuf)> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let prefix = Prefix::from_str_radix(name, 16).ok().filter(|prefix| folder_name(*prefix) == name)?;
        Some((prefix, path))
    })
}

/// The segment files of a prefix, the oldest first. Returns no files if the directory does not exist.
pub(super) fn segment_files(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        // Ignore files that are deleted concurrently.
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
