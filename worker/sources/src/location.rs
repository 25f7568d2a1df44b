//! Parses a URL into store and key.

use feedline_data::urls::{HubPath, check_no_secrets, without_query};
use object_store::path::Path;
use url::Url;

use crate::error::SourceError;

/// A parsed URL: the store, and a key, prefix or pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Location {
    /// The store: `file://`, or the scheme and the authority, such as `s3://bucket`.
    pub(crate) root: String,
    /// The rest of the URL: a local path, an object key, or, for HTTP, an encoded URL path.
    pub(crate) rest: String,
}

impl Location {
    /// Parses a URL or a local path.
    pub(crate) fn parse(url: &str) -> Result<Self, SourceError> {
        check_no_secrets(url).map_err(|message| SourceError::Rejected { message })?;
        let bad = |reason: &str| SourceError::Url { url: url.to_owned(), reason: reason.to_owned() };
        if url.is_empty() {
            return Err(bad("the URL is empty"));
        }
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(Self { root: "file://".to_owned(), rest: absolute(url)? });
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            return Ok(Self {
                root: "file://".to_owned(),
                rest: local_path(rest).map_err(|reason| bad(&reason))?,
            });
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err(bad("the host or bucket is missing"));
        }
        if scheme.starts_with("http") && path.contains(['?', '#']) {
            // The message does not contain the query, which may contain a secret.
            return Err(SourceError::Url {
                url: without_query(url).to_owned(),
                reason: "an http URL must not have a query: use a plain URL, or the scheme of the store (s3, gs, az) with \
                         `credentials: NAME`"
                    .to_owned(),
            });
        }
        if scheme == "hf" {
            if authority != "datasets" {
                return Err(bad("only datasets can be read: write `hf://datasets/ORG/NAME`"));
            }
            let hub = HubPath::parse(path).map_err(|reason| bad(&reason))?;
            return Ok(Self { root: "hf://datasets".to_owned(), rest: hub.rest() + slash_of(path, &hub) });
        }
        Ok(Self { root: format!("{scheme}://{authority}"), rest: path.to_owned() })
    }

    pub(crate) fn is_local(&self) -> bool {
        self.root == "file://"
    }

    /// Whether the location is on the Hugging Face Hub.
    pub(crate) fn is_hub(&self) -> bool {
        self.root.starts_with("hf://")
    }

    pub(crate) fn is_http(&self) -> bool {
        self.root.starts_with("http")
    }

    /// The key of the object for `object_store`.
    pub(crate) fn key(&self) -> Result<Path, SourceError> {
        let path = if self.is_local() {
            Path::from_absolute_path(&self.rest)
        } else if self.is_http() {
            Path::from_url_path(&self.rest)
        } else {
            Path::parse(&self.rest)
        };
        path.map_err(|error| SourceError::Url {
            url: format!("{}/{}", self.root, self.rest),
            reason: error.to_string(),
        })
    }

    /// The canonical URL of another object in the same store.
    pub(crate) fn url_of(&self, key: &Path) -> String {
        if self.is_local() {
            return local_url(&format!("/{key}"));
        }
        format!("{}/{key}", self.root)
    }

    /// The canonical URL of this location.
    pub(crate) fn url(&self) -> String {
        if self.is_local() { local_url(&self.rest) } else { format!("{}/{}", self.root, self.rest) }
    }
}

/// The slash at the end of the URL of a repository, which its parsed form does not contain.
fn slash_of(path: &str, hub: &HubPath) -> &'static str {
    if hub.path.is_empty() && path.ends_with('/') { "/" } else { "" }
}

fn absolute(path: &str) -> Result<String, SourceError> {
    let bad = |reason: String| SourceError::Url { url: path.to_owned(), reason };
    let absolute = std::path::absolute(path).map_err(|error| bad(error.to_string()))?;
    let mut text = absolute.to_str().ok_or_else(|| bad("the path is not UTF-8".to_owned()))?.to_owned();
    if path.ends_with('/') && !text.ends_with('/') {
        text.push('/');
    }
    resolve_parents(text).map_err(bad)
}

