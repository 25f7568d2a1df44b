//! The directory of a worker for graphs that do not fit in memory: blocks of features in stores, and mapped topologies. It is
//! created when the first graph needs it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use feedline_graph::CopiedBlocks;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use crate::cache::claim_part;
use crate::settings::GraphDiskSettings;

/// The subdirectory of the worker's part for blocks.
const BLOCKS_FOLDER: &str = "blocks";

/// The directory for graphs. Each worker uses its own part of the directory in the settings.
#[derive(Debug)]
pub(super) struct BlockDisk {
    settings: GraphDiskSettings,
    opened: OnceCell<OpenDisk>,
}

/// The worker's part of the directory.
#[derive(Debug)]
pub(super) struct OpenDisk {
    /// The blocks of features.
    pub(super) blocks: Arc<CopiedBlocks>,
    /// The part itself, for files without names.
    pub(super) folder: PathBuf,
    /// The locked file of the worker's part.
    _claim: File,
}

impl BlockDisk {
    pub(super) fn new(settings: GraphDiskSettings) -> Self {
        Self { settings, opened: OnceCell::new() }
    }

    /// Returns the worker's part. The first call creates the directory, and removes the blocks of an earlier worker.
    pub(super) async fn open(&self) -> Result<&OpenDisk, String> {
        let open = || async {
            let settings = self.settings.clone();
            let opened = spawn_blocking(move || OpenDisk::open(&settings)).await;
            opened.map_err(|error| error.to_string())?
        };
        self.opened.get_or_try_init(open).await
    }
}

impl OpenDisk {
    fn open(settings: &GraphDiskSettings) -> Result<Self, String> {
        let (part, claim) = claim_part(&settings.folder).map_err(|error| {
            let folder = settings.folder.display();
            format!("cannot use the directory {folder} for graphs: {error}; choose another --graph-dir")
        })?;
        let blocks = CopiedBlocks::create(&part.join(BLOCKS_FOLDER), settings.limit_bytes);
        Ok(Self { blocks: blocks.map_err(|error| error.to_string())?, folder: part, _claim: claim })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_worker_has_its_own_part_without_old_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("part-000/blocks/9.block");
        std::fs::create_dir_all(old.parent().unwrap()).unwrap();
        std::fs::write(&old, "old").unwrap();
        let settings = GraphDiskSettings { folder: folder.path().to_owned(), limit_bytes: 100 };
        let (one, two) = (BlockDisk::new(settings.clone()), BlockDisk::new(settings));
        assert!(old.exists(), "nothing happens before a feature needs the directory");
        one.open().await.unwrap();
        two.open().await.unwrap();
        assert!(!old.exists());
        assert!(folder.path().join("part-001/blocks").exists());
        drop(one);
        assert!(!folder.path().join("part-000/blocks").exists());
    }

    #[tokio::test]
    async fn a_directory_that_cannot_be_used_is_one_sentence() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let settings = GraphDiskSettings { folder: file.path().to_owned(), limit_bytes: 100 };
        let error = BlockDisk::new(settings).open().await.unwrap_err();
        assert!(error.contains("for graphs: ") && error.ends_with("choose another --graph-dir"), "{error}");
    }
}
