//! Finds data files by pattern and by name, with the rules of `datasets.data_files`.

use std::collections::HashSet;

use glob::{MatchOptions, Pattern};

/// Files that are never data, unless a pattern names them.
const IGNORED_FILES: [&str; 6] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
];
/// The default splits in their order, with their words in names.
const SPLITS: [(&str, &[&str]); 3] = [
    ("train", &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];
const DATA_DIRECTORY: &str = "data/";

/// Returns the paths that match a pattern, sorted. `*` does not match a slash, and `**` does.
///
/// # Errors
/// Returns a message if the pattern is invalid.
pub(super) fn matching<'a>(
    pattern: &str,
    paths: impl Iterator<Item = &'a str>,
) -> Result<Vec<&'a str>, String> {
    let pattern = pattern.trim_start_matches("./");
    if pattern.contains("://") || pattern.starts_with('/') {
        return Err(format!(
            "the pattern `{pattern}` leads out of the repository: read such files with their own format, such as `format: parquet`"
        ));
    }
    let glob = Pattern::new(pattern)
        .map_err(|error| format!("the pattern `{pattern}` is invalid: {}", error.msg))?;
    let options = MatchOptions {
        case_sensitive: true,
        require_literal_separator: true,
        require_literal_leading_dot: false,
    };
    let own_name = pattern.rsplit('/').next().unwrap_or_default();
    let mut found: Vec<&str> = paths
        .filter(|path| *path == pattern || glob.matches_with(path, options))
        .filter(|path| {
            !is_ignored(path, own_name) && special_directories(path) == special_directories(pattern)
        })
        .collect();
    found.sort_unstable();
    Ok(found)
}

fn is_ignored(path: &str, own_name: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default();
    IGNORED_FILES.contains(&name) && name != own_name
}

/// The number of directories whose name starts with two underscores. A pattern must name such directories.
fn special_directories(path: &str) -> usize {
    let (directory, _) = path.rsplit_once('/').unwrap_or_default();
    directory.split('/').filter(|part| part.starts_with("__")).count()
}

/// Finds the splits of files by their names. Returns the splits with their paths, in the order of `datasets`.
pub(super) fn splits_by_name(paths: &[&str]) -> Vec<(String, Vec<String>)> {
    let usable: Vec<&str> = paths
        .iter()
        .copied()
        .filter(|path| !is_ignored(path, "") && special_directories(path) == 0)
        .collect();
    let sharded = sharded_splits(&usable);
    if !sharded.is_empty() {
        return sharded;
    }
    for is_of in [is_in_directory as fn(&str, &str) -> bool, has_in_name] {
        let by_word = SPLITS.iter().map(|(split, words)| {
            // Words come first, as in the list of patterns of `datasets`.
            let (mut files, mut seen) = (Vec::new(), HashSet::new());
            for word in *words {
                let of_word = usable.iter().filter(|path| is_of(path, word));
                files.extend(of_word.filter(|path| seen.insert(**path)).map(|path| (*path).to_owned()));
            }
            ((*split).to_owned(), files)
        });
        let found: Vec<_> = by_word.filter(|(_, files)| !files.is_empty()).collect();
        if !found.is_empty() {
            return found;
        }
    }
    let all: Vec<String> = usable.iter().map(|path| (*path).to_owned()).collect();
    if all.is_empty() { Vec::new() } else { vec![("train".to_owned(), all)] }
}

/// Finds files such as `data/train-00000-of-00003.parquet`.
fn sharded_splits(paths: &[&str]) -> Vec<(String, Vec<String>)> {
    let mut splits: Vec<(String, Vec<String>)> = Vec::new();
    for path in paths {
        let Some(split) = path.strip_prefix(DATA_DIRECTORY).and_then(sharded_split) else { continue };
        match splits.iter_mut().find(|(known, _)| known == split) {
            Some((_, files)) => files.push((*path).to_owned()),
            None => splits.push((split.to_owned(), vec![(*path).to_owned()])),
        }
    }
    let rank = |split: &str| SPLITS.iter().position(|(known, _)| *known == split).unwrap_or(SPLITS.len());
    splits.sort_by(|(a, _), (b, _)| (rank(a), a).cmp(&(rank(b), b)));
    splits
}

