//! Repositories of data files, with the configurations and splits of their README.md or of the names of the files.

use std::collections::{BTreeMap, HashSet};

use feedline_data::manifest::ShardRef;

use super::card::{Config, configs};
use super::choice::{Choice, choose};
use super::directory::Directory;
use super::file_kind::FileKind;
use super::patterns::{matching, splits_by_name};
use crate::error::SourceError;
use crate::stores::ScopedStores;

const README: &str = "README.md";
/// The configuration that a repository without configurations has, and that is preferred to others.
const DEFAULT_CONFIG: &str = "default";

/// Returns the shards of the chosen configuration and split.
pub(super) async fn shards(
    reads: &ScopedStores,
    directory: &Directory,
    choice: &Choice,
) -> Result<Vec<ShardRef>, SourceError> {
    let readme = directory.read(reads, README).await?.unwrap_or_default();
    let paths = choose_paths(directory, &String::from_utf8_lossy(&readme), choice);
    let paths = paths.map_err(|reason| directory.error(reason))?;
    Ok(paths.iter().filter_map(|path| directory.files.get(path).cloned()).collect())
}

fn choose_paths(directory: &Directory, readme: &str, choice: &Choice) -> Result<Vec<String>, String> {
    let all = configs(readme)?;
    let config = choose_config(&all, choice)?;
    let base = config.map_or("", |config| config.data_dir.as_str());
    let below: Vec<&str> = directory.files.keys().filter_map(|path| below(base, path)).collect();
    let splits: Vec<(String, Vec<String>)> = match config.and_then(|config| config.splits.as_ref()) {
        Some(splits) => {
            let mut found = Vec::new();
            for split in splits {
                found.push((split.split.clone(), files_of(&split.patterns, &below)?));
            }
            found
        }
        None => splits_by_name(&data_files(&below)?),
    };
    let names: Vec<&str> = splits.iter().map(|(split, _)| split.as_str()).collect();
    let split = choose("split", "source.split", &names, choice.split.as_deref())?;
    let files = splits.iter().find(|(name, _)| name == split).map(|(_, files)| files.as_slice());
    let files = of_one_kind(files.unwrap_or_default())?;
    Ok(files.into_iter().map(|file| if base.is_empty() { file } else { format!("{base}/{file}") }).collect())
}

/// The path relative to a directory.
fn below<'a>(base: &str, path: &'a str) -> Option<&'a str> {
    if base.is_empty() { Some(path) } else { path.strip_prefix(base)?.strip_prefix('/') }
}

/// Selects a configuration as `datasets` does; `None` for a repository without configurations.
fn choose_config<'a>(all: &'a [Config], choice: &Choice) -> Result<Option<&'a Config>, String> {
    let wanted = choice.config.as_deref();
    if all.is_empty() {
        return match wanted {
            None | Some(DEFAULT_CONFIG) => Ok(None),
            Some(wanted) => Err(format!(
                "the dataset has no configuration `{wanted}`, because its README.md defines no configurations: remove `source.config`"
            )),
        };
    }
    let preferred = all.iter().find(|config| config.is_default);
    let preferred = preferred.or_else(|| all.iter().find(|config| config.name == DEFAULT_CONFIG));
    if let (None, Some(preferred)) = (wanted, preferred) {
        return Ok(Some(preferred));
    }
    let names: Vec<&str> = all.iter().map(|config| config.name.as_str()).collect();
    let name = choose("configuration", "source.config", &names, wanted)?;
    Ok(all.iter().find(|config| config.name == name))
}

/// Returns the files of several patterns, in the order of the patterns.
fn files_of(patterns: &[String], paths: &[&str]) -> Result<Vec<String>, String> {
    let (mut files, mut seen) = (Vec::new(), HashSet::new());
    for pattern in patterns {
        let found = matching(pattern, paths.iter().copied())?;
        if found.is_empty() {
            return Err(format!(
                "the pattern `{pattern}` of README.md matches no files: correct `data_files` in README.md"
            ));
        }
        files.extend(found.into_iter().filter(|path| seen.insert((*path).to_owned())).map(str::to_owned));
    }
    Ok(files)
}

/// Returns the files whose format can be read.
fn data_files<'a>(paths: &[&'a str]) -> Result<Vec<&'a str>, String> {
    let files: Vec<&str> = paths.iter().copied().filter(|path| FileKind::of(path).is_some()).collect();
    if files.is_empty() {
        return Err(format!(
            "the dataset has no files with the extensions {}: if the Hub converted it, write the revision `@refs/convert/parquet`; \
             for images in directories, use `format: imagefolder`",
            FileKind::EXTENSIONS
        ));
    }
    Ok(files)
}

/// Returns the files of the most frequent format, as `datasets` does.
fn of_one_kind(files: &[String]) -> Result<Vec<String>, String> {
    let names: Vec<&str> = files.iter().map(String::as_str).collect();
    let readable = data_files(&names)?;
    let mut counts: BTreeMap<FileKind, usize> = BTreeMap::new();
    for kind in readable.iter().filter_map(|path| FileKind::of(path)) {
        *counts.entry(kind).or_default() += 1;
    }
    let most =
        counts.iter().max_by_key(|(kind, count)| (**count, std::cmp::Reverse(**kind))).map(|(kind, _)| *kind);
    Ok(readable.into_iter().filter(|path| FileKind::of(path) == most).map(str::to_owned).collect())
}
