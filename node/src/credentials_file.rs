//! Reads the file of `--credentials`. Error messages never contain a value, because values are secret.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use feedline_data::urls::UrlPolicy;
use feedline_data::yaml::{self, YamlProblem};
use feedline_worker::Credential;
use serde_json::{Map, Value};

use crate::environment;
use crate::failure::{Failure, reason};

/// Maximum size of the file in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// An example of a credentials file, for error messages.
const FILE_EXAMPLE: &str =
    "expected `name: { aws_access_key_id: ..., aws_secret_access_key: ..., urls: [s3://bucket] }`";

/// Loads the credentials in a file, by name.
pub(crate) fn load(path: &Path) -> Result<BTreeMap<String, Credential>, Failure> {
    let file = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        let reason = reason(&error);
        Failure::invalid_usage(format!("cannot read {file}: {reason}; pass the path of a credentials file"))
    };
    let bytes = fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MAX_FILE_BYTES {
        return Err(Failure::invalid_usage(format!(
            "{file} is {bytes} bytes long; the limit for a credentials file is {MAX_FILE_BYTES} bytes; specify another file"
        )));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|sentence| Failure::invalid_usage(format!("{file}{sentence}")))
}

/// Parses the text of a file. An error starts with `:`, followed by the line number if the YAML parser reports it.
fn parse(text: &str) -> Result<BTreeMap<String, Credential>, String> {
    let document = match yaml::parse(text) {
        Ok(document) => document,
        Err(error) if error.problem == YamlProblem::Empty => Value::Null,
        // The sentence of the error could contain a value.
        Err(error) => {
            let line = error.line.map(|line| format!(":{line}")).unwrap_or_default();
            return Err(format!("{line}: invalid YAML, or a duplicate name; {FILE_EXAMPLE}"));
        }
    };
    let names = match document {
        Value::Object(names) => names,
        Value::Null => Map::new(),
        _ => return Err(format!(": invalid credentials: {FILE_EXAMPLE}")),
    };
    let mut all = BTreeMap::new();
    for (name, options) in names {
        if !is_name(&name) {
            return Err(format!(
                ": invalid name: only letters, digits, `_`, `.` and `-` are allowed; {FILE_EXAMPLE}"
            ));
        }
        let Value::Object(options) = options else {
            return Err(format!(": `{name}` has no options; {FILE_EXAMPLE}"));
        };
        let credential = parse_credential(options).map_err(|sentence| format!(": `{name}`: {sentence}"))?;
        all.insert(name, credential);
    }
    Ok(all)
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !name.is_empty() && name.len() <= 128 && name.chars().all(allowed)
}

fn parse_credential(entries: Map<String, Value>) -> Result<Credential, String> {
    let mut options = Vec::new();
    let mut urls = UrlPolicy::default();
    for (key, value) in entries {
        if key == "urls" {
            urls = parse_scope(value)?;
            continue;
        }
        match value {
            Value::String(value) => options.push((key, value)),
            Value::Bool(value) => options.push((key, value.to_string())),
            _ => {
                // Check that the key is an option name before a message shows it, because it may be a misplaced secret.
                Credential::check_option(&key)?;
                return Err(format!("the value of `{key}` is not a string: put it in quotes"));
            }
        }
    }
    if options.iter().any(|(key, _)| key.eq_ignore_ascii_case("aws_profile")) {
        // Later options take precedence.
        options.splice(0..0, environment::aws_files());
    }
    Credential::new(options, urls)
}

/// Parses one URL prefix or a list of them.
fn parse_scope(value: Value) -> Result<UrlPolicy, String> {
    let prefixes = match value {
        Value::String(one) => vec![one],
        Value::Array(many) => {
            let texts = many.into_iter().map(|one| one.as_str().map(str::to_owned));
            texts
                .collect::<Option<Vec<_>>>()
                .ok_or("invalid urls: expected a list of prefixes, such as `[s3://bucket]`")?
        }
        _ => return Err("invalid urls: expected a list of prefixes, such as `[s3://bucket]`".to_owned()),
    };
    if prefixes.is_empty() {
        return Err("urls is empty: add a prefix, or remove `urls` to allow all URLs".to_owned());
    }
    UrlPolicy::new(prefixes).map_err(|sentence| format!("urls: {sentence}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_options_and_scopes_are_read() {
        let all = parse(
            "imagenet:\n  urls: [s3://imagenet/, /data]\n  aws_access_key_id: id\n  aws_secret_access_key: key\n  \
             aws_allow_http: true\nminio: {aws_endpoint: 'http://minio:9000', AWS_REGION: x}\n",
        )
        .unwrap();
        assert_eq!(all.keys().collect::<Vec<_>>(), ["imagenet", "minio"]);
        assert_eq!(all["imagenet"].urls().prefixes().collect::<Vec<_>>(), ["s3://imagenet/", "/data"]);
        assert!(all["minio"].urls().allows_all());
        assert_eq!(parse("").unwrap().len(), 0);
    }

    #[test]
    fn error_messages_never_contain_a_value() {
        for (text, expected) in [
            ("a: {aws_region: HUSH", ": invalid YAML"),
            ("a: {aws_region: x}\na: {aws_region: HUSH}", "a duplicate name"),
            ("- HUSH", ": invalid credentials"),
            ("HUSH", ": invalid credentials"),
            ("a: HUSH", ": `a` has no options"),
            ("a b/HUSH: {aws_region: x}", ": invalid name"),
            (
                "a: {aws_sekret_access_key: HUSH}",
                ": `a`: unknown store option `aws_sekret_access_key`; did you mean `aws_secret_access_key`?",
            ),
            (
                "a: {aws_secret_access_key: 12345678}",
                ": `a`: the value of `aws_secret_access_key` is not a string: put it in quotes",
            ),
            (
                "a: {aws_secret_access_key: [HUSH]}",
                ": `a`: the value of `aws_secret_access_key` is not a string",
            ),
            ("a: {HUSH/x: [1]}", ": `a`: unknown store option"),
            ("a: {urls: 7}", ": `a`: invalid urls"),
            ("a: {urls: []}", ": `a`: urls is empty"),
            ("a: {urls: [data]}", ": `a`: urls: invalid URL prefix `data`"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(
                error.contains(expected) && !error.contains("HUSH") && !error.contains("12345678"),
                "{error}"
            );
        }
    }

    #[test]
    fn the_error_for_a_missing_file_names_its_path() {
        let error = load(Path::new("/nowhere/c.yaml")).unwrap_err().to_string();
        assert!(error.starts_with("cannot read /nowhere/c.yaml: no such file"), "{error}");
    }
}
