//! The store of saved indexes. A dataset is indexed only once, and afterwards only its changed shards.
//!
//! `KEY.index` is the latest index of a source. `KEY-ID.index` is an earlier index that a job may use, or that names the
//! shards that changed since a position was saved. A growing source has one index for each range of offsets that a job has read,
//! of which only the latest are retained.
//!
//! File: 8 bytes magic, format version (u32, little-endian), CRC-32C of the rest (u32), then the manifest's bytes.

mod earlier;
mod recorded;

use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use feedline_cluster::SavedIndexes;
use feedline_common::files::{FileAccess, remove_incomplete_files, replace_file};
use feedline_data::manifest::{ContentId, Manifest, is_index_id};
use feedline_data::messages::recorded_prefix;
use feedline_proto::{decode_manifest, encode_manifest};
use feedline_raft::files::{DirectoryError, error_reason, prepare_directory, write_error_fix};

const MAGIC: &[u8; 8] = b"FEEDIDX\n";
/// Version 1 contains the columns of the first rows of each shard, not of all rows.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 16;
/// Maximum number of manifests in memory. A coordinator serves few datasets at a time.
const MAX_CACHED_MANIFESTS: usize = 16;

/// The store of saved indexes.
#[derive(Debug)]
pub(crate) struct IndexStore {
    folder: PathBuf,
    /// Cached manifests, least recently used first.
    cache: Mutex<VecDeque<CachedManifest>>,
    /// The latest index files that were read or written, by key.
    latest_files: Mutex<BTreeMap<String, LatestFile>>,
    /// The lock of the thread that writes an index.
    save_lock: Mutex<()>,
    /// Indexes that are being read, by key.
    pending_loads: Mutex<BTreeMap<String, Arc<SharedLoad>>>,
}

/// A read of a saved index, which several callers share.
type SharedLoad = OnceLock<Result<Option<Arc<Manifest>>, String>>;

#[derive(Debug, Clone)]
struct CachedManifest {
    key: String,
    id: String,
    /// The fingerprint of an index of an earlier release, whose jobs refer to it by fingerprint.
    fingerprint: Option<String>,
    manifest: Arc<Manifest>,
}

impl CachedManifest {
    fn is_index(&self, key: &str, reference: &str) -> bool {
        let own = if is_index_id(reference) { Some(&self.id) } else { self.fingerprint.as_ref() };
        self.key == key && own.is_some_and(|own| own == reference)
    }
}

/// The latest index file of a source. Another process may replace the file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct LatestFile {
    id: String,
    stamp: FileStamp,
}

/// Identifies one version of a file: inode, modification time and size.
type FileStamp = (u64, i64, i64, u64);

fn stamp(metadata: &Metadata) -> FileStamp {
    (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len())
}

impl IndexStore {
    pub(crate) fn open(folder: PathBuf) -> Result<Self, DirectoryError> {
        prepare_directory(&folder, "the index directory", "--index-dir")?;
        remove_incomplete_files(&folder, ".index");
        Ok(Self {
            folder,
            cache: Mutex::default(),
            latest_files: Mutex::default(),
            save_lock: Mutex::default(),
            pending_loads: Mutex::default(),
        })
    }

