//! Reads a part of a local file: at once where it is in the system's page cache, else in one blocking call, which opens,
//! compares the version, and reads into memory that was not cleared before. The store's own way takes two blocking calls, one
//! to open and one to read, and clears.
//!
//! A file that was looked at is opened where it was seen, through no symbolic link.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use feedline_data::manifest::ShardRef;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::error::SourceError;

/// Copying more takes a thread that others need for too long.
const MOST_AT_ONCE_BYTES: u64 = 1 << 20;
/// File systems that open and describe a file without a request to another host or process: ext2 to ext4, XFS, Btrfs, F2FS, tmpfs.
const OF_THIS_HOST: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// The most folders that are remembered.
const MOST_FOLDERS: usize = 1 << 16;

/// For each folder that was read from, whether pages in the cache can be read at once.
static FOLDERS: LazyLock<RwLock<HashMap<PathBuf, bool>>> = LazyLock::new(RwLock::default);

/// A file of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFile {
    path: PathBuf,
    /// The path has no symbolic links, and none that comes is followed.
    is_plain: bool,
}

impl LocalFile {
    /// The file that a path leads to, through whatever links.
    pub(crate) fn linked(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_plain: false }
    }

    /// The file at a path on which there are no links.
    pub(crate) fn plain(path: PathBuf) -> Self {
        Self { path, is_plain: true }
    }

    fn open(&self) -> io::Result<File> {
        if !self.is_plain {
            return File::open(&self.path);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match openat2(CWD, self.path.as_path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Err(error) if is_unsupported(error) => open_compared(&self.path),
            opened => Ok(File::from(opened?)),
        }
    }

    fn failed(&self, shard: &ShardRef, error: &io::Error) -> SourceError {
        if self.is_plain && Errno::from_io_error(error) == Some(Errno::LOOP) {
            let path = self.path.display();
            let sentence = format!(
                "`{path}` is not read: it, or a folder on the way to it, became a symbolic link after it was looked at: open the \
                 job again once nothing is moved there"
            );
            return SourceError::Refused { sentence };
        }
        match error.kind() {
            // It was there when it was listed.
            ErrorKind::NotFound => SourceError::ShardChanged { url: shard.url.clone() },
            _ => SourceError::Store { url: shard.url.clone(), reason: error.to_string(), retryable: false },
        }
    }
}

/// Whether a kernel is too old for a call, or a sandbox does not let it through.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM)
}

/// Opens a file and then checks its path, where the kernel cannot refuse to follow links.
fn open_compared(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if opened == path { Ok(file) } else { Err(Errno::LOOP.into()) }
}

/// The metadata of a path, which may be a link; an error where a folder on the way is a link.
pub(crate) fn look_at(path: &Path) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(error) if is_unsupported(error) => look_compared(path),
        opened => File::from(opened?).metadata(),
    }
}

fn look_compared(path: &Path) -> io::Result<Metadata> {
    let found = path.symlink_metadata()?;
    let is_plain = match path.parent() {
        Some(folder) => std::fs::canonicalize(folder)? == folder,
        None => true,
    };
    if is_plain { Ok(found) } else { Err(Errno::LOOP.into()) }
}

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
pub(crate) fn read_at_once(local: &LocalFile, shard: &ShardRef, range: &Range<u64>) -> Option<Bytes> {
    let path = local.path.as_path();
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
    let links = if local.is_plain { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED | links).map_err(supported);
    let file = File::from(opened.ok()?);
    file.metadata().ok().filter(|metadata| is_version(metadata, shard))?;
    let mut buffer = vec![0; length as usize];
    let parts = &mut [IoSliceMut::new(&mut buffer)];
    let read = preadv2(&file, parts, range.start, ReadWriteFlags::NOWAIT).map_err(supported).ok()?;
    (read as u64 == length).then(|| buffer.into())
}

/// The bytes of the shard's file in `range`; fewer where the file is shorter. May block.
pub(crate) fn read(local: &LocalFile, shard: &ShardRef, range: Range<u64>) -> Result<Bytes, SourceError> {
    let failed = |error: io::Error| local.failed(shard, &error);
    let file = local.open().map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !is_version(&metadata, shard) {
        return Err(SourceError::ShardChanged { url: shard.url.clone() });
    }
    note(&local.path, || fstatfs(&file).is_ok_and(|system| OF_THIS_HOST.contains(&(system.f_type as u32))));
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
        let local = LocalFile::linked(&path);
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        let shard = ShardRef {
            url: "file:///shard".to_owned(),
            size_bytes: 10,
            version: listed[0].e_tag.clone().unwrap(),
            part: 0,
        };
        assert_eq!(read_at_once(&local, &shard, &(2..7)), None, "nothing is known of the folder");
        assert_eq!(read(&local, &shard, 2..7).unwrap(), b"23456"[..]);
        assert_eq!(read(&local, &shard, 8..12).unwrap(), b"89"[..]);
        // It was just written. Some systems do not report which pages are cached, and are not asked again.
        let at_once = read_at_once(&local, &shard, &(2..7));
        assert_eq!(at_once.is_some(), is_at_once(&path));
        assert!(at_once.is_none_or(|bytes| bytes == b"23456"[..]));
        assert_eq!(read_at_once(&local, &shard, &(8..12)), None, "it ends before");
        let is_changed = |result| matches!(result, Err(SourceError::ShardChanged { .. }));
        std::fs::write(&path, b"0123456789+").unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
        assert_eq!(read_at_once(&local, &shard, &(2..7)), None, "it is another");
        std::fs::remove_file(&path).unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
        std::fs::create_dir(&path).unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
    }

    #[test]
    fn a_link_that_came_after_the_look_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for name in ["in", "out"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let path = root.join("in/a");
        std::fs::write(&path, "0123").unwrap();
        // Its version says nothing: it is the same file.
        std::fs::hard_link(&path, root.join("out/a")).unwrap();
        let found = look_at(&path).unwrap();
        let shard = ShardRef { url: "file:///a".to_owned(), size_bytes: 4, version: tag(&found), part: 0 };
        let plain = LocalFile::plain(path.clone());
        assert_eq!(read(&plain, &shard, 0..4).unwrap(), b"0123"[..]);
        assert!(open_compared(&path).is_ok() && look_compared(&path).is_ok());
        std::fs::rename(root.join("in"), root.join("old")).unwrap();
        std::os::unix::fs::symlink(root.join("out"), root.join("in")).unwrap();
        assert_eq!(read(&LocalFile::linked(&path), &shard, 0..4).unwrap(), b"0123"[..]);
        assert_eq!(read_at_once(&plain, &shard, &(0..4)), None);
        let refused = read(&plain, &shard, 0..4).unwrap_err();
        assert!(matches!(&refused, SourceError::Refused { .. }), "{refused}");
        assert!(refused.to_string().contains("became a symbolic link"), "{refused}");
        let is_loop = |error: io::Error| Errno::from_io_error(&error) == Some(Errno::LOOP);
        assert!(is_loop(look_at(&path).unwrap_err()));
        // The same for kernels that have no call for it.
        assert!(is_loop(open_compared(&path).unwrap_err()) && is_loop(look_compared(&path).unwrap_err()));
        // A link itself is seen as one.
        assert!(look_at(&root.join("in")).unwrap().is_symlink());
    }
}
