//! Reads a part of a local file: at once where it lies in the system's memory, else in one blocking call, which opens,
//! compares the version, and reads into memory that was not cleared before. The store's own way takes two blocking calls, one
//! to open and one to read, and clears.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use feedline_core::manifest::ShardRef;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::error::SourceError;

/// Copying more takes a thread that others need for too long.
const MOST_AT_ONCE_BYTES: u64 = 1 << 20;
/// File systems that open a file and tell of it without asking another host or process: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs.
const OF_THIS_HOST: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// Folders are remembered up to so many.
const MOST_FOLDERS: usize = 1 << 16;

/// For each folder that was read from, whether what lies in memory can be read at once there.
static FOLDERS: LazyLock<RwLock<HashMap<PathBuf, bool>>> = LazyLock::new(RwLock::default);

fn is_at_once(path: &Path) -> bool {
    let folders = FOLDERS.read().unwrap_or_else(PoisonError::into_inner);
    path.parent().and_then(|folder| folders.get(folder)).is_some_and(|known| *known)
}

/// Remembers whether the folder of an open file is of this host, or that the system would not do it there.
fn note(path: &Path, is_of_this_host: impl FnOnce() -> bool) {
    let Some(folder) = path.parent() else { return };
    let is_known = FOLDERS.read().unwrap_or_else(PoisonError::into_inner).contains_key(folder);
    if !is_known {
        let is_of_this_host = is_of_this_host();
        let mut folders = FOLDERS.write().unwrap_or_else(PoisonError::into_inner);
        if folders.len() < MOST_FOLDERS {
            folders.insert(folder.to_owned(), is_of_this_host);
        }
    }
}

fn forget(path: &Path) {
    if let Some(folder) = path.parent() {
        FOLDERS.write().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), false);
    }
}

/// The bytes of the shard's file in `range`, if nothing of it has to be waited for: neither its name nor its pages, as io_uring
/// tries each call before it hands it to a thread. `None` otherwise, before [`read`] has seen the folder, and where that would
/// fail: it says why.
pub(crate) fn read_at_once(path: &Path, shard: &ShardRef, range: &Range<u64>) -> Option<Bytes> {
    let length = range.end - range.start;
    if length > MOST_AT_ONCE_BYTES || !is_at_once(path) {
        return None;
    }
    let supported = |error: Errno| {
        if matches!(error, Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) {
            forget(path);
        }
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).map_err(supported);
    let file = File::from(opened.ok()?);
    file.metadata().ok().filter(|metadata| is_version(metadata, shard))?;
    let mut buffer = vec![0; length as usize];
    let parts = &mut [IoSliceMut::new(&mut buffer)];
    let read = preadv2(&file, parts, range.start, ReadWriteFlags::NOWAIT).map_err(supported).ok()?;
    (read as u64 == length).then(|| buffer.into())
}

/// The bytes of the shard's file in `range`; fewer where the file is shorter. May block.
pub(crate) fn read(path: &Path, shard: &ShardRef, range: Range<u64>) -> Result<Bytes, SourceError> {
    let changed = || SourceError::ShardChanged { url: shard.url.clone() };
    let failed = |error: std::io::Error| match error.kind() {
        // It was there when it was listed.
        ErrorKind::NotFound => changed(),
        _ => SourceError::Store { url: shard.url.clone(), reason: error.to_string(), retryable: false },
    };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !is_version(&metadata, shard) {
        return Err(changed());
    }
    note(path, || fstatfs(&file).is_ok_and(|system| OF_THIS_HOST.contains(&(system.f_type as u32))));
    let length = (range.end - range.start) as usize;
    let mut buffer = Vec::with_capacity(length);
    while buffer.len() < length {
        let offset = range.start + buffer.len() as u64;
        match rustix::io::pread(&file, rustix::buffer::spare_capacity(&mut buffer), offset) {
            Ok(0) => break,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(failed(error.into())),
        }
    }
    // There may be room for more than was asked for.
    buffer.truncate(length);
    Ok(buffer.into())
}

fn is_version(metadata: &Metadata, shard: &ShardRef) -> bool {
    metadata.is_file() && metadata.len() == shard.size_bytes && tag(metadata) == shard.version
}

/// The version that `object_store` lists local files with: inode, time of change in microseconds, size.
pub(crate) fn tag(metadata: &Metadata) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let micros = modified.unwrap_or_default().as_micros();
    format!("{:x}-{micros:x}-{:x}", metadata.ino(), metadata.len())
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt;
    use object_store::ObjectStore;
    use object_store::local::LocalFileSystem;

    use super::*;

    #[tokio::test]
    async fn what_is_read_is_of_the_version_that_was_listed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        std::fs::write(&path, b"0123456789").unwrap();
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        let shard = ShardRef {
            url: "file:///shard".to_owned(),
            size_bytes: 10,
            version: listed[0].e_tag.clone().unwrap(),
        };
        assert_eq!(read_at_once(&path, &shard, &(2..7)), None, "nothing is known of the folder");
        assert_eq!(read(&path, &shard, 2..7).unwrap(), b"23456"[..]);
        assert_eq!(read(&path, &shard, 8..12).unwrap(), b"89"[..]);
        // It was just written. Some systems cannot tell what lies in memory, and are not asked again.
        let at_once = read_at_once(&path, &shard, &(2..7));
        assert_eq!(at_once.is_some(), is_at_once(&path));
        assert!(at_once.is_none_or(|bytes| bytes == b"23456"[..]));
        assert_eq!(read_at_once(&path, &shard, &(8..12)), None, "it ends before");
        let is_changed = |result| matches!(result, Err(SourceError::ShardChanged { .. }));
        std::fs::write(&path, b"0123456789+").unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
        assert_eq!(read_at_once(&path, &shard, &(2..7)), None, "it is another");
        std::fs::remove_file(&path).unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
        std::fs::create_dir(&path).unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
    }
}
