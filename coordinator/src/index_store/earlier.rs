//! Earlier indexes of a source. They are retained while a job uses them. One more is retained, because it names the shards
//! that changed since a position was saved.

use std::fs::{self, DirEntry};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use feedline_data::manifest::{Manifest, is_index_id};

use super::{IndexStore, LatestFile, read_file};

impl IndexStore {
    pub(super) fn earlier_path(&self, key: &str, id: &str) -> PathBuf {
        self.folder.join(format!("{key}-{id}.index"))
    }

    /// Retains the latest index as an earlier one, before another index replaces it. `known` describes the file, if this
    /// process has read or written it. A file that cannot be read is not retained.
    pub(super) fn retain_latest(&self, key: &str, known: Option<LatestFile>, new_id: &str) {
        let path = self.path(key);
        let read_id = || read_file(&path).ok().flatten().map(|manifest| manifest.index_id());
        let Some(id) = known.map(|file| file.id).or_else(read_id).filter(|id| id != new_id) else { return };
        let earlier = self.earlier_path(key, &id);
        let retained = match fs::hard_link(&path, &earlier) {
            // It may be a link to the same file, which a copy would truncate.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(_) => fs::copy(&path, &earlier).map(drop),
            linked => linked,
        };
        // Without the file, a running job that restarts its workers fails, and changed shards cannot be named.
        if let Err(error) = retained {
            tracing::warn!(file = %earlier.display(), %error, "cannot retain the earlier index of a dataset");
        }
    }

    /// Deletes the earlier indexes that no job uses, except the newest one.
    pub(super) fn remove_earlier(&self, key: &str, latest_id: &str, in_use: &[String]) {
        let is_used = |path: &PathBuf| {
            let is_listed = in_use.iter().any(|reference| *path == self.earlier_path(key, reference));
            // An earlier release refers to an index by its fingerprint.
            let by_fingerprint = || {
                let fingerprints: Vec<&String> = in_use.iter().filter(|used| !is_index_id(used)).collect();
                let manifest = if fingerprints.is_empty() { None } else { read_file(path).ok().flatten() };
                manifest.is_some_and(|manifest| fingerprints.iter().any(|used| manifest.is_index(used)))
            };
            is_listed || by_fingerprint()
        };
        let latest = self.earlier_path(key, latest_id);
        let mut unused: Vec<PathBuf> =
            self.earlier_files(key).into_iter().filter(|path| *path == latest || !is_used(path)).collect();
        // The index may be an earlier one that became the latest again.
        if let Some(newest) = unused.iter().rposition(|path| *path != latest) {
            unused.remove(newest);
        }
        for path in unused {
            // A remaining file only occupies disk space.
            let _ = fs::remove_file(path);
        }
    }

    /// Returns the earlier index with this reference.
    pub(super) fn find_earlier(&self, key: &str, reference: &str) -> Result<Option<Arc<Manifest>>, String> {
        if !reference.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(None);
        }
        let found = if is_index_id(reference) {
            read_file(&self.earlier_path(key, reference))?.map(Arc::new)
        } else {
            self.earlier_indexes(key).find(|manifest| manifest.is_index(reference))
        };
        let found = found.filter(|manifest| manifest.is_index(reference));
        if let Some(manifest) = &found {
            self.add_to_cache(key, manifest.index_id(), manifest);
        }
        Ok(found)
    }

    /// The readable earlier indexes of a source, the newest first.
    pub(super) fn earlier_indexes(&self, key: &str) -> impl Iterator<Item = Arc<Manifest>> {
        let files = self.earlier_files(key).into_iter().rev();
        files.filter_map(|path| read_file(&path).ok().flatten().map(Arc::new))
    }

    /// The files of the earlier indexes of a source, the oldest first.
    fn earlier_files(&self, key: &str) -> Vec<PathBuf> {
        let prefix = format!("{key}-");
        let is_earlier = |entry: &DirEntry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name.strip_prefix(&prefix).and_then(|rest| rest.strip_suffix(".index")).is_some_and(is_index_id)
        };
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().filter(is_earlier);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.metadata().and_then(|metadata| metadata.modified()).ok(), entry.path()))
            .collect();
        files.sort();
        files.into_iter().map(|(_, path)| path).collect()
    }
}
