//! Indexes of growing sources, with the ranges of offsets that jobs have read. Each job that opens adds one, so only the most
//! recently used ones of a tenant are retained, and those of running jobs.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use feedline_data::messages::recorded_prefix;

use super::IndexStore;

/// Maximum number of indexes of growing sources of one tenant that no running job uses. A position that refers to a removed index
/// cannot be resumed.
pub(super) const MAX_UNUSED_RECORDED: usize = 256;

impl IndexStore {
    /// Records that a job uses the index of a growing source, so that older indexes are removed before it.
    pub(super) fn mark_recorded_used(&self, key: &str) {
        if recorded_prefix(key).is_none() {
            return;
        }
        let marked = File::options()
            .append(true)
            .open(self.path(key))
            .and_then(|file| file.set_modified(SystemTime::now()));
        match marked.and_then(|()| fs::metadata(self.path(key))) {
            Ok(metadata) => self.set_latest_stamp(key, &metadata),
            // The index may be removed too early.
            Err(error) => tracing::debug!(key, %error, "cannot mark a saved index as used"),
        }
    }

    /// Deletes the least recently used indexes of the growing sources of a tenant, except those that jobs use.
    pub(super) fn remove_oldest_recorded(&self, key: &str, in_use: &[String]) {
        let Some(prefix) = recorded_prefix(key) else { return };
        let in_use: BTreeSet<&str> = in_use.iter().map(String::as_str).chain([key]).collect();
        let unused = self.recorded_files(prefix, &in_use);
        let excess = unused.len().saturating_sub(MAX_UNUSED_RECORDED);
        for path in &unused[..excess] {
            // A remaining file only occupies disk space.
            let _ = fs::remove_file(path);
        }
    }

    /// The files of growing sources that no job uses, the least recently used first.
    fn recorded_files(&self, prefix: &str, in_use: &BTreeSet<&str>) -> Vec<PathBuf> {
        let is_unused = |entry: &DirEntry| {
            let name = entry.file_name();
            let Some(stem) = Path::new(&name).file_stem().and_then(|stem| stem.to_str()) else {
                return false;
            };
            // An earlier index of a key is used as long as the key.
            let key = stem.split('-').next().unwrap_or_default();
            name.to_string_lossy().ends_with(".index")
                && recorded_prefix(key) == Some(prefix)
                && !in_use.contains(key)
        };
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().filter(is_unused);
        let mut files: Vec<_> = entries
            .map(|entry| (entry.metadata().and_then(|metadata| metadata.modified()).ok(), entry.path()))
            .collect();
        files.sort();
        files.into_iter().map(|(_, path)| path).collect()
    }
}
