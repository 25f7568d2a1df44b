//! The folder that a build writes. It has another name until it is complete, so that a stopped build leaves nothing that looks
//! finished.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use feedline_data::graph::description::{DESCRIPTION_FILE, GraphDescription};

use crate::error::GraphError;

/// The file in the staging folder that a running build locks.
const LOCK_FILE: &str = "build.lock";
/// The folder in the staging folder with temporary files.
const SPILL_FOLDER: &str = "spill";

/// A folder that is being written, beside its final path. Dropping it removes the folder, unless it is complete.
#[derive(Debug)]
pub(super) struct OutputFolder {
    final_path: PathBuf,
    staging: PathBuf,
    _lock: File,
    is_complete: bool,
}

impl OutputFolder {
    /// Creates a folder beside `path`. Removes the rest of a build that was killed.
    ///
    /// # Errors
    /// Returns an error if `path` exists and is not an empty directory, or another build is writing it.
    pub(super) fn create(path: &Path) -> Result<Self, GraphError> {
        let shown = path.display().to_string();
        check_is_free(path)?;
        let absolute = std::path::absolute(path).map_err(|error| GraphError::io("write", path, &error))?;
        let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Err(GraphError::file(shown, "the path has no name: pass the path of a new directory"));
        };
        let mut staging_name = OsString::from(".");
        staging_name.push(name);
        staging_name.push(".building");
        let staging = parent.join(staging_name);
        fs::create_dir_all(&staging).map_err(|error| GraphError::io("create", &staging, &error))?;
        let lock_path = staging.join(LOCK_FILE);
        let lock = File::create(&lock_path).map_err(|error| GraphError::io("create", &lock_path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(GraphError::file(
                    shown,
                    "another build is writing this graph: wait until it ends",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(GraphError::io("lock", &lock_path, &error)),
        }
        remove_contents(&staging)?;
        let output = Self { final_path: absolute.clone(), staging, _lock: lock, is_complete: false };
        let spill = output.spill();
        fs::create_dir(&spill).map_err(|error| GraphError::io("create", &spill, &error))?;
        Ok(output)
    }

    /// The folder of the files of the graph.
    pub(super) fn path(&self) -> &Path {
        &self.staging
    }

    /// The folder for temporary files.
    pub(super) fn spill(&self) -> PathBuf {
        self.staging.join(SPILL_FOLDER)
    }

    /// Writes the description, removes temporary files, and gives the folder its final name.
    pub(super) fn commit(mut self, description: &GraphDescription) -> Result<(), GraphError> {
        let spill = self.spill();
        fs::remove_dir_all(&spill).map_err(|error| GraphError::io("remove", &spill, &error))?;
        let file = self.staging.join(DESCRIPTION_FILE);
        fs::write(&file, description.to_json()).map_err(|error| GraphError::io("write", &file, &error))?;
        // Replaces an empty directory. Until then, the lock keeps other builds from removing the files.
        fs::rename(&self.staging, &self.final_path)
            .map_err(|error| GraphError::io("create", &self.final_path, &error))?;
        self.is_complete = true;
        // The graph is complete. A lock file that is left does not belong to it.
        let _ = fs::remove_file(self.final_path.join(LOCK_FILE));
        Ok(())
    }
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if !self.is_complete {
            // The next build with this path removes what is left.
            let _ = fs::remove_dir_all(&self.staging);
        }
    }
}

fn check_is_free(path: &Path) -> Result<(), GraphError> {
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(()),
            Some(_) => Err(GraphError::file(
                path.display().to_string(),
                "the directory is not empty: pass another path, or remove the directory",
            )),
        },
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(GraphError::io("write", path, &error)),
    }
}

/// Removes everything except the lock.
fn remove_contents(folder: &Path) -> Result<(), GraphError> {
    let failed = |error: std::io::Error| GraphError::io("remove", folder, &error);
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if entry.file_name() == LOCK_FILE {
            continue;
        }
        let is_folder = entry.file_type().map_err(failed)?.is_dir();
        let removed =
            if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use feedline_data::graph::description::{GRAPH_VERSION, NodeOrder};

    use super::*;

    fn description() -> GraphDescription {
        GraphDescription {
            version: GRAPH_VERSION,
            order: NodeOrder::None,
            vip: None,
            nodes: Vec::new(),
            relations: Vec::new(),
            seeds: Vec::new(),
        }
    }

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<OsString> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_folder_appears_when_it_is_complete() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("graph");
        let output = OutputFolder::create(&path).unwrap();
        fs::write(output.path().join("a.npy"), "a").unwrap();
        fs::write(output.spill().join("temporary"), "t").unwrap();
        assert_eq!(names(parent.path()), [".graph.building"]);
        output.commit(&description()).unwrap();
        assert_eq!(names(parent.path()), ["graph"]);
        assert_eq!(names(&path), ["a.npy", DESCRIPTION_FILE]);
        let error = OutputFolder::create(&path).unwrap_err().to_string();
        assert!(
            error.ends_with("the directory is not empty: pass another path, or remove the directory"),
            "{error}"
        );
    }

    #[test]
    fn a_failed_build_leaves_nothing_and_a_killed_one_is_removed_by_the_next() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("graph");
        drop(OutputFolder::create(&path).unwrap());
        assert_eq!(names(parent.path()), Vec::<OsString>::new());
        let killed = parent.path().join(".graph.building/spill");
        fs::create_dir_all(&killed).unwrap();
        fs::write(killed.join("0"), "rest").unwrap();
        let output = OutputFolder::create(&path).unwrap();
        assert_eq!(names(&output.spill()), Vec::<OsString>::new());
        let error = OutputFolder::create(&path).unwrap_err().to_string();
        assert!(error.contains("another build is writing this graph"), "{error}");
        output.commit(&description()).unwrap();
        assert!(path.join(DESCRIPTION_FILE).exists());
    }
}
