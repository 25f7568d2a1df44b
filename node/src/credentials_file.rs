//! The file of `--credentials`. Nothing of a value is ever said, so that what is wrong is told in words of our own.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use feedline_data::urls::UrlPolicy;
use feedline_worker::Credential;
use serde_yaml_ng::{Mapping, Value};

use crate::failure::{Failure, reason};

/// Largest file in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// What one looks like.
const SUCH_AS: &str =
    "write `name: { aws_access_key_id: ..., aws_secret_access_key: ..., urls: [s3://bucket] }`";

/// The credentials in a file, by name.
pub(crate) fn load(path: &Path) -> Result<BTreeMap<String, Credential>, Failure> {
    let file = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        let reason = reason(&error);
        Failure::wrong_use(format!("cannot read {file}: {reason}; give the path of a file of credentials"))
    };
    let bytes = fs::metadata(path).map_err(unreadable)?.len();
    if bytes > MAX_BYTES {
        return Err(Failure::wrong_use(format!(
            "{file} has {bytes} bytes, and a file of credentials at most {MAX_BYTES}"
        )));
    }
    let text = fs::read_to_string(path).map_err(unreadable)?;
    parse(&text).map_err(|sentence| Failure::wrong_use(format!("{file}{sentence}")))
}

/// The sentence begins with the line, where that is known.
fn parse(text: &str) -> Result<BTreeMap<String, Credential>, String> {
    let document: Value = serde_yaml_ng::from_str(text).map_err(|error| {
        let line = error.location().map(|at| format!(":{}", at.line())).unwrap_or_default();
        format!("{line}: this is not valid YAML, or a name is given twice; {SUCH_AS}")
    })?;
    let names = match document {
        Value::Mapping(names) => names,
        Value::Null => Mapping::new(),
        _ => return Err(format!(": credentials are a mapping of names; {SUCH_AS}")),
    };
    let mut all = BTreeMap::new();
    for (name, options) in names {
        let Some(name) = name.as_str().filter(|name| is_name(name)).map(str::to_owned) else {
            return Err(format!(
                ": a name has other characters than letters, digits, `_`, `.` and `-`; {SUCH_AS}"
            ));
        };
        let Value::Mapping(options) = options else {
            return Err(format!(": `{name}` has no options; {SUCH_AS}"));
        };
        let credential = credential(options).map_err(|sentence| format!(": `{name}`: {sentence}"))?;
        all.insert(name, credential);
    }
    Ok(all)
}

fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    !name.is_empty() && name.len() <= 128 && name.chars().all(allowed)
}

fn credential(mapping: Mapping) -> Result<Credential, String> {
    let mut options = Vec::new();
    let mut urls = UrlPolicy::default();
    for (key, value) in mapping {
        let key =
            key.as_str().ok_or_else(|| format!("the name of an option is no text; {SUCH_AS}"))?.to_owned();
        if key == "urls" {
            urls = scope(value)?;
            continue;
        }
        match value {
            Value::String(value) => options.push((key, value)),
            Value::Bool(value) => options.push((key, value.to_string())),
            _ => {
                // What a key of this name is must be known before it is shown.
                Credential::new([(key.clone(), String::new())], UrlPolicy::default())?;
                return Err(format!("the value of `{key}` is no text for YAML; put it in quotes"));
            }
        }
    }
    Credential::new(options, urls)
}

/// One prefix or several.
fn scope(value: Value) -> Result<UrlPolicy, String> {
    let prefixes = match value {
        Value::String(one) => vec![one],
        Value::Sequence(many) => {
            let texts = many.into_iter().map(|one| one.as_str().map(str::to_owned));
            texts.collect::<Option<Vec<_>>>().ok_or("urls is a list of prefixes, such as `[s3://bucket]`")?
        }
        _ => return Err("urls is a list of prefixes, such as `[s3://bucket]`".to_owned()),
    };
    if prefixes.is_empty() {
        return Err(
            "urls is empty, so that the credentials are for nothing; write a prefix, or leave it out"
                .to_owned(),
        );
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
        assert!(all["minio"].urls().is_open());
        assert_eq!(parse("").unwrap().len(), 0);
    }

    #[test]
    fn what_is_wrong_is_said_without_any_value() {
        for (text, says) in [
            ("a: {aws_region: HUSH", ": this is not valid YAML"),
            ("a: {aws_region: x}\na: {aws_region: HUSH}", "a name is given twice"),
            ("- HUSH", ": credentials are a mapping of names"),
            ("HUSH", ": credentials are a mapping of names"),
            ("a: HUSH", ": `a` has no options"),
            ("a b/HUSH: {aws_region: x}", ": a name has other characters"),
            (
                "a: {aws_sekret_access_key: HUSH}",
                ": `a`: `aws_sekret_access_key` is not an option of a store; did you mean `aws_secret_access_key`?",
            ),
            (
                "a: {aws_secret_access_key: 12345678}",
                ": `a`: the value of `aws_secret_access_key` is no text for YAML; put it in quotes",
            ),
            ("a: {aws_secret_access_key: [HUSH]}", ": `a`: the value of `aws_secret_access_key` is no text"),
            ("a: {HUSH/x: [1]}", ": `a`: an entry is not an option"),
            ("a: {urls: 7}", ": `a`: urls is a list"),
            ("a: {urls: []}", ": `a`: urls is empty"),
            ("a: {urls: [data]}", ": `a`: urls: `data` is no prefix"),
        ] {
            let told = parse(text).unwrap_err();
            assert!(told.contains(says) && !told.contains("HUSH") && !told.contains("12345678"), "{told}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let told = load(Path::new("/nowhere/c.yaml")).unwrap_err().to_string();
        assert!(told.starts_with("cannot read /nowhere/c.yaml: no such file"), "{told}");
    }
}