    /// Returns patterns of complete and incomplete index files in `folder`. `*` matches any text.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
        ["*.index", "*.index.new*"].map(|name| folder.join(name))
    }

    /// Saves the latest index of a source durably, unless it is already saved. Retains the previous one and those that
    /// `in_use` refers to, and deletes the others. Blocks.
    pub(crate) fn save(&self, key: &str, manifest: &Arc<Manifest>, in_use: &[String]) -> Result<(), String> {
        let id = manifest.index_id();
        // Several jobs may save the same index at the same time.
        let _one_at_a_time = self.save_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(key);
        let present = std::fs::metadata(&path).ok().map(|metadata| stamp(&metadata));
        let saved = self.latest_file(key);
        // A user may have removed the file, and another process may have replaced it.
        let is_saved = |file: &LatestFile| file.id == id && Some(&file.stamp) == present.as_ref();
        if saved.as_ref().is_some_and(is_saved) {
            self.mark_recorded_used(key);
            return Ok(());
        }
        if present.is_some() {
            self.retain_latest(key, saved.filter(|file| Some(&file.stamp) == present.as_ref()), &id);
        }
        self.write(&path, manifest)?;
        self.remove_earlier(key, &id, in_use);
        self.remove_oldest_recorded(key, in_use);
        self.cache_manifest(key, id, manifest);
        Ok(())
    }

    /// Saves an earlier index of a source that a job uses. Blocks.
    pub(crate) fn save_earlier(&self, key: &str, manifest: &Arc<Manifest>) -> Result<(), String> {
        let id = manifest.index_id();
        self.write(&self.earlier_path(key, &id), manifest)?;
        self.add_to_cache(key, id, manifest);
        Ok(())
    }

    fn write(&self, path: &Path, manifest: &Manifest) -> Result<(), String> {
        let body = encode_manifest(manifest);
        let written = replace_file(path, FileAccess::Unchanged, |file| {
            file.write_all(&header(&body))?;
            file.write_all(&body)
        });
        written.map_err(|error| {
            format!(
                "cannot write the dataset index {}: {}; {}; no acknowledged data is lost",
                path.display(),
                error_reason(&error),
                write_error_fix(&error)
            )
        })
    }

    /// Loads the latest index of a source; `None` if no index is saved, or if an earlier release has written it without the columns
    /// of all rows. Simultaneous callers share one read. Blocks.
    pub(crate) fn load(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        self.load_shared(key, || self.read_current(key))
    }

    /// Reads a saved index once for all simultaneous callers.
    fn load_shared(
        &self,
        key: &str,
        read: impl FnOnce() -> Result<Option<Arc<Manifest>>, String>,
    ) -> Result<Option<Arc<Manifest>>, String> {
        let mut loads = self.pending_loads.lock().unwrap_or_else(PoisonError::into_inner);
        let load = Arc::clone(loads.entry(key.to_owned()).or_default());
        drop(loads);
        let found = load.get_or_init(read).clone();
        let mut loads = self.pending_loads.lock().unwrap_or_else(PoisonError::into_inner);
        // Later callers read the file again.
        if loads.get(key).is_some_and(|present| Arc::ptr_eq(present, &load)) {
            loads.remove(key);
        }
        found
    }

    fn read_current(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        let path = self.path(key);
        // The index of a growing source contains the offsets of a job, which cannot be found again.
        if recorded_prefix(key).is_none() && has_earlier_version(&path) {
            tracing::info!(file = %path.display(), "an earlier release saved this index; the dataset is indexed again");
            return Ok(None);
        }
        self.read(key)
    }

    fn read(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        let path = self.path(key);
        // A corrupted file is replaced even if the index is unchanged.
        self.latest_files.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        let stamp = std::fs::metadata(&path).ok().map(|metadata| stamp(&metadata));
        let Some(manifest) = read_file(&path)? else { return Ok(None) };
        let (id, manifest) = (manifest.index_id(), Arc::new(manifest));
        // An index of an earlier release is replaced even if the new index has the same id.
        if let Some(stamp) = stamp.filter(|_| !has_earlier_version(&path)) {
            self.set_latest_file(key, LatestFile { id: id.clone(), stamp });
        }
        self.add_to_cache(key, id, &manifest);
        Ok(Some(manifest))
    }

    /// Returns the index that a job was opened with. `reference` is its id, or its fingerprint if an earlier release opened
    /// the job. Blocks if the index is not in memory.
    pub(crate) fn manifest(&self, key: &str, reference: &str) -> Result<Arc<Manifest>, String> {
        if let Some(manifest) = self.cached(key, reference) {
            return Ok(manifest);
        }
        let latest = self.read(key);
        if let Ok(Some(manifest)) = &latest
            && manifest.is_index(reference)
        {
            return Ok(Arc::clone(manifest));
        }
        if let Some(manifest) = self.find_earlier(key, reference)? {
            return Ok(manifest);
        }
        match latest? {
            Some(_) => Err(
                "the job's index was replaced by the index of a later job, and is no longer stored; cancel the job and open a new job"
                    .to_owned(),
            ),
            None => Err(format!(
                "the job's index {} is missing; cancel the job and open a new job, which indexes the dataset again",
                self.path(key).display()
            )),
        }
    }

    /// Returns an index of a source with this content, which names the shards that changed since then. Blocks.
    pub(crate) fn find_content(&self, key: &str, content: &ContentId) -> Option<Arc<Manifest>> {
        if content.is_unknown() {
            return None;
        }
        let is_same = |manifest: &Arc<Manifest>| manifest.content_id().is_same_content(content);
        let latest = self.load(key).ok().flatten().filter(is_same);
        latest.or_else(|| self.earlier_indexes(key).find(is_same))
    }

    fn cached(&self, key: &str, reference: &str) -> Option<Arc<Manifest>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let place = cache.iter().position(|cached| cached.is_index(key, reference))?;
        let found = cache.remove(place)?;
        cache.push_back(found.clone());
        Some(found.manifest)
    }

    /// Remembers the latest index, which was just written.
    fn cache_manifest(&self, key: &str, id: String, manifest: &Arc<Manifest>) {
        if let Ok(metadata) = std::fs::metadata(self.path(key)) {
            self.set_latest_file(key, LatestFile { id: id.clone(), stamp: stamp(&metadata) });
        }
        self.add_to_cache(key, id, manifest);
    }

    fn add_to_cache(&self, key: &str, id: String, manifest: &Arc<Manifest>) {
        let fingerprint = (!manifest.has_digests()).then(|| manifest.fingerprint());
        let manifest = Arc::clone(manifest);
        let cached = CachedManifest { key: key.to_owned(), id, fingerprint, manifest };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|other| other.key != key || other.id != cached.id);
        cache.push_back(cached);
        if cache.len() > MAX_CACHED_MANIFESTS {
            cache.pop_front();
        }
    }

    fn latest_file(&self, key: &str) -> Option<LatestFile> {
        self.latest_files.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn set_latest_file(&self, key: &str, file: LatestFile) {
        self.latest_files.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), file);
    }

    /// Records that this process has changed the attributes of a file.
    fn set_latest_stamp(&self, key: &str, metadata: &Metadata) {
        let mut files = self.latest_files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get_mut(key) {
            file.stamp = stamp(metadata);
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.index"))
    }
}

