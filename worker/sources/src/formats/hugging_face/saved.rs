//! Directories that the library `datasets` wrote: by `Dataset.save_to_disk`, by `DatasetDict.save_to_disk`, and its cache.

use std::collections::BTreeMap;

use feedline_data::manifest::ShardRef;
use serde_json::Value;

use super::choice::{Choice, choose};
use super::directory::Directory;
use crate::error::SourceError;
use crate::stores::ScopedStores;

/// Written by `save_to_disk` beside the files of a dataset.
const STATE: &str = "state.json";
/// Written by `DatasetDict.save_to_disk` beside the directories of its splits.
const DICT: &str = "dataset_dict.json";
/// Written beside the files of a split in the cache.
const INFO: &str = "dataset_info.json";
/// Maximum number of shards of a split. Larger numbers in a description are mistakes.
const MAX_SHARDS: usize = 100_000;

/// Returns the shards of a directory that `datasets` wrote; `None` for other directories.
pub(super) async fn shards(
    reads: &ScopedStores,
    directory: &Directory,
    choice: &Choice,
) -> Result<Option<Vec<ShardRef>>, SourceError> {
    if let Some(state) = directory.read_json(reads, STATE).await? {
        reject_config(directory, choice)?;
        let split = state.get("_split").and_then(Value::as_str);
        if let (Some(wanted), Some(split)) = (&choice.split, split)
            && wanted != split
        {
            return Err(directory.error(format!(
                "the directory contains only the split `{split}`: set `source.split` to `{split}`, or remove it"
            )));
        }
        return saved_files(directory, "", &state).map(Some);
    }
    if let Some(dict) = directory.read_json(reads, DICT).await? {
        reject_config(directory, choice)?;
        let splits: Vec<&str> = dict
            .get("splits")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let split = choose("split", "source.split", &splits, choice.split.as_deref())
            .map_err(|reason| directory.error(reason))?;
        let path = format!("{split}/{STATE}");
        let state = directory.read_json(reads, &path).await?;
        let state = state.ok_or_else(|| {
            directory.error(format!("`{path}` does not exist: write the dataset again with `save_to_disk`"))
        })?;
        return saved_files(directory, &format!("{split}/"), &state).map(Some);
    }
    cached(reads, directory, choice).await
}

fn reject_config(directory: &Directory, choice: &Choice) -> Result<(), SourceError> {
    match &choice.config {
        None => Ok(()),
        Some(_) => {
            Err(directory
                .error("a directory of `save_to_disk` has no configurations: remove `source.config`"))
        }
    }
}

/// Returns the files that `state.json` lists, in its order.
fn saved_files(directory: &Directory, base: &str, state: &Value) -> Result<Vec<ShardRef>, SourceError> {
    let indices = ["_indices_files", "_indices_data_files"];
    let has_indices = |key: &&str| {
        state.get(*key).is_some_and(|value| !value.is_null() && *value != Value::Array(Vec::new()))
    };
    if indices.iter().any(has_indices) {
        return Err(directory.error(
            "the dataset was saved with an indices mapping: load it, call `flatten_indices`, and save it again",
        ));
    }
    let files = state.get("_data_files").and_then(Value::as_array);
    let files = files.ok_or_else(|| {
        directory
            .error(format!("`{base}{STATE}` lists no files: write the dataset again with `save_to_disk`"))
    })?;
    let names = files.iter().map(|file| file.get("filename").and_then(Value::as_str).unwrap_or_default());
    find_all(directory, names.map(|name| format!("{base}{name}")), STATE)
}

/// Returns files of the directory by their paths.
fn find_all(
    directory: &Directory,
    paths: impl Iterator<Item = String>,
    list: &str,
) -> Result<Vec<ShardRef>, SourceError> {
    let find = |path: String| {
        directory.files.get(&path).cloned().ok_or_else(|| {
            directory.error(format!(
                "`{list}` names the file `{path}`, which does not exist: write the dataset again"
            ))
        })
    };
    paths.map(find).collect()
}

/// Returns the files of a split in the cache. The URL is the directory of the files, or a directory above.
async fn cached(
    reads: &ScopedStores,
    directory: &Directory,
    choice: &Choice,
) -> Result<Option<Vec<ShardRef>>, SourceError> {
    let mut caches = BTreeMap::new();
    for path in directory.files.keys() {
        let Some(base) = path.strip_suffix(INFO).filter(|base| base.is_empty() || base.ends_with('/')) else {
            continue;
        };
        let mut beside = directory.files.keys().filter_map(|path| path.strip_prefix(base));
        if !beside.any(|name| name.ends_with(".arrow") && !name.contains('/')) {
            continue;
        }
        let info = directory.read_json(reads, path).await?.unwrap_or_default();
        let config = info.get("config_name").and_then(Value::as_str).unwrap_or_default().to_owned();
        caches.insert(base.to_owned(), (config, info));
    }
    if caches.is_empty() {
        return Ok(None);
    }
    let mut configs: Vec<&str> = caches.values().map(|(config, _)| config.as_str()).collect();
    configs.sort_unstable();
    configs.dedup();
    let failed = |reason: String| directory.error(reason);
    let config =
        choose("configuration", "source.config", &configs, choice.config.as_deref()).map_err(failed)?;
    let mut matching = caches.iter().filter(|(_, (name, _))| name == config);
    let Some((base, (_, info))) = matching.next() else { return Ok(None) };
    if let Some((other, _)) = matching.next() {
        return Err(directory.error(format!(
            "the cache contains the configuration `{config}` more than once: write one of the directories `{base}` and `{other}`"
        )));
    }
    let splits = info.get("splits").and_then(Value::as_object);
    let names: Vec<&str> = splits.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    let split = choose("split", "source.split", &names, choice.split.as_deref()).map_err(failed)?;
    let files = cached_names(info, split).ok_or_else(|| {
        failed(format!(
            "`{base}{INFO}` does not describe the split `{split}`: load the dataset again with `datasets`"
        ))
    })?;
    find_all(directory, files.into_iter().map(|name| format!("{base}{name}")), INFO).map(Some)
}

/// The names of the files of a split: `NAME-SPLIT.arrow`, or one file per shard.
fn cached_names(info: &Value, split: &str) -> Option<Vec<String>> {
    let entry = info.get("splits")?.get(split)?;
    let name =
        entry.get("dataset_name").or_else(|| info.get("dataset_name")).or_else(|| info.get("builder_name"));
    let prefix = format!("{}-{split}", snake_case(name?.as_str()?));
    let shards = entry.get("shard_lengths").and_then(Value::as_array).map_or(1, Vec::len);
    match shards {
        0 | 1 => Some(vec![format!("{prefix}.arrow")]),
        2..=MAX_SHARDS => {
            Some((0..shards).map(|at| format!("{prefix}-{at:05}-of-{shards:05}.arrow")).collect())
        }
        _ => None,
    }
}

/// Converts a name as `datasets.naming.camelcase_to_snakecase` does.
fn snake_case(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut snake = String::with_capacity(name.len());
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| chars[before]);
        let after = chars.get(at + 1);
        let starts_word = c.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase)
            });
        if starts_word {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests;
