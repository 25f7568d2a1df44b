//! The configurations in the YAML at the start of a repository's README.md, which the Hub calls the dataset card.

use feedline_data::pipeline::MAX_FILE_BYTES;
use feedline_data::yaml;
use serde_json::Value;

/// A configuration of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Config {
    pub(super) name: String,
    pub(super) is_default: bool,
    /// The directory that paths are relative to; empty for the repository.
    pub(super) data_dir: String,
    /// The patterns of each split; `None` if the names of the files determine the splits.
    pub(super) splits: Option<Vec<SplitFiles>>,
}

/// The files of a split.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SplitFiles {
    pub(super) split: String,
    /// Paths or patterns, relative to the directory of the configuration.
    pub(super) patterns: Vec<String>,
}

/// Parses the configurations of a README. Returns an empty list without configurations.
///
/// # Errors
/// Returns a message that names the invalid part and the fix.
pub(super) fn configs(readme: &str) -> Result<Vec<Config>, String> {
    let Some(front) = front_matter(readme) else { return Ok(Vec::new()) };
    const OTHER_FORMAT: &str = "or read the files with their own format, such as `format: parquet`";
    if front.len() > MAX_FILE_BYTES {
        return Err(format!(
            "the YAML at the start of README.md is {} bytes long; the limit is {MAX_FILE_BYTES} bytes: shorten it, {OTHER_FORMAT}",
            front.len()
        ));
    }
    // The parser limits the number of values, because anyone can publish a README whose aliases expand to more than fit into memory.
    let value: Value = yaml::parse(front).map_err(|error| {
        let error = error.message("README.md");
        format!("the YAML at the start of README.md is invalid ({error}): correct the YAML, {OTHER_FORMAT}")
    })?;
    match value.get("configs") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(entries)) => entries.iter().map(config).collect(),
        Some(_) => Err(invalid("`configs` is not a list")),
    }
}

/// The text between two lines `---` at the start of a file.
fn front_matter(readme: &str) -> Option<&str> {
    let readme = readme.trim_start_matches('\u{feff}').trim_start();
    let (first, rest) = readme.split_once('\n')?;
    if first.trim_end() != "---" {
        return None;
    }
    let mut length = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Some(&rest[..length]);
        }
        length += line.len();
    }
    None
}

fn invalid(reason: &str) -> String {
    format!("the YAML at the start of README.md is invalid: {reason}; correct the YAML")
}

fn config(value: &Value) -> Result<Config, String> {
    let name = value.get("config_name").and_then(text);
    let name = name.ok_or_else(|| invalid("an entry of `configs` has no `config_name`"))?;
    let data_dir = value.get("data_dir").and_then(text).unwrap_or_default();
    let splits = match value.get("data_files") {
        None | Some(Value::Null) => None,
        Some(files) => Some(
            split_files(files)
                .map_err(|reason| invalid(&format!("`data_files` of the configuration `{name}` {reason}")))?,
        ),
    };
    Ok(Config {
        name,
        is_default: value.get("default").and_then(Value::as_bool).unwrap_or(false),
        data_dir: data_dir.trim_start_matches("./").trim_matches('/').to_owned(),
        splits,
    })
}

/// Parses one pattern, a list of patterns, or a list of splits with their patterns.
fn split_files(files: &Value) -> Result<Vec<SplitFiles>, String> {
    let of_train = |patterns| vec![SplitFiles { split: "train".to_owned(), patterns }];
    if let Some(one) = text(files) {
        return Ok(of_train(vec![one]));
    }
    let expected = || "is not a pattern, a list of patterns, or a list of `split` and `path`".to_owned();
    let Value::Array(entries) = files else { return Err(expected()) };
    if entries.iter().all(|entry| text(entry).is_some()) {
        return Ok(of_train(entries.iter().filter_map(text).collect()));
    }
    let mut splits: Vec<SplitFiles> = Vec::new();
    for entry in entries {
        let split = entry.get("split").and_then(text).ok_or_else(expected)?;
        let patterns = match entry.get("path") {
            Some(Value::Array(paths)) => paths.iter().map(text).collect::<Option<Vec<_>>>(),
            Some(path) => text(path).map(|path| vec![path]),
            None => None,
        };
        if splits.iter().any(|known| known.split == split) {
            return Err(format!("contains the split `{split}` twice"));
        }
        splits.push(SplitFiles { split, patterns: patterns.ok_or_else(expected)? });
    }
    Ok(splits)
}

/// A string, or a number as a string, because YAML reads `2024` as a number.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(yaml: &str) -> Result<Vec<Config>, String> {
        configs(&format!("---\n{yaml}\n---\n# Title\n"))
    }

    #[test]
    fn configurations_are_parsed() {
        let found = of("license: mit\nconfigs:\n- config_name: en\n  default: true\n  data_files:\n  - split: train\n    \
                        path: en/train-*\n  - split: test\n    path: [a.parquet, b.parquet]\n- config_name: 2024\n  \
                        data_dir: ./de/\n- config_name: x\n  data_files: x.csv")
        .unwrap();
        let files = |split: &str, patterns: &[&str]| SplitFiles {
            split: split.to_owned(),
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
        };
        let config = |name: &str, is_default, data_dir: &str, splits| Config {
            name: name.to_owned(),
            is_default,
            data_dir: data_dir.to_owned(),
            splits,
        };
        let expected = [
            config(
                "en",
                true,
                "",
                Some(vec![files("train", &["en/train-*"]), files("test", &["a.parquet", "b.parquet"])]),
            ),
            config("2024", false, "de", None),
            config("x", false, "", Some(vec![files("train", &["x.csv"])])),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn aliases_and_long_documents_are_limited() {
        let list = format!("big: &big [{}x]\n", "x, ".repeat(40_000));
        let aliases = format!("{list}configs:\n{}", "- *big\n".repeat(4_000));
        let error = of(&aliases).unwrap_err();
        assert!(error.contains("values after alias expansion"), "{error}");
        let error = of(&format!("text: {}", "x".repeat(MAX_FILE_BYTES))).unwrap_err();
        assert!(error.contains("the limit is 1048576 bytes"), "{error}");
    }

    #[test]
    fn other_files_have_no_configurations() {
        for readme in
            ["", "# Title\n", "---\nlicense: mit\n", "---\nlicense: mit\n---\n", "---\nconfigs:\n---\n"]
        {
            assert_eq!(configs(readme), Ok(Vec::new()), "{readme}");
        }
    }

    #[test]
    fn errors_name_the_invalid_part() {
        for (yaml, part) in [
            ("configs: [", "correct the YAML, or read the files"),
            ("configs: 5", "`configs` is not a list"),
            ("configs:\n- data_files: x", "no `config_name`"),
            ("configs:\n- config_name: a\n  data_files: {x: y}", "`a` is not a pattern"),
            ("configs:\n- config_name: a\n  data_files:\n  - {split: s}", "`a` is not a pattern"),
            (
                "configs:\n- config_name: a\n  data_files:\n  - {split: s, path: x}\n  - {split: s, path: y}",
                "twice",
            ),
        ] {
            let error = of(yaml).unwrap_err();
            assert!(error.contains("README.md is invalid") && error.contains(part), "{error}");
        }
    }
}
