//! The output directory of a new dataset. No file appears under its final name before all files are complete.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;

/// The buffered file that a writer writes to.
pub(super) type Sink = BufWriter<File>;

/// Size of the buffer of a file.
const BUFFER_BYTES: usize = 1 << 20;

/// A directory that is being written. Files are in a hidden subdirectory until [`Output::commit`] moves them; without a
/// commit, dropping this value removes them.
pub(super) struct Output {
    folder: PathBuf,
    staging: TempDir,
    names: Vec<String>,
    replaced: Vec<OsString>,
}

/// Totals of the written files.
pub(super) struct OutputTotals {
    pub(super) files: usize,
    pub(super) bytes: u64,
}

impl Output {
    /// Creates the directory if it does not exist. Rejects a directory that is not empty, unless `force` is set. With
    /// `force`, [`Output::commit`] removes the files that make-data wrote to the directory before.
    pub(super) fn open(folder: &Path, force: bool) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => {
                anyhow!("cannot write to {}: it is not a directory", folder.display())
            }
            _ => anyhow!("cannot create {}: {error}", folder.display()),
        })?;
        let mut replaced = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
            let name = entry.with_context(|| format!("cannot list {}", folder.display()))?.file_name();
            ensure!(
                force,
                "{} is not empty: choose another directory, or pass --force to replace the files that make-data wrote",
                folder.display()
            );
            if is_generated_name(&name.to_string_lossy()) {
                replaced.push(name);
            }
        }
        let staging = tempfile::Builder::new()
            .prefix(".make-data-")
            .tempdir_in(folder)
            .with_context(|| format!("cannot write to {}", folder.display()))?;
        Ok(Self { folder: folder.into(), staging, names: Vec::new(), replaced })
    }

    /// Adds files with these names to the files that [`Output::commit`] replaces. A directory with files has passed `force`.
    pub(super) fn replace_files(&mut self, names: &[&str]) {
        let existing = names.iter().filter(|name| self.folder.join(name).is_file());
        self.replaced.extend(existing.map(OsString::from));
    }

    /// Creates a file.
    pub(super) fn create(&mut self, name: &str) -> Result<Sink> {
        let file = File::create_new(self.staging.path().join(name))
            .with_context(|| format!("cannot create {}", self.folder.join(name).display()))?;
        self.names.push(name.into());
        Ok(BufWriter::with_capacity(BUFFER_BYTES, file))
    }

    /// Creates a file with this content.
    pub(super) fn write(&mut self, name: &str, content: &[u8]) -> Result<()> {
        fs::write(self.staging.path().join(name), content)
            .with_context(|| format!("cannot write {}", self.folder.join(name).display()))?;
        self.names.push(name.into());
        Ok(())
    }

    /// Moves all files to their final names, and removes the files that they replace.
    pub(super) fn commit(self) -> Result<OutputTotals> {
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
                .with_context(|| format!("cannot remove {}, which an earlier run wrote", path.display()))?;
        }
        Ok(OutputTotals { files: self.names.len(), bytes })
    }
}

/// Whether make-data generates this file name, such as `images-00000-of-00004.tfrecord` or `000000.jpg`.
fn is_generated_name(name: &str) -> bool {
    let Some((stem, _)) = name.split_once('.') else { return false };
    let number =
        |text: &str, digits: usize| text.len() >= digits && text.bytes().all(|byte| byte.is_ascii_digit());
    match stem.split('-').collect::<Vec<_>>()[..] {
        ["images" | "text" | "table", shard, "of", shards] => number(shard, 5) && number(shards, 5),
        [row] => number(row, 6),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_generated_file_names_are_replaced() {
        for name in ["images-00000-of-00004.tfrecord", "text-00003-of-00004.txt", "000012.jpg"] {
            assert!(is_generated_name(name), "{name}");
        }
        for name in
            ["images.tfrecord", "photos-00000-of-00004.tfrecord", "12.jpg", "notes", "images-a-of-b.tar"]
        {
            assert!(!is_generated_name(name), "{name}");
        }
    }

    #[test]
    fn a_failed_run_leaves_no_files() {
        let folder = tempfile::tempdir().unwrap();
        let mut output = Output::open(folder.path(), false).unwrap();
        output.write("000000.jpg", b"half").unwrap();
        drop(output);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