/// Loads the indexes that the preparation of a job uses. `start` is the content id of the job's start position. Blocks.
pub(crate) fn load_saved(store: &IndexStore, key: &str, start: &ContentId) -> Result<SavedIndexes, String> {
    let latest = store.load(key)?;
    let is_start = latest.as_ref().is_some_and(|latest| latest.content_id().is_same_content(start));
    let of_start = if is_start { None } else { store.find_content(key, start) };
    Ok(SavedIndexes { latest, of_start })
}

/// Reads an index file; `None` if it does not exist.
fn read_file(path: &Path) -> Result<Option<Manifest>, String> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(format!(
                "cannot read the saved index {}: {}; check the file's owner, or remove the file to index the dataset again",
                path.display(),
                error_reason(&error)
            ));
        }
    };
    decode(&bytes).map(Some).map_err(|damage| {
        format!(
            "cannot use the saved index {}: {damage}; remove the file or run `feedline index --rebuild`",
            path.display()
        )
    })
}

fn header(body: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    header
}

/// Whether a file is an index that an earlier release has written.
fn has_earlier_version(path: &Path) -> bool {
    let mut header = [0; HEADER_BYTES];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut header));
    read.is_ok() && header[..8] == *MAGIC && (1..VERSION).contains(&version(&header))
}

fn version(header: &[u8]) -> u32 {
    u32::from_le_bytes([header[8], header[9], header[10], header[11]])
}

fn decode(bytes: &[u8]) -> Result<Manifest, String> {
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err("the file is truncated".to_owned());
    };
    if header[..8] != *MAGIC {
        return Err("the file is not a dataset index".to_owned());
    }
    let version = version(header);
    // A job that an earlier release opened continues with its index.
    if !(1..=VERSION).contains(&version) {
        return Err(format!(
            "the file has format version {version}, but this release reads versions up to {VERSION}"
        ));
    }
    if header[12..] != crc32c::crc32c(body).to_le_bytes() {
        return Err("the file checksum does not match".to_owned());
    }
    decode_manifest(body)
}

/// Decodes `bytes` as an index file, and as the body of an index file.
pub(crate) fn read_any(bytes: &[u8]) {
    for file in [bytes.to_vec(), [&header(bytes)[..], bytes].concat()] {
        if let Ok(manifest) = decode(&file) {
            assert!(manifest.is_index(&manifest.index_id()));
            assert_eq!(manifest.content_id().is_unknown(), !manifest.has_digests());
        }
    }
}

#[cfg(test)]
mod tests;
