//! The position file of `feedline run`. The file contains digests, so that a resumed run has the same digest as an
//! uninterrupted run.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use feedline_client::digest::{ContentDigest, StreamDigest};
use feedline_common::files::{FileAccess, create_incomplete_file, replace_file};
use feedline_data::checkpoint::Position;
use serde::{Deserialize, Serialize};

use crate::failure::{Failure, reason};

/// The content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PositionFile {
    /// Position of the job.
    pub(super) position: Position,
    /// Digest of the delivered batches of each virtual consumer.
    pub(super) digests: Vec<String>,
    /// Digest of all delivered rows.
    pub(super) content: String,
    /// Number of delivered rows.
    pub(super) rows: u64,
}

/// Digests of the delivered rows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Digests {
    /// Digest of each virtual consumer's batches, in order.
    pub(super) streams: BTreeMap<u32, StreamDigest>,
    /// Digest of all rows.
    pub(super) content: ContentDigest,
}

impl PositionFile {
    /// Reads the file at `path`; `None` if it does not exist.
    pub(super) fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let name = path.display();
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                let reason = reason(&error);
                return Err(Failure::invalid_usage(format!(
                    "cannot read {name}: {reason}; pass another --position"
                )));
            }
        };
        let file: Self = serde_json::from_str(&text).map_err(|error| {
            Failure::invalid_usage(format!(
                "invalid position file {name}: {error}; remove it to start from the beginning"
            ))
        })?;
        file.digests()?;
        Ok(Some(file))
    }

    /// Creates the content of the file for a position.
    pub(super) fn new(position: Position, digests: &Digests, rows: u64) -> Self {
        let stream = |stream| digests.streams.get(&stream).cloned().unwrap_or_default().to_hex();
        let streams = (0..position.virtual_consumers).map(stream).collect();
        Self { position, digests: streams, content: digests.content.to_hex(), rows }
    }

    /// Returns the digests to continue from.
    pub(super) fn digests(&self) -> Result<Digests, Failure> {
        let mut streams = BTreeMap::new();
        for (stream, digest) in (0..).zip(&self.digests) {
            streams.insert(stream, StreamDigest::from_hex(digest).map_err(Failure::invalid_usage)?);
        }
        let content = ContentDigest::from_hex(&self.content).map_err(Failure::invalid_usage)?;
        Ok(Digests { streams, content })
    }

    /// Replaces the file at `path` atomically.
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        let written = replace_file(path, FileAccess::Unchanged, |file| {
            serde_json::to_writer_pretty(&mut *file, self)?;
            file.write_all(b"\n")
        });
        written.map_err(|error| {
            let reason = reason(&error);
            Failure::failed(format!("cannot write {}: {reason}; pass another --position", path.display()))
        })
    }
}

/// Checks that a file at `path` can be written, before the job starts.
pub(super) fn check_writable(path: &Path) -> Result<(), Failure> {
    create_incomplete_file(path, FileAccess::Unchanged).map(drop).map_err(|error| {
        let reason = reason(&error);
        Failure::invalid_usage(format!("cannot write {}: {reason}; pass another --position", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use feedline_data::layout::StreamPosition;
    use feedline_data::pipeline::OrderMode;

    use super::*;

    fn file() -> PositionFile {
        let position = Position {
            version: 1,
            pipeline: "p".to_owned().into(),
            dataset: "d".to_owned(),
            content: Default::default(),
            order: OrderMode::Deterministic,
            virtual_consumers: 2,
            streams: vec![StreamPosition { epoch: 1, row: 64 }; 2],
            open_ranges: Vec::new(),
            mix: Vec::new(),
            growth: None,
            ranges: None,
            split_rows: None,
        };
        PositionFile::new(position, &Digests::default(), 128)
    }

    #[test]
    fn a_written_file_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("position.json");
        assert_eq!(PositionFile::read(&path).unwrap(), None);
        file().write(&path).unwrap();
        assert_eq!(PositionFile::read(&path).unwrap(), Some(file()));
        assert_eq!(file().digests().unwrap().streams.len(), 2);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file remains");
    }

    #[test]
    fn a_new_file_has_default_permissions_and_an_existing_file_keeps_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let (plain, path) = (folder.path().join("plain"), folder.path().join("position.json"));
        fs::write(&plain, "").unwrap();
        file().write(&path).unwrap();
        assert_eq!(mode(&path), mode(&plain));
        for kept in [0o640, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            file().write(&path).unwrap();
            assert_eq!(mode(&path), kept);
        }
    }

    #[test]
    fn a_position_file_that_cannot_be_written_is_wrong_use() {
        let folder = tempfile::tempdir().unwrap();
        check_writable(&folder.path().join("position.json")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "no file remains");
        let path = folder.path().join("missing/position.json");
        let failure = check_writable(&path).unwrap_err();
        assert_eq!(failure.status(), 2);
        let path = path.display();
        let expected = format!("cannot write {path}: no such file or directory; pass another --position");
        assert_eq!(failure.to_string(), expected);
    }

    #[test]
    fn an_invalid_position_file_is_wrong_use() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("position.json");
        std::fs::write(&path, "{}").unwrap();
        let failure = PositionFile::read(&path).unwrap_err();
        assert_eq!(failure.status(), 2);
        assert!(failure.to_string().contains("remove it to start from the beginning"), "{failure}");
        let failure = file().write(&folder.path().join("missing/position.json")).unwrap_err();
        assert_eq!(failure.status(), 1);
    }
}
