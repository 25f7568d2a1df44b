//! The store of saved indexes, with one file per source. A dataset is indexed only once.
//!
//! File: 8 bytes magic, format version (u32, little-endian), CRC-32C of the rest (u32), then the manifest's bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use feedline_common::files::{FileAccess, remove_incomplete_files, replace_file};
use feedline_data::manifest::Manifest;
use feedline_proto::{decode_manifest, encode_manifest};
use feedline_raft::files::{DirectoryError, error_reason, prepare_directory, write_error_fix};

const MAGIC: &[u8; 8] = b"FEEDIDX\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Maximum number of manifests in memory. A coordinator serves few datasets at a time.
const MAX_CACHED_MANIFESTS: usize = 16;

/// The store of saved indexes.
#[derive(Debug)]
pub(crate) struct IndexStore {
    folder: PathBuf,
    /// Cached manifests, least recently used first.
    cache: Mutex<VecDeque<CachedManifest>>,
    /// Fingerprints of the index files that were read or written, by key.
    saved_fingerprints: Mutex<BTreeMap<String, String>>,
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
    fingerprint: String,
    manifest: Arc<Manifest>,
}

impl IndexStore {
    pub(crate) fn open(folder: PathBuf) -> Result<Self, DirectoryError> {
        prepare_directory(&folder, "the index directory", "--index-dir")?;
        remove_incomplete_files(&folder, ".index");
        Ok(Self {
            folder,
            cache: Mutex::default(),
            saved_fingerprints: Mutex::default(),
            save_lock: Mutex::default(),
            pending_loads: Mutex::default(),
        })
    }

    /// Returns patterns of complete and incomplete index files in `folder`. `*` matches any text.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
        ["*.index", "*.index.new*"].map(|name| folder.join(name))
    }

    /// Saves an index durably unless the index is already saved. Blocks.
    pub(crate) fn save(&self, key: &str, manifest: &Arc<Manifest>) -> Result<(), String> {
        let fingerprint = manifest.fingerprint();
        // Several jobs may save the same index at the same time.
        let _one_at_a_time = self.save_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(key);
        let was_saved = self.saved_fingerprints.lock().unwrap_or_else(PoisonError::into_inner).get(key)
            == Some(&fingerprint);
        // A user may have removed the file.
        if was_saved && path.exists() {
            return Ok(());
        }
        let body = encode_manifest(manifest);
        let written = replace_file(&path, FileAccess::Unchanged, |file| {
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
        })?;
        self.cache_manifest(key, manifest);
        Ok(())
    }

    /// Loads the saved index of a source; `None` if no index is saved. Simultaneous callers share one read. Blocks.
    pub(crate) fn load(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        self.load_shared(key, || self.read(key))
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

    fn read(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        let path = self.path(key);
        let bytes = match std::fs::read(&path) {
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
        let manifest = decode(&bytes).map_err(|damage| {
            // A corrupted file is replaced even if the index is unchanged.
            self.saved_fingerprints.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            format!(
                "cannot use the saved index {}: {damage}; remove the file or run `feedline index --rebuild`",
                path.display()
            )
        })?;
        let manifest = Arc::new(manifest);
        self.cache_manifest(key, &manifest);
        Ok(Some(manifest))
    }

    /// Returns the index that a job was opened with. Blocks if the index is not in memory.
    pub(crate) fn manifest(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, String> {
        if let Some(manifest) = self.cached(key, fingerprint) {
            return Ok(manifest);
        }
        match self.read(key)? {
            Some(manifest) if manifest.fingerprint() == fingerprint => Ok(manifest),
            Some(_) => Err(
                "the dataset changed and was indexed again while the job ran; cancel the job and open a new job"
                    .to_owned(),
            ),
            None => Err(format!(
                "the job's index {} is missing; cancel the job and open a new job, which indexes the dataset again",
                self.path(key).display()
            )),
        }
    }

    fn cached(&self, key: &str, fingerprint: &str) -> Option<Arc<Manifest>> {
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        let place = cache.iter().position(|cached| cached.key == key && cached.fingerprint == fingerprint)?;
        let found = cache.remove(place)?;
        cache.push_back(found.clone());
        Some(found.manifest)
    }

    fn cache_manifest(&self, key: &str, manifest: &Arc<Manifest>) {
        let cached = CachedManifest {
            key: key.to_owned(),
            fingerprint: manifest.fingerprint(),
            manifest: Arc::clone(manifest),
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|other| other.key != key || other.fingerprint != cached.fingerprint);
        let fingerprint = cached.fingerprint.clone();
        cache.push_back(cached);
        if cache.len() > MAX_CACHED_MANIFESTS {
            cache.pop_front();
        }
        drop(cache);
        self.saved_fingerprints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.to_owned(), fingerprint);
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.index"))
    }
}

fn header(body: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    header
}

fn decode(bytes: &[u8]) -> Result<Manifest, String> {
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err("the file is truncated".to_owned());
    };
    if header[..8] != *MAGIC {
        return Err("the file is not a dataset index".to_owned());
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        return Err(format!(
            "the file has format version {version}, but this release reads version {VERSION}"
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
            assert!(!manifest.fingerprint().is_empty());
        }
    }
}

#[cfg(test)]
mod tests;
