//! The folders of a cache on disk: the part that a worker claims, and in it one for each prefix.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::cache::Prefix;

/// Workers that may share a folder.
const MAX_PARTS: usize = 256;

/// A file in the folder of a prefix; less is older.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentFile {
    modified: SystemTime,
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
}

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

/// The prefixes that have a folder, with the bytes in it, the longest ago written first; nothing else in `folder` is ours.
pub(super) fn found(folder: &Path) -> Vec<(Prefix, u64)> {
    let paths = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = paths.filter_map(|path| {
        let name = path.file_name()?.to_str()?;
        let prefix = Prefix::from_str_radix(name, 16).ok().filter(|prefix| folder_name(*prefix) == name)?;
        let files = segment_files(&path).ok()?;
        Some((files.last()?.modified, prefix, files.iter().map(|file| file.bytes).sum::<u64>()))
    });
    let mut ours: Vec<(SystemTime, Prefix, u64)> = ours.collect();
    ours.sort_unstable();
    ours.into_iter().map(|(_, prefix, bytes)| (prefix, bytes)).collect()
}

/// The files in the folder of a prefix, the oldest first; none where there is no such folder.
pub(super) fn segment_files(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        // One that is deleted meanwhile is none.
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
