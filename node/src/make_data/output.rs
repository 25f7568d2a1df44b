//! The folder a data set is written to: nothing appears under its final name before all of it is written.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

/// What the writers of a format write to.
pub(super) type Sink = BufWriter<File>;

/// Bytes collected before each write to a file.
const BUFFER_BYTES: usize = 1 << 20;

/// A folder being filled. Files lie in a hidden folder inside it until [`Output::commit`]; without that they are
/// removed again.
pub(super) struct Output {
    folder: PathBuf,
    staging: TempDir,
    names: Vec<String>,
    replaced: Vec<OsString>,
}

/// What was written.
pub(super) struct Written {
    pub(super) files: usize,
    pub(super) bytes: u64,
}

impl Output {
    /// Makes the folder if need be. One that holds anything is refused, unless `force` is given; then files that
    /// make-data wrote there before make way for the new ones.
    pub(super) fn open(folder: &Path, force: bool) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                anyhow::anyhow!("cannot write to {}: it is not a folder", folder.display())
            }
            _ => anyhow::anyhow!("cannot create {}: {error}", folder.display()),
        })?;
        let mut replaced = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let name = entry.with_context(|| format!("cannot list {}", folder.display()))?.file_name();
            ensure!(
                force,
                "{} is not empty: choose another folder, or replace what make-data wrote there with --force",
                folder.display()
            );
            if is_ours(&name.to_string_lossy()) {
                replaced.push(name);
            }
        }
        let staging = tempfile::Builder::new()
            .prefix(".make-data-")
            .tempdir_in(folder)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Self { folder: folder.into(), staging, names: Vec::new(), replaced })
    }

    /// Opens a new file.
    pub(super) fn create(&mut self, name: &str) -> Result<Sink> {
        let file = File::create_new(self.staging.path().join(name))
            .with_context(|| format!("cannot create {}", self.folder.join(name).display()))?;
        self.names.push(name.into());
        Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
    }

    /// Writes a whole file.
    pub(super) fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        fs::write(self.staging.path().join(name), content)
            .with_context(|| format!("cannot write {}", self.folder.join(name).display()))?;
        self.names.push(name.into());
        Ok(())
    }

    /// Moves all files to their names and removes those they replace.
    pub(super) fn commit(self) -> Result<Written> {
        let mut bytes = 0;
        for name in &self.names {
            let (staged, path) = (self.staging.path().join(name), self.folder.join(name));
            let moved = fs::metadata(&staged).and_then(|file| {
                bytes += file.len();
                fs::rename(&staged, &path)
            });
            if let Err(error) = moved {
                bail!("cannot write {}: {error}", path.display());
            }
        }
        let kept: HashSet<OsString> = self.names.iter().map(OsString::from).collect();
        for name in self.replaced.iter().filter(|name| !kept.contains(*name)) {
            let path = self.folder.join(name);
            fs::remove_file(&path)
                .with_context(|| format!("cannot remove the earlier {}", path.display()))?;
        }
        Ok(Written { files: self.names.len(), bytes })
    }
}

/// Whether a file name is one that make-data gives: `images-00000-of-00004.tfrecord` or `000000.jpg`.
fn is_ours(name: &str) -> bool {
    let Some((stem, _)) = name.split_once('.') else { return false };
    let number =
        |text: &str, digits: usize| text.len() >= digits && text.bytes().all(|byte| byte.is_ascii_digit());
    match stem.split('-').collect::<Vec<_>>()[..] {
        ["images" | "text" | "table", shard, "of", shards] => number(shard, 5) && number(shards, 5),
        [place] => number(place, 6),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_make_data_gives_are_replaced() {
        for name in ["images-00000-of-00004.tfrecord", "text-00003-of-00004.txt", "000012.jpg"] {
            assert!(is_ours(name), "{name}");
        }
        for name in
            ["images.tfrecord", "photos-00000-of-00004.tfrecord", "12.jpg", "notes", "images-a-of-b.tar"]
        {
            assert!(!is_ours(name), "{name}");
        }
    }

    #[test]
    fn a_run_that_fails_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::open(folder.path(), false).unwrap();
        output.write("000000.jpg", b"half").unwrap();
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
