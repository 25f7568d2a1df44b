//! Reads the image files of a directory without decoding them.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::images::{image_batch, image_schema};
use super::rows::RowSource;

/// File name extensions of images, in lower or upper case.
const EXTENSIONS: [&str; 4] = ["jpg", "jpeg", "png", "webp"];
/// Number of images in memory at a time.
const BATCH_ROWS: u64 = 32;

/// The image files of a directory and its subdirectories, sorted by name. The files repeat if more rows are requested.
pub(super) struct ImageFolder {
    files: Vec<ImageFile>,
    rows: u64,
}

struct ImageFile {
    path: PathBuf,
    /// Path relative to the directory, with `/` as separator.
    name: String,
    label: i64,
}

impl ImageFolder {
    /// Opens a directory. Without `rows`, each file is one row.
    pub(super) fn open(folder: &Path, rows: Option<u64>) -> Result<Self> {
        let mut paths = Vec::new();
        find_images(folder, &mut paths)?;
        ensure!(
            !paths.is_empty(),
            "the directory {} contains no images: expected files that end in {}",
            folder.display(),
            EXTENSIONS.join(", ")
        );
        let mut named = Vec::new();
        for path in paths {
            let below = path.strip_prefix(folder).unwrap_or(&path);
            let name = below.to_str().with_context(|| {
                format!("the file name {} is not UTF-8: rename the file", below.display())
            })?;
            named.push((name.replace('\\', "/"), path));
        }
        named.sort();
        let mut classes: Vec<&str> = named.iter().map(|(name, _)| class_of(name)).collect();
        classes.sort_unstable();
        classes.dedup();
        let label_of = |name: &str| classes.partition_point(|class| *class < class_of(name)) as i64;
        let files: Vec<ImageFile> = named
            .iter()
            .map(|(name, path)| ImageFile { path: path.clone(), name: name.clone(), label: label_of(name) })
            .collect();
        let rows = rows.unwrap_or(files.len() as u64);
        Ok(Self { files, rows })
    }
}

impl RowSource for ImageFolder {
    fn schema(&self) -> SchemaRef {
        image_schema()
    }

    fn count(&self) -> u64 {
        self.rows
    }

    fn batch_rows(&self) -> u64 {
        BATCH_ROWS
    }

    fn read(&mut self, range: Range<u64>) -> Result<RecordBatch> {
        let (mut images, mut labels, mut filenames) = (Vec::new(), Vec::new(), Vec::new());
        for row in range {
            let file = &self.files[(row % self.files.len() as u64) as usize];
            images
                .push(fs::read(&file.path).with_context(|| format!("cannot read {}", file.path.display()))?);
            labels.push(file.label);
            filenames.push(file.name.clone());
        }
        image_batch(&images, labels, filenames)
    }
}

/// Returns the class of an image: the name of its subdirectory or, without a subdirectory, its file name up to the
/// first `_`.
fn class_of(name: &str) -> &str {
    match name.rsplit_once('/') {
        Some((folders, _)) => folders.rsplit('/').next().unwrap_or(folders),
        None => name.split('_').next().unwrap_or(name),
    }
}

fn find_images(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let failed = || format!("cannot list {}", folder.display());
    for entry in fs::read_dir(folder).with_context(failed)? {
        let path = entry.with_context(failed)?.path();
        let extension = path.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        if path.is_dir() {
            find_images(&path, found)?;
        } else if EXTENSIONS.contains(&extension.to_ascii_lowercase().as_str()) {
            found.push(path);
        }
    }
    Ok(())
}
