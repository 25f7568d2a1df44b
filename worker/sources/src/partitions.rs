//! Columns from directories with names such as `year=2024` (Hive partitioning), typed as pyarrow does.
//!
//! Every such directory in the URL of a shard is a column, also above a pattern. A column is `int32` if all of its values are
//! decimal numbers of 32 bits, and text otherwise. The value `__HIVE_DEFAULT_PARTITION__` and a missing directory are null.

use std::collections::{BTreeMap, BTreeSet};

use feedline_data::manifest::{ShardRef, ShardValue, ShardValues};
use feedline_data::schema::ScalarType;
use feedline_data::urls::percent_decode;

use crate::error::SourceError;
use crate::location::Location;

/// The value of rows without a value, as in Hive.
const NULL_VALUE: &str = "__HIVE_DEFAULT_PARTITION__";
/// Maximum number of columns. Each shard has a value of each column.
const MAX_COLUMNS: usize = 64;

/// Adds the columns of directories to the values of all shards.
pub(crate) fn add_values(shards: &mut [ShardRef]) -> Result<(), SourceError> {
    let mut names: Vec<String> = Vec::new();
    let mut texts: BTreeSet<String> = BTreeSet::new();
    let mut all = Vec::with_capacity(shards.len());
    for shard in shards.iter() {
        let values = directory_values(&Location::parse(&shard.url)?.rest)
            .map_err(|reason| SourceError::Url { url: shard.url.clone(), reason })?;
        for (name, value) in &values {
            if !names.contains(name) {
                names.push(name.clone());
            }
            if names.len() > MAX_COLUMNS {
                let reason = format!(
                    "the directories have more than {MAX_COLUMNS} names, such as `{name}`, and each name is a column: put values such \
                     as ids after the `=`, or remove `partitions: hive`"
                );
                return Err(SourceError::Url { url: shard.url.clone(), reason });
            }
            if value.as_deref().is_some_and(|text| !is_int32(text)) && !texts.contains(name) {
                texts.insert(name.clone());
            }
        }
        all.push(values);
    }
    // A column whose values are all null is text.
    for name in &names {
        if !all.iter().any(|values| values.get(name).is_some_and(Option::is_some)) {
            texts.insert(name.clone());
        }
    }
    for (shard, mut values) in shards.iter_mut().zip(all) {
        let of_directories = names.iter().map(|name| ShardValue {
            name: name.clone(),
            integer: (!texts.contains(name)).then_some(ScalarType::Int32),
            text: values.remove(name).flatten(),
        });
        shard.values = shard.values.iter().cloned().chain(of_directories).collect::<Vec<_>>().into();
    }
    ShardValues::share(shards.iter_mut().map(|shard| &mut shard.values));
    Ok(())
}

/// Returns the values of the directories of a path by name.
fn directory_values(path: &str) -> Result<BTreeMap<String, Option<String>>, String> {
    let (directory, _) = path.rsplit_once('/').unwrap_or_default();
    let mut values = BTreeMap::new();
    for part in directory.split('/') {
        let Some((name, value)) = part.split_once('=').filter(|(name, _)| !name.is_empty()) else { continue };
        let decode = |text: &str| {
            percent_decode(text).map_err(|_| {
                format!("the directory `{part}` is not UTF-8 after decoding: rename the directory")
            })
        };
        let value = if value == NULL_VALUE { None } else { Some(decode(value)?) };
        values.insert(decode(name)?, value);
    }
    Ok(values)
}

fn is_int32(text: &str) -> bool {
    !text.starts_with('+') && text.parse::<i32>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(paths: &[String]) -> Vec<ShardRef> {
        paths
            .iter()
            .map(|path| ShardRef { url: format!("s3://bucket/{path}"), ..ShardRef::default() })
            .collect()
    }

    /// Compares the types and values with those of pyarrow, which `testdata/make_layouts.py` wrote.
    #[test]
    fn types_and_values_are_those_of_pyarrow() {
        let expected: serde_json::Value =
            serde_json::from_str(include_str!("../testdata/layouts/hive.json")).unwrap();
        for (name, tree) in expected.as_object().unwrap() {
            let files: Vec<String> = tree["files"]
                .as_array()
                .unwrap()
                .iter()
                .map(|file| file.as_str().unwrap().to_owned())
                .collect();
            let mut shards = shards(&files);
            add_values(&mut shards).unwrap();
            if tree.get("error").is_some() {
                assert!(shards[0].values[0].text.is_none(), "{name}");
                continue;
            }
            for (file, shard) in files.iter().zip(&shards) {
                let columns = tree["schema"].as_object().unwrap();
                assert_eq!(shard.values.len(), columns.len(), "{name}");
                for value in &shard.values {
                    let expected_type = if value.integer.is_some() { "int32" } else { "string" };
                    assert_eq!(columns[&value.name], expected_type, "{name}");
                    let expected = &tree["values"][file][&value.name];
                    match (&value.text, value.integer) {
                        (None, _) => assert!(expected.is_null(), "{name}"),
                        (Some(text), None) => assert_eq!(expected, text.as_str(), "{name}"),
                        (Some(text), Some(_)) => {
                            assert_eq!(expected, &text.parse::<i64>().unwrap(), "{name}")
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn values_in_the_place_of_names_are_rejected() {
        let paths: Vec<String> = (0..65).map(|user| format!("user{user}=1/a.parquet")).collect();
        let error = add_values(&mut shards(&paths)).unwrap_err().to_string();
        assert!(error.contains("more than 64 names, such as `user64`"), "{error}");
        assert!(add_values(&mut shards(&paths[..64])).is_ok());
    }

    #[test]
    fn directories_above_a_pattern_and_other_names() {
        let values = |path: &str| directory_values(path).unwrap();
        let one = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), Some(value.to_owned()))]);
        assert_eq!(values("a=1/b/x=y.txt"), one("a", "1"));
        assert_eq!(values("=1/b%3D=c=d/x"), one("b=", "c=d"));
        assert!(values("x").is_empty());
        assert!(directory_values("a=%ff/x").is_err());
    }
}
