//! Reads a part of a local file in one blocking call: opens, compares the version, and reads into memory that was not
//! cleared before. The store's own way takes two calls, one to open and one to read, and clears.

use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use feedline_core::manifest::ShardRef;

use crate::error::SourceError;

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
    if !metadata.is_file() || metadata.len() != shard.size_bytes || tag(&metadata) != shard.version {
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
        let is_changed = |result| matches!(result, Err(SourceError::ShardChanged { .. }));
        std::fs::write(&path, b"0123456789+").unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
        std::fs::remove_file(&path).unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
        std::fs::create_dir(&path).unwrap();
        assert!(is_changed(read(&path, &shard, 2..7)));
    }
}
