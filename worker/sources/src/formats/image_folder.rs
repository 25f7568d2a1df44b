//! Images in one directory per class, as `torchvision.datasets.ImageFolder` reads them. Each image is one row.
//!
//! The classes are the directories directly below the source URL, in alphabetical order. The listing stores the class of each
//! image in the values of its shard. The image itself is read like any other file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::manifest::{ShardIndex, ShardRef, ShardValue, ShardValues};

use super::files::FilesReader;
use crate::error::SourceError;
use crate::list::{self, ShardSelectors};
use crate::location::Location;
use crate::object::Object;
use crate::reader::{BlockRead, DecodedBlock, FormatReader};
use crate::select::Selection;
use crate::stores::ScopedStores;

/// The extensions of images, as in `torchvision.datasets.folder.IMG_EXTENSIONS`.
const IMAGE_EXTENSIONS: [&str; 9] =
    [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];
/// Maximum number of classes in an error message.
const MAX_LISTED_CLASSES: usize = 4;
const LABEL_COLUMN: &str = "label";
const CLASS_COLUMN: &str = "class";

/// Reads directories of images.
#[derive(Default)]
pub(super) struct ImageFolderReader {
    files: FilesReader,
}

/// A listed image.
struct ListedImage {
    /// The path below the root, which begins with the class.
    path: String,
    class_bytes: usize,
    shard: ShardRef,
}

impl ListedImage {
    fn class(&self) -> &str {
        &self.path[..self.class_bytes]
    }

    /// The position in torchvision's order: by class, directory and name.
    fn position(&self) -> (&str, &str, &str) {
        let (directory, name) = self.path.rsplit_once('/').unwrap_or_default();
        (self.class(), directory, name)
    }
}

#[async_trait]
impl FormatReader for ImageFolderReader {
    fn lists_each_url(&self) -> bool {
        false
    }

    async fn list(&self, reads: &ScopedStores, urls: &[String]) -> Result<Vec<ShardRef>, SourceError> {
        let (mut roots, mut classes) = (Vec::new(), BTreeSet::new());
        for url in urls {
            let (root, images, found) = list_root(reads, url).await?;
            classes.extend(found);
            roots.push((root, images));
        }
        let values = |(label, class): (i64, &String)| {
            vec![ShardValue::int64(LABEL_COLUMN, label), ShardValue::text(CLASS_COLUMN, class)].into()
        };
        let of_classes: BTreeMap<&str, ShardValues> =
            (0..).zip(&classes).map(|entry| (entry.1.as_str(), values(entry))).collect();
        let (mut shards, mut selectors) = (Vec::new(), ShardSelectors::default());
        for (root, images) in roots {
            for mut image in images {
                selectors.add(&image.shard, Some(root.clone()))?;
                image.shard.values = of_classes[image.class()].clone();
                shards.push(image.shard);
            }
        }
        Ok(shards)
    }

    async fn index(&self, object: &Arc<Object>, selection: &Selection) -> Result<ShardIndex, SourceError> {
        self.files.index(object, selection).await
    }

    async fn read(
        &self,
        object: &Arc<Object>,
        read: &BlockRead<'_>,
        selection: &Selection,
    ) -> Result<DecodedBlock, SourceError> {
        self.files.read(object, read, selection).await
    }
}

/// Returns the URL of a root, the images below it in torchvision's order, and the names of all class directories.
async fn list_root(
    reads: &ScopedStores,
    url: &str,
) -> Result<(Arc<str>, Vec<ListedImage>, BTreeSet<String>), SourceError> {
    let bad = |reason: String| SourceError::Url { url: url.to_owned(), reason };
    let root = format!("{}/", url.trim_end_matches('/'));
    let location = Location::parse(&root)?;
    if list::is_pattern(reads, &location) {
        return Err(bad("the format imagefolder needs a directory: write the directory that contains the \
                        directories of the classes, without a pattern"
            .to_owned()));
    }
    // Both listings show the same commit of a repository.
    let location = reads.pin(location, &root).await?;
    let root = if location.is_hub() { location.url() } else { root };
    let listed = list::list(reads, std::slice::from_ref(&root)).await?;
    // Directories without any file are classes too, if the store has such directories.
    let mut classes: BTreeSet<String> = list::list_directories(reads, &root).await?.into_iter().collect();
    classes.retain(|class| !class.starts_with('.'));
    let mut with_images = BTreeSet::new();
    let mut images = Vec::new();
    for shard in listed {
        let Some(path) = list::path_below(&location, &shard)? else { continue };
        let Some((class, below)) = path.split_once('/') else { continue };
        if !classes.contains(class) {
            classes.insert(class.to_owned());
        }
        if !is_image(below) {
            continue;
        }
        if !with_images.contains(class) {
            with_images.insert(class.to_owned());
        }
        let class_bytes = class.len();
        images.push(ListedImage { path, class_bytes, shard });
    }
    if classes.is_empty() {
        return Err(bad("the directory has no directories of classes: write the directory whose \
                        subdirectories are the classes, or use `format: files`"
            .to_owned()));
    }
    let empty: Vec<&String> = classes.difference(&with_images).collect();
    if !empty.is_empty() {
        return Err(bad(without_images(&empty)));
    }
    images.sort_by(|a, b| a.position().cmp(&b.position()));
    Ok((location.url().into(), images, classes))
}

fn is_image(path: &str) -> bool {
    let path = path.to_ascii_lowercase();
    IMAGE_EXTENSIONS.iter().any(|extension| path.ends_with(extension))
}

fn without_images(classes: &[&String]) -> String {
    let names: Vec<String> =
        classes.iter().take(MAX_LISTED_CLASSES).map(|class| format!("`{class}`")).collect();
    let more = classes.len().saturating_sub(MAX_LISTED_CLASSES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "the class directories {}{more} contain no images ({}): remove the directories, or add images to them",
        names.join(", "),
        IMAGE_EXTENSIONS.join(", ")
    )
}

#[cfg(test)]
mod tests;
