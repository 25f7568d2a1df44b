//! The folders of a cache on disk: the part that a worker claims, and in it one for each prefix.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::Prefix;

/// Workers that may share a folder.
const MAX_PARTS: usize = 256;

/// The first part of a folder that no other worker holds, and the claim on it.
pub(super) fn claim(folder: &Path) -> io::Result<(PathBuf, File)> {
    for part in 0..MAX_PARTS {
        let part = folder.join(format!("part-{part:03}"));
        std::fs::create_dir_all(&part)?;
        let file = File::options().create(true).truncate(false).write(true).open(part.join("claim"))?;
        match file.try_lock() {
            Ok(()) => return Ok((part, file)),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{MAX_PARTS} workers share it already")))
}

pub(super) fn folder_name(prefix: Prefix) -> String {
    format!("{prefix:032x}")
}

/// The folders of prefixes in a folder; nothing else in it is ours.
pub(super) fn prefix_folders(folder: &Path) -> Vec<(Prefix, PathBuf)> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let prefix = Prefix::from_str_radix(name, 16).ok().filter(|prefix| folder_name(*prefix) == name)?;
        Some((prefix, path))
    });
    ours.collect()
}

/// Bytes of all files in a folder and the folders in it.
pub(super) fn folder_bytes(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.map(of).sum()
}

/// When a folder's files were written last.
pub(super) fn newest(folder: &Path) -> SystemTime {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let times = entries.filter_map(|entry| entry.metadata().ok()?.modified().ok());
    times.max().unwrap_or(SystemTime::UNIX_EPOCH)
}
