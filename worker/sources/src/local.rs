//! Reads ranges of local files. A range in the page cache is read without blocking. Any other range is read by one blocking call,
//! which opens the file, and reads into uninitialized memory. The version of the file is checked before and after each read, so
//! that the bytes of a file that is written meanwhile are never returned.
//!
//! Files with resolved paths are opened without following symbolic links.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use feedline_data::manifest::ShardRef;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, fstatfs, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::error::{SourceError, local_denied_reason};

/// Maximum size of a read on the calling thread. Copying more bytes would block the thread for too long.
const MAX_CACHED_READ_BYTES: u64 = 1 << 20;
/// Magic numbers of file systems that open files without a request to another host or process: ext2 to ext4, XFS, Btrfs, F2FS,
/// tmpfs.
const LOCAL_FILE_SYSTEMS: [u32; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
/// Maximum resolution of modification times, and that of file systems such as FAT, whose times are whole seconds.
const TIMESTAMP_TICK: Duration = Duration::from_millis(20);
const COARSE_TICK: Duration = Duration::from_secs(2);
/// Maximum number of entries in [`CACHED_READ_FOLDERS`].
const MAX_FOLDERS: usize = 1 << 16;

/// Maps a directory to whether cached pages of its files can be read without blocking.
static CACHED_READ_FOLDERS: LazyLock<RwLock<HashMap<PathBuf, bool>>> = LazyLock::new(RwLock::default);

/// A local file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LocalFile {
    path: PathBuf,
    /// Whether the path contains no symbolic links, so that opening the file must not follow links.
    is_plain: bool,
}

impl LocalFile {
    /// The file at a path that may contain symbolic links.
    pub(crate) fn linked(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), is_plain: false }
    }

    /// The file at a path without symbolic links.
    pub(crate) fn plain(path: PathBuf) -> Self {
        Self { path, is_plain: true }
    }

    fn open(&self) -> io::Result<File> {
        if !self.is_plain {
            return File::open(&self.path);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match openat2(CWD, self.path.as_path(), flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Err(error) if is_unsupported(error) => open_verified(&self.path),
            opened => Ok(File::from(opened?)),
        }
    }

    fn failed(&self, shard: &ShardRef, error: &io::Error) -> SourceError {
        if self.is_plain && Errno::from_io_error(error) == Some(Errno::LOOP) {
            let path = self.path.display();
            let message = format!(
                "cannot read `{path}`: a part of the path became a symbolic link after the path was checked; do not move files \
                 while a job reads them, and restart the job"
            );
            return SourceError::Rejected { message };
        }
        match error.kind() {
            // The listed file was removed.
            ErrorKind::NotFound => SourceError::ShardChanged { url: shard.url.clone() },
            ErrorKind::PermissionDenied => {
                SourceError::Denied { url: shard.url.clone(), reason: local_denied_reason() }
            }
            _ => SourceError::Store { url: shard.url.clone(), reason: error.to_string(), retryable: false },
        }
    }
}

/// Whether the kernel or a sandbox does not support a system call.
fn is_unsupported(error: Errno) -> bool {
    matches!(error, Errno::NOSYS | Errno::PERM)
}

/// Opens a file and then checks that no link was followed, for kernels without `openat2`.
fn open_verified(path: &Path) -> io::Result<File> {
    let file = File::open(path)?;
    let opened = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if opened == path { Ok(file) } else { Err(Errno::LOOP.into()) }
}

/// Returns the metadata of a path without following links. The last component may be a link. Fails if any other component is
/// a link.
pub(crate) fn metadata_without_links(path: &Path) -> io::Result<Metadata> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
        Err(error) if is_unsupported(error) => metadata_verified(path),
        opened => File::from(opened?).metadata(),
    }
}

/// Implements [`metadata_without_links`] for kernels without `openat2`.
fn metadata_verified(path: &Path) -> io::Result<Metadata> {
    let found = path.symlink_metadata()?;
    let is_plain = match path.parent() {
        Some(folder) => std::fs::canonicalize(folder)? == folder,
        None => true,
    };
    if is_plain { Ok(found) } else { Err(Errno::LOOP.into()) }
}

fn can_read_cached(path: &Path) -> bool {
    let folders = CACHED_READ_FOLDERS.read().unwrap_or_else(PoisonError::into_inner);
    path.parent().and_then(|folder| folders.get(folder)).is_some_and(|can_read| *can_read)
}

/// Records whether the directory of an open file is on a local file system.
fn record_folder(path: &Path, is_local: impl FnOnce() -> bool) {
    let Some(folder) = path.parent() else { return };
    let is_known = CACHED_READ_FOLDERS.read().unwrap_or_else(PoisonError::into_inner).contains_key(folder);
    if !is_known {
        let is_local = is_local();
        let mut folders = CACHED_READ_FOLDERS.write().unwrap_or_else(PoisonError::into_inner);
        if folders.len() < MAX_FOLDERS {
            folders.insert(folder.to_owned(), is_local);
        }
    }
}