/// The split in `SPLIT-NNNNN-of-NNNNN*.*`.
fn sharded_split(name: &str) -> Option<&str> {
    const NUMBERS: usize = "-00000-of-00000".len();
    if name.contains('/') {
        return None;
    }
    let is_number = |digits: &[u8]| digits.len() == 5 && digits.iter().all(u8::is_ascii_digit);
    name.match_indices('-').rev().find_map(|(at, _)| {
        let numbers = name.as_bytes().get(at..at + NUMBERS)?;
        let is_sharded = is_number(&numbers[1..6]) && &numbers[6..10] == b"-of-" && is_number(&numbers[10..]);
        (is_sharded && at > 0 && name[at + NUMBERS..].contains('.')).then(|| &name[..at])
    })
}

/// The characters that separate words in names.
fn is_separator(c: char) -> bool {
    matches!(c, '-' | '.' | '_' | ' ') || c.is_ascii_digit()
}

/// Whether a directory of the path contains the word.
fn is_in_directory(path: &str, word: &str) -> bool {
    let (directory, _) = path.rsplit_once('/').unwrap_or_default();
    directory.split('/').any(|part| has_word(part, word, true))
}

/// Whether the name of the file contains the word.
fn has_in_name(path: &str, word: &str) -> bool {
    has_word(path.rsplit('/').next().unwrap_or_default(), word, false)
}

/// Whether the word is between separators. It may be at the start, and at the end if `may_end`.
fn has_word(name: &str, word: &str, may_end: bool) -> bool {
    name.match_indices(word).any(|(at, _)| {
        let before = name[..at].chars().next_back();
        let after = name[at + word.len()..].chars().next();
        before.is_none_or(is_separator) && after.map_or(may_end, is_separator)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_like_those_of_datasets() {
        let paths = ["README.md", "a.csv", "data/b.csv", "data/x/c.csv", "__x__/d.csv", "b/__y/e.csv"];
        let of = |pattern: &str| matching(pattern, paths.into_iter()).unwrap();
        assert_eq!(of("*.csv"), ["a.csv"]);
        assert_eq!(of("**/*.csv"), ["a.csv", "data/b.csv", "data/x/c.csv"]);
        assert_eq!(of("data/**"), ["data/b.csv", "data/x/c.csv"]);
        assert_eq!(of("./data/b.csv"), ["data/b.csv"]);
        assert_eq!(of("__x__/*"), ["__x__/d.csv"]);
        assert_eq!(of("**"), ["a.csv", "data/b.csv", "data/x/c.csv"]);
        assert_eq!(of("README.md"), ["README.md"]);
        assert!(
            matching("https://h/x", paths.into_iter()).is_err()
                && matching("a***", paths.into_iter()).is_err()
        );
    }

    fn splits(paths: &[&str]) -> Vec<String> {
        splits_by_name(paths)
            .into_iter()
            .map(|(split, files)| format!("{split}: {}", files.join(" ")))
            .collect()
    }

    #[test]
    fn splits_are_found_by_name() {
        assert_eq!(
            splits(&[
                "data/test-00000-of-00001.parquet",
                "data/train-00000-of-00001-9f.parquet",
                "x.parquet"
            ]),
            ["train: data/train-00000-of-00001-9f.parquet", "test: data/test-00000-of-00001.parquet"]
        );
        assert_eq!(
            splits(&["train/a.csv", "my_test-1/b.csv", "c.csv"]),
            ["train: train/a.csv", "test: my_test-1/b.csv"]
        );
        assert_eq!(
            splits(&["a.csv", "training.csv", "x-dev.jsonl", "contest.csv"]),
            ["train: training.csv", "validation: x-dev.jsonl"]
        );
        assert_eq!(splits(&["a.csv", "README.md", "b/c.csv"]), ["train: a.csv b/c.csv"]);
        assert_eq!(splits(&["data/-ääääääää.csv"]), ["train: data/-ääääääää.csv"]);
        assert_eq!(splits(&["README.md"]), Vec::<String>::new());
    }
}