/// Resolves `..` components like the operating system, which follows links.
fn resolve_parents(path: String) -> Result<String, String> {
    let parts: Vec<&str> = path.split('/').collect();
    let Some(last) = parts.iter().rposition(|part| *part == "..") else { return Ok(path) };
    let (before, after) = (parts[..=last].join("/"), &parts[last + 1..]);
    let folder =
        std::fs::canonicalize(&before).map_err(|error| format!("cannot resolve {before}: {error}"))?;
    let folder = folder.to_str().ok_or("the path is not UTF-8")?.trim_end_matches('/');
    Ok(format!("{folder}/{}", after.join("/")))
}

/// Converts the rest of a `file://` URL to a path. The URL may contain unescaped glob characters.
fn local_path(rest: &str) -> Result<String, String> {
    let rest = rest.strip_prefix("localhost").unwrap_or(rest);
    if !rest.starts_with('/') {
        return Err(format!(
            "a file URL must have an absolute path: write `file:///{rest}`, or a path without `file://`"
        ));
    }
    if !rest.contains('%') {
        return resolve_parents(rest.to_owned());
    }
    let escaped = rest.replace('?', "%3F").replace('#', "%23");
    let url = Url::parse(&format!("file://{escaped}")).map_err(|error| error.to_string())?;
    let path = url.to_file_path().map_err(|()| "the URL is not a local path".to_owned())?;
    let mut text = path.to_str().ok_or_else(|| "the path is not UTF-8".to_owned())?.to_owned();
    if rest.ends_with('/') && !text.ends_with('/') {
        text.push('/');
    }
    resolve_parents(text)
}

pub(crate) fn local_url(path: &str) -> String {
    Url::from_file_path(path).map_or_else(|()| format!("file://{path}"), String::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(url: &str) -> (String, String) {
        let location = Location::parse(url).unwrap();
        (location.root, location.rest)
    }

    #[test]
    fn urls_are_split_into_store_and_key() {
        assert_eq!(parts("s3://bucket/a/b?.tar"), ("s3://bucket".into(), "a/b?.tar".into()));
        assert_eq!(parts("file:///data/a%20b"), ("file://".into(), "/data/a b".into()));
        assert_eq!(parts("/data/x*"), ("file://".into(), "/data/x*".into()));
        assert_eq!(parts("https://host:80/a/b"), ("https://host:80".into(), "a/b".into()));
        let cwd = std::env::current_dir().unwrap();
        assert_eq!(parts("rel/").1, format!("{}/rel/", cwd.display()));
    }

    #[test]
    fn parent_folders_are_resolved() {
        let folder = std::env::current_dir().unwrap();
        let parent = folder.parent().unwrap().canonicalize().unwrap();
        assert_eq!(parts("../x/*.jpg").1, format!("{}/x/*.jpg", parent.display()));
        assert_eq!(parts("src/../").1, format!("{}/", folder.canonicalize().unwrap().display()));
        assert_eq!(
            parts(&format!("file://{}/src/../a", folder.display())).1,
            format!("{}/a", folder.display())
        );
        let error = Location::parse("/no/such/../x").unwrap_err().to_string();
        assert!(error.contains("cannot resolve /no/such/.."), "{error}");
        assert_eq!(parts("/tmp/a..b/..c").1, "/tmp/a..b/..c");
    }

    #[test]
    fn errors_contain_the_reason() {
        assert!(Location::parse("https://host/a?b=1").unwrap_err().to_string().contains("query"));
        for url in ["https://host/a?auth=HUSH", "https://host/a?sig=HUSH", "https://me:HUSH@host/a"] {
            let refused = Location::parse(url).unwrap_err().to_string();
            assert!(!refused.contains("HUSH") && refused.contains("credentials"), "{refused}");
        }
        assert!(Location::parse("file://data/x").unwrap_err().to_string().contains("absolute"));
        assert!(Location::parse("").is_err());
        assert!(Location::parse("s3:///x").unwrap_err().to_string().contains("bucket"));
    }

    #[test]
    fn unusual_local_names_round_trip() {
        for name in ["/tmp/a b#c?d%e", "/tmp/[x]", "/tmp/ü{1}"] {
            let location = Location { root: "file://".into(), rest: name.into() };
            assert_eq!(Location::parse(&location.url()).unwrap().rest, name);
            assert_eq!(location.url_of(&location.key().unwrap()), location.url(), "{name}");
        }
    }
}
