//! Reads a part of a local file: at once where it lies in the system's memory, else in one blocking call, which opens,
//! compares the version, and reads into memory that was not cleared before. The store's own way takes two blocking calls, one
//! to open and one to read, and clears.

use std::fs::{File, Metadata};
use std::io::{ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use feedline_core::manifest::ShardRef;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::{ReadWriteFlags, preadv2};

use crate::error::SourceError;

/// Copying more takes a thread that others need for too long.
const MOST_AT_ONCE_BYTES: u64 = 1 << 20;

/// The bytes of the shard's file in `range`, if nothing of it has to be waited for: neither its name nor its pages, as io_uring
/// tries each call before it hands it to a thread. `None` otherwise, where the system or the file system cannot tell, and
/// where [`read`] would fail: that says why.
pub(crate) fn read_at_once(path: &Path, shard: &ShardRef, range: &Range<u64>) -> Option<Bytes> {
    let length = range.end - range.start;
    if length > MOST_AT_ONCE_BYTES {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = File::from(openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?);
    file.metadata().ok().filter(|metadata| is_version(metadata, shard))?;
    let mut buffer = vec![0; length as usize];
    let parts = &mut [IoSliceMut::new(&mut buffer)];
    let read = preadv2(&file, parts, range.start, ReadWriteFlags::NOWAIT).ok()?;
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
fn tag(metadata: &Metadata) -> String {
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
        assert_eq!(read(&path, &shard, 2..7).unwrap(), b"23456"[..]);
        assert_eq!(read(&path, &shard, 8..12).unwrap(), b"89"[..]);
        // Whether it can be told that it lies in memory depends on the file system.
        assert!(read_at_once(&path, &shard, &(2..7)).is_none_or(|bytes| bytes == b"23456"[..]));
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
