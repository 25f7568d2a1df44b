//! Saved dataset indexes: one file for each source, so that a dataset is indexed once.
//!
//! File: 8 bytes magic, format version (u32, little-endian), CRC-32C of the rest (u32), then the manifest's bytes.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use feedline_data::manifest::Manifest;
use feedline_proto::{decode_manifest, encode_manifest};

use feedline_raft::files::{DirectoryError, fix, prepare_directory, reason, remove_unfinished, replace_file};

const MAGIC: &[u8; 8] = b"FEEDIDX\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;
/// Manifests kept in memory, the one used last at the back. A coordinator serves few datasets at a time.
const CACHED: usize = 16;

/// The saved indexes.
#[derive(Debug)]
pub(crate) struct IndexStore {
    folder: PathBuf,
    cache: Mutex<VecDeque<Cached>>,
    /// Fingerprints of what files hold, by key, as far as they were read or written.
    on_disk: Mutex<BTreeMap<String, String>>,
    /// Held while an index is written.
    saving: Mutex<()>,
    /// What is being read for jobs that are opened, by key.
    loading: Mutex<BTreeMap<String, Arc<Loading>>>,
}

/// A read of a saved index, for all who want it while it lasts.
type Loading = OnceLock<Result<Option<Arc<Manifest>>, String>>;

#[derive(Debug, Clone)]
struct Cached {
    key: String,
    fingerprint: String,
    manifest: Arc<Manifest>,
}

impl IndexStore {
    pub(crate) fn open(folder: PathBuf) -> Result<Self, DirectoryError> {
        prepare_directory(&folder, "the index directory")?;
        remove_unfinished(&folder, ".index");
        Ok(Self {
            folder,
            cache: Mutex::default(),
            on_disk: Mutex::default(),
            saving: Mutex::default(),
            loading: Mutex::default(),
        })
    }

    /// The files that indexes have in `folder`, and those that are not whole yet; `*` stands for any text.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
        ["*.index", "*.index.new*"].map(|name| folder.join(name))
    }

    /// Saves an index, durably, unless it was. Blocks.
    pub(crate) fn save(&self, key: &str, manifest: &Arc<Manifest>) -> Result<(), String> {
        let fingerprint = manifest.fingerprint();
        // Jobs that are opened at the same time have the same index, and one name for what is not whole yet.
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let path = self.path(key);
        let was_saved =
            self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).get(key) == Some(&fingerprint);
        // Users are told to remove a file that cannot be used, whatever runs.
        if was_saved && path.exists() {
            return Ok(());
        }
        let body = encode_manifest(manifest);
        replace_file(&path, &[&header(&body), &body]).map_err(|error| {
            format!(
                "cannot write the dataset's index at {}: {}; {}, nothing acknowledged is lost",
                path.display(),
                reason(&error),
                fix(&error)
            )
        })?;
        self.remember(key, manifest);
        Ok(())
    }

    /// The saved index of a source; `None` when there is none. Those who ask while it is read share it. Blocks.
    pub(crate) fn load(&self, key: &str) -> Result<Option<Arc<Manifest>>, String> {
        self.share(key, || self.read(key))
    }

    /// Reads once for all who want it at the same time.
    fn share(
        &self,
        key: &str,
        read: impl FnOnce() -> Result<Option<Arc<Manifest>>, String>,
    ) -> Result<Option<Arc<Manifest>>, String> {
        let mut loads = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        let load = Arc::clone(loads.entry(key.to_owned()).or_default());
        drop(loads);
        let found = load.get_or_init(read).clone();
        let mut loads = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever comes later reads what is there then.
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
                    "cannot read the saved index {}: {}; check its owner, or remove it to index again",
                    path.display(),
                    reason(&error)
                ));
            }
        };
        let manifest = decode(&bytes).map_err(|what| {
            // It is written again, though with the same content.
            self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
            format!(
                "the saved index {} cannot be used: {what}; remove it or run `feedline index --rebuild`",
                path.display()
            )
        })?;
        let manifest = Arc::new(manifest);
        self.remember(key, &manifest);
        Ok(Some(manifest))
    }

    /// The index that a job was opened with. Blocks when it is not in memory.
    pub(crate) fn manifest(&self, key: &str, fingerprint: &str) -> Result<Arc<Manifest>, String> {
        if let Some(manifest) = self.cached(key, fingerprint) {
            return Ok(manifest);
        }
        match self.read(key)? {
            Some(manifest) if manifest.fingerprint() == fingerprint => Ok(manifest),
            Some(_) => Err(
                "the dataset was indexed again with other data while the job ran; cancel the job and open it anew"
                    .to_owned(),
            ),
            None => Err(format!(
                "the job's index {} is gone; cancel the job and open it anew, which indexes the dataset again",
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

    fn remember(&self, key: &str, manifest: &Arc<Manifest>) {
        let cached = Cached {
            key: key.to_owned(),
            fingerprint: manifest.fingerprint(),
            manifest: Arc::clone(manifest),
        };
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|other| other.key != key || other.fingerprint != cached.fingerprint);
        let fingerprint = cached.fingerprint.clone();
        cache.push_back(cached);
        if cache.len() > CACHED {
            cache.pop_front();
        }
        drop(cache);
        self.on_disk.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned(), fingerprint);
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
        return Err("it is cut short".to_owned());
    };
    if header[..8] != *MAGIC {
        return Err("it is not an index".to_owned());
    }
    let version = u32::from_le_bytes([header[8], header[9], header[10], header[11]]);
    if version != VERSION {
        return Err(format!("it has format version {version}, and this release reads version {VERSION}"));
    }
    if header[12..] != crc32c::crc32c(body).to_le_bytes() {
        return Err("it is damaged, its checksum is wrong".to_owned());
    }
    decode_manifest(body)
}

/// Reads `bytes` as a file, and as what a file holds.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_any(bytes: &[u8]) {
    for file in [bytes.to_vec(), [&header(bytes)[..], bytes].concat()] {
        if let Ok(manifest) = decode(&file) {
            assert!(!manifest.fingerprint().is_empty());
        }
    }
}

#[cfg(test)]
mod tests;