fn disable_cached_reads(path: &Path) {
    if let Some(folder) = path.parent() {
        CACHED_READ_FOLDERS.write().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned(), false);
    }
}

/// Reads a range of the shard's file without blocking. Returns `None` if the path or the pages are not cached, if [`read`] has not
/// recorded the directory, or on an error. In these cases the caller must call [`read`].
pub(crate) fn read_cached(local: &LocalFile, shard: &ShardRef, range: &Range<u64>) -> Option<Bytes> {
    let path = local.path.as_path();
    let length = range.end - range.start;
    if length > MAX_CACHED_READ_BYTES || !can_read_cached(path) {
        return None;
    }
    let on_error = |error: Errno| {
        if matches!(error, Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) {
            disable_cached_reads(path);
        }
    };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let links = if local.is_plain { ResolveFlags::NO_SYMLINKS } else { ResolveFlags::empty() };
    let opened = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED | links).map_err(on_error);
    let file = File::from(opened.ok()?);
    file.metadata().ok().filter(|metadata| is_version(metadata, shard))?;
    let mut buffer = vec![0; length as usize];
    let parts = &mut [IoSliceMut::new(&mut buffer)];
    let read = preadv2(&file, parts, range.start, ReadWriteFlags::NOWAIT).map_err(on_error).ok()?;
    // The file may have been written during the read.
    file.metadata().ok().filter(|metadata| is_version(metadata, shard))?;
    (read as u64 == length).then(|| buffer.into())
}

/// Reads a range of the shard's file. Returns fewer bytes if the file is shorter. The call may block.
pub(crate) fn read(local: &LocalFile, shard: &ShardRef, range: Range<u64>) -> Result<Bytes, SourceError> {
    let failed = |error: io::Error| local.failed(shard, &error);
    let file = local.open().map_err(failed)?;
    check_version(&file, local, shard)?;
    record_folder(&local.path, || {
        fstatfs(&file).is_ok_and(|system| LOCAL_FILE_SYSTEMS.contains(&(system.f_type as u32)))
    });
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
    // The file may have been written during the read. A write changes the modification time before it changes the bytes.
    check_version(&file, local, shard)?;
    // The buffer may have a larger capacity than requested.
    buffer.truncate(length);
    Ok(buffer.into())
}

/// Checks that an open file is the listed version of the shard.
fn check_version(file: &File, local: &LocalFile, shard: &ShardRef) -> Result<(), SourceError> {
    let metadata = file.metadata().map_err(|error| local.failed(shard, &error))?;
    if is_version(&metadata, shard) {
        return Ok(());
    }
    Err(SourceError::ShardChanged { url: shard.url.clone() })
}

/// Returns how long to wait before a file of this version is indexed. File systems update modification times in ticks of a few
/// milliseconds, so the version of a file that has just been written may not change if it is written again.
pub(crate) fn settling_time(version: &str, now: SystemTime) -> Option<Duration> {
    let micros = u64::from_str_radix(version.split('-').nth(1)?, 16).ok()?;
    let tick = if micros % 1_000_000 == 0 { COARSE_TICK } else { TIMESTAMP_TICK };
    let settled = UNIX_EPOCH.checked_add(Duration::from_micros(micros))?.checked_add(tick)?;
    let wait = settled.duration_since(now).ok()?;
    // A file from the future never settles.
    (!wait.is_zero() && wait <= tick).then_some(wait)
}

fn is_version(metadata: &Metadata, shard: &ShardRef) -> bool {
    metadata.is_file() && metadata.len() == shard.size_bytes && file_version(metadata) == shard.version
}

