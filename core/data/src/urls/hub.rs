//! URLs of datasets on the Hugging Face Hub: `hf://datasets/ORG/NAME[@REVISION][/PATH]`.

use std::borrow::Cow;

use super::percent::percent_decode;

/// Revisions that contain a slash: the branch of converted files, and pull requests.
const REVISIONS_WITH_SLASH: [&str; 2] = ["refs/convert/", "refs/pr/"];
/// The correct form of a URL, for error messages.
const FORM: &str = "write `hf://datasets/ORG/NAME`, followed by `@REVISION` or a path if needed";

/// The parts of a URL on the Hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubPath {
    /// The organization or user, and the name: `ORG/NAME`.
    pub repository: String,
    /// The branch, tag or commit; `None` for the default branch.
    pub revision: Option<String>,
    /// The path of a file or directory in the repository; empty for the repository.
    pub path: String,
}

impl HubPath {
    /// Parses the part of a URL after `hf://datasets/`.
    ///
    /// # Errors
    /// Returns a message with the correct form.
    pub fn parse(rest: &str) -> Result<Self, String> {
        let mut parts = rest.splitn(3, '/');
        let (organization, name) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let below = parts.next().unwrap_or_default();
        let (name, revision) = match name.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (name, None),
        };
        let is_name = |name: &str| {
            !matches!(name, "" | "." | "..")
                && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
        };
        if !is_name(organization) || !is_name(name) {
            return Err(format!("the URL does not name a repository: {FORM}"));
        }
        let repository = format!("{organization}/{name}");
        let Some(revision) = revision else {
            return Ok(Self { repository, revision: None, path: below.to_owned() });
        };
        let whole = format!("{revision}/{below}");
        let with_slash = REVISIONS_WITH_SLASH.iter().find_map(|start| {
            let last = whole.strip_prefix(start)?;
            let length = last.find('/').unwrap_or(last.len());
            (length > 0).then(|| whole.split_at(start.len() + length))
        });
        let (revision, path) = match with_slash {
            Some((revision, path)) => (revision.to_owned(), path.trim_start_matches('/').to_owned()),
            None => (percent_decode(revision)?, below.to_owned()),
        };
        let is_revision = !revision.is_empty()
            && !revision.split('/').any(|part| matches!(part, "" | "." | ".."))
            && revision
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+'));
        if !is_revision {
            return Err(format!("the revision after `@` is invalid: {FORM}"));
        }
        Ok(Self { repository, revision: Some(revision), path })
    }

    /// Whether the revision is the hash of a commit, so that the content never changes.
    pub fn is_pinned(&self) -> bool {
        self.revision.as_deref().is_some_and(|revision| {
            revision.len() == 40 && revision.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        })
    }

    /// The part of a URL after `hf://datasets/`. The slashes of a revision are escaped.
    pub fn rest(&self) -> String {
        let revision = self.revision.as_ref().map(|revision| format!("@{}", revision.replace('/', "%2F")));
        let slash = if self.path.is_empty() { "" } else { "/" };
        format!("{}{}{slash}{}", self.repository, revision.unwrap_or_default(), self.path)
    }
}

/// Returns a URL without the commit of a dataset on the Hub, to which a listing has replaced the revision. Other URLs are returned
/// unchanged.
pub fn without_commit(url: &str) -> Cow<'_, str> {
    const ROOT: &str = "hf://datasets/";
    let pinned = url.strip_prefix(ROOT).and_then(|rest| HubPath::parse(rest).ok()).filter(HubPath::is_pinned);
    match pinned {
        Some(hub) => format!("{ROOT}{}", HubPath { revision: None, ..hub }.rest()).into(),
        None => url.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_removed_from_a_url_of_the_hub() {
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let url = format!("hf://datasets/org/name@{commit}/data/train 1.jsonl");
        assert_eq!(without_commit(&url), "hf://datasets/org/name/data/train 1.jsonl");
        for other in ["hf://datasets/org/name@main/a", "s3://b/org/name@0123/a", "/data/a@b"] {
            assert_eq!(without_commit(other), other);
        }
    }

    fn parts(rest: &str) -> (String, Option<String>, String) {
        let HubPath { repository, revision, path } = HubPath::parse(rest).unwrap();
        (repository, revision, path)
    }

    #[test]
    fn repositories_revisions_and_paths_are_parsed() {
        let of = |repository: &str, revision: Option<&str>, path: &str| {
            (repository.to_owned(), revision.map(str::to_owned), path.to_owned())
        };
        assert_eq!(parts("org/name"), of("org/name", None, ""));
        assert_eq!(parts("org/name/"), of("org/name", None, ""));
        assert_eq!(parts("org/name/data/*.parquet"), of("org/name", None, "data/*.parquet"));
        assert_eq!(parts("org/name@v1.0/a"), of("org/name", Some("v1.0"), "a"));
        assert_eq!(
            parts("o/n@refs/convert/parquet/x/0.parquet"),
            of("o/n", Some("refs/convert/parquet"), "x/0.parquet")
        );
        assert_eq!(parts("o/n@refs%2Fpr%2F7/x"), of("o/n", Some("refs/pr/7"), "x"));
        assert_eq!(parts("o/n@refs/pr/7"), of("o/n", Some("refs/pr/7"), ""));
    }

    #[test]
    fn the_rest_is_parsed_back() {
        for rest in ["o/n", "o/n@main", "o/n@refs%2Fpr%2F7/x/y", "o/n/a b@c"] {
            assert_eq!(HubPath::parse(rest).unwrap().rest(), rest);
        }
        assert!(HubPath::parse(&format!("o/n@{}", "0a".repeat(20))).unwrap().is_pinned());
        assert!(!HubPath::parse("o/n@main").unwrap().is_pinned());
    }

    #[test]
    fn invalid_urls_are_rejected() {
        for rest in
            ["", "squad", "o/", "o/n@", "o/n@../x", "o/n@a%2F..%2Fb", "o/n@a?b", "../n", "o n/x", "o/n@%zz"]
        {
            assert!(HubPath::parse(rest).is_err(), "{rest}");
        }
        assert!(HubPath::parse("squad").unwrap_err().contains("hf://datasets/ORG/NAME"));
    }
}