/// Returns the version of a local file: inode, modification time in microseconds, and size. `object_store` lists the same version in
/// quotes.
pub(crate) fn file_version(metadata: &Metadata) -> String {
    let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    let micros = modified.unwrap_or_default().as_micros();
    format!("{:x}-{micros:x}-{:x}", metadata.ino(), metadata.len())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use futures::TryStreamExt;
    use object_store::ObjectStore;
    use object_store::local::LocalFileSystem;

    use super::*;

    #[tokio::test]
    async fn reads_fail_if_the_file_differs_from_the_listed_version() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        std::fs::write(&path, b"0123456789").unwrap();
        let local = LocalFile::linked(&path);
        let store = LocalFileSystem::new_with_prefix(folder.path()).unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        let shard = ShardRef {
            url: "file:///shard".to_owned(),
            size_bytes: 10,
            version: listed[0].e_tag.as_ref().unwrap().trim_matches('"').to_owned(),
            ..ShardRef::default()
        };
        assert_eq!(read_cached(&local, &shard, &(2..7)), None, "the directory is not recorded");
        assert_eq!(read(&local, &shard, 2..7).unwrap(), b"23456"[..]);
        assert_eq!(read(&local, &shard, 8..12).unwrap(), b"89"[..]);
        // The file is in the page cache. Some systems do not support reads of cached pages only.
        let cached = read_cached(&local, &shard, &(2..7));
        assert_eq!(cached.is_some(), can_read_cached(&path));
        assert!(cached.is_none_or(|bytes| bytes == b"23456"[..]));
        assert_eq!(read_cached(&local, &shard, &(8..12)), None, "the range exceeds the file");
        let is_changed = |result| matches!(result, Err(SourceError::ShardChanged { .. }));
        std::fs::write(&path, b"0123456789+").unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
        assert_eq!(read_cached(&local, &shard, &(2..7)), None, "the version differs");
        std::fs::remove_file(&path).unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
        std::fs::create_dir(&path).unwrap();
        assert!(is_changed(read(&local, &shard, 2..7)));
    }

    /// A writer overwrites the file in place, while a reader reads its listed version.
    #[test]
    fn a_read_never_returns_bytes_of_two_versions() {
        const BYTES: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shard");
        for round in 0..20 {
            std::fs::write(&path, vec![b'a'; BYTES]).unwrap();
            let long_ago = SystemTime::now() - Duration::from_secs(3600 + round);
            File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
            let version = file_version(&path.metadata().unwrap());
            let shard = ShardRef {
                url: "file:///shard".to_owned(),
                size_bytes: BYTES as u64,
                version,
                ..ShardRef::default()
            };
            let local = LocalFile::linked(&path);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    let mut file = File::options().write(true).open(&path).unwrap();
                    for _ in 0..64 {
                        file.write_all(&[b'b'; BYTES / 64]).unwrap();
                    }
                });
                loop {
                    if let Some(bytes) = read_cached(&local, &shard, &(0..BYTES as u64)) {
                        assert!(bytes.iter().all(|byte| *byte == b'a'), "a cached read mixes two versions");
                    }
                    match read(&local, &shard, 0..BYTES as u64) {
                        Ok(bytes) => {
                            assert!(bytes.iter().all(|byte| *byte == b'a'), "a read mixes two versions")
                        }
                        Err(error) => {
                            break assert!(matches!(error, SourceError::ShardChanged { .. }), "{error}");
                        }
                    }
                }
                writer.join().unwrap();
            });
        }
    }

    #[test]
    fn a_file_that_has_just_been_written_settles_before_it_is_indexed() {
        let now = UNIX_EPOCH + Duration::from_micros(1_000_500_000);
        let at = |micros: u64| settling_time(&format!("1f-{micros:x}-64"), now);
        assert_eq!(at(1_000_500_000), Some(TIMESTAMP_TICK));
        assert_eq!(at(1_000_500_000 - 5_000), Some(TIMESTAMP_TICK - Duration::from_millis(5)));
        assert_eq!(at(1_000_500_000 - 20_000), None);
        assert_eq!(at(1_000_000_000), Some(Duration::from_millis(1_500)), "a time in whole seconds");
        assert_eq!(at(998_000_000), None);
        assert_eq!(at(2_000_000_000), None, "a time in the future");
        assert_eq!(settling_time("\"etag\"", now), None);
        assert_eq!(settling_time("1f-ffffffffffffffff-1", now), None);
    }

    #[test]
    fn a_link_that_is_created_after_the_check_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(folder.path()).unwrap();
        for name in ["in", "out"] {
            std::fs::create_dir(root.join(name)).unwrap();
        }
        let path = root.join("in/a");
        std::fs::write(&path, "0123").unwrap();
        // A hard link has the same version.
        std::fs::hard_link(&path, root.join("out/a")).unwrap();
        let found = metadata_without_links(&path).unwrap();
        let shard = ShardRef {
            url: "file:///a".to_owned(),
            size_bytes: 4,
            version: file_version(&found),
            ..ShardRef::default()
        };
        let plain = LocalFile::plain(path.clone());
        assert_eq!(read(&plain, &shard, 0..4).unwrap(), b"0123"[..]);
        assert!(open_verified(&path).is_ok() && metadata_verified(&path).is_ok());
        std::fs::rename(root.join("in"), root.join("old")).unwrap();
        std::os::unix::fs::symlink(root.join("out"), root.join("in")).unwrap();
        assert_eq!(read(&LocalFile::linked(&path), &shard, 0..4).unwrap(), b"0123"[..]);
        assert_eq!(read_cached(&plain, &shard, &(0..4)), None);
        let refused = read(&plain, &shard, 0..4).unwrap_err();
        assert!(matches!(&refused, SourceError::Rejected { .. }), "{refused}");
        assert!(refused.to_string().contains("became a symbolic link"), "{refused}");
        let is_loop = |error: io::Error| Errno::from_io_error(&error) == Some(Errno::LOOP);
        assert!(is_loop(metadata_without_links(&path).unwrap_err()));
        // Kernels without the system call detect the link too.
        assert!(is_loop(open_verified(&path).unwrap_err()) && is_loop(metadata_verified(&path).unwrap_err()));
        // The metadata of a link describes the link.
        assert!(metadata_without_links(&root.join("in")).unwrap().is_symlink());
    }
}
