//! Normalizes URLs for comparison: letter case, default ports, percent-encoding and parent directories.

use super::hub::HubPath;
use super::kafka::normal_server;
use super::percent::percent_decode;

/// Characters that start a glob or braces.
const PATTERN_CHARS: [char; 4] = ['*', '?', '[', '{'];
/// Schemes of Azure stores. Their URLs may omit the account and name only the container.
pub(super) const AZURE_SCHEMES: [&str; 5] = ["az", "adl", "azure", "abfs", "abfss"];

/// A normalized URL or absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NormalizedUrl {
    pub(super) scheme: String,
    /// The host and port, the bucket or the container; empty for local files.
    pub(super) authority: String,
    segments: Vec<String>,
}

impl NormalizedUrl {
    /// Normalizes a URL or an absolute path.
    ///
    /// # Errors
    /// Returns a message with the reason why the URL cannot be normalized.
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = url.split_once("://") else {
            if !url.starts_with('/') {
                return Err(
                    "a relative path depends on the working directory: write an absolute path".to_owned()
                );
            }
            return Ok(Self::local(url));
        };
        let scheme = scheme.to_ascii_lowercase();
        match scheme.as_str() {
            "file" => Self::file(rest),
            "http" | "https" => Self::http(scheme, rest),
            _ => Self::bucket(scheme, rest),
        }
    }

    /// Normalizes a pattern to its directory: removes the first segment with a glob or braces and all later segments.
    pub(super) fn parse_pattern(url: &str) -> Result<Self, String> {
        let mut parsed = Self::parse(url)?;
        if let Some(first) = parsed.segments.iter().position(|segment| segment.contains(PATTERN_CHARS)) {
            parsed.segments.truncate(first);
        }
        Ok(parsed)
    }

    /// Whether `other` is this URL or is below it.
    pub(super) fn contains(&self, other: &Self) -> bool {
        self.scheme == other.scheme
            && self.authority == other.authority
            && other.segments.starts_with(&self.segments)
    }

    pub(super) fn is_local(&self) -> bool {
        self.scheme == "file"
    }

    pub(super) fn has_pattern(&self) -> bool {
        self.segments.iter().any(|segment| segment.contains(PATTERN_CHARS))
    }

    /// The absolute path.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.segments.join("/"))
    }

    fn local(path: &str) -> Self {
        Self { scheme: "file".to_owned(), authority: String::new(), segments: resolve_segments(path) }
    }

    fn file(rest: &str) -> Result<Self, String> {
        let path = rest.strip_prefix("localhost").unwrap_or(rest);
        if !path.starts_with('/') {
            return Err("a file URL needs an absolute path: write `file:///PATH`".to_owned());
        }
        Ok(Self::local(&percent_decode(path)?))
    }

    fn http(scheme: String, rest: &str) -> Result<Self, String> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (host, rest) = rest.split_at(end);
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        let authority = http_authority(&scheme, host)?;
        Ok(Self { scheme, authority, segments: resolve_segments(&percent_decode(path)?) })
    }

    /// Normalizes the URL of an object store. Names of buckets and keys are case-sensitive and not percent-encoded.
    fn bucket(scheme: String, rest: &str) -> Result<Self, String> {
        let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
        if key.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err("object stores do not resolve `.` and `..`: write the key without them".to_owned());
        }
        let (scheme, authority) = match (scheme.as_str(), authority.split_once('@')) {
            ("s3a", _) => ("s3".to_owned(), authority.to_owned()),
            ("kafka", _) if !authority.is_empty() => ("kafka".to_owned(), normal_server(authority)),
            (azure, Some((container, account))) if AZURE_SCHEMES.contains(&azure) => {
                ("abfss".to_owned(), format!("{container}@{}", account.to_ascii_lowercase()))
            }
            (azure, None) if AZURE_SCHEMES.contains(&azure) => ("az".to_owned(), authority.to_owned()),
            _ => (scheme, authority.to_owned()),
        };
        if scheme == "hf" {
            // A prefix applies to all revisions of a repository. Other URLs, such as an organization, cannot be read.
            if let Ok(hub) = HubPath::parse(key) {
                let segments = resolve_segments(&format!("{}/{}", hub.repository, hub.path));
                return Ok(Self { scheme, authority, segments });
            }
        }
        Ok(Self { scheme, authority, segments: resolve_segments(key) })
    }
}

/// Whether a URL or path in a pipeline is local.
pub(crate) fn is_local(url: &str) -> bool {
    url.split_once("://").is_none_or(|(scheme, _)| scheme.eq_ignore_ascii_case("file"))
}

/// Returns the local path of a URL, including globs, braces and parent directories; `None` for remote URLs.
pub fn local_pattern(url: &str) -> Option<String> {
    match url.split_once("://") {
        _ if !is_local(url) => None,
        Some((_, rest)) => percent_decode(rest.strip_prefix("localhost").unwrap_or(rest)).ok(),
        None => Some(url.to_owned()),
    }
}

/// Returns the local directory before the first glob or braces, or the whole path of a URL without them; `None` for remote
/// URLs. Parent directories are not resolved.
pub fn local_path(url: &str) -> Option<String> {
    let path = local_pattern(url)?;
    let Some(first) = path.find(PATTERN_CHARS) else { return Some(path) };
    Some(path[..first].rsplit_once('/').map_or("", |(folder, _)| folder).to_owned() + "/")
}

/// Returns the host in lower case, with its port unless it is the default port of the scheme.
fn http_authority(scheme: &str, authority: &str) -> Result<String, String> {
    let is_of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
    if authority.is_empty() || !authority.chars().all(is_of_host) {
        return Err("the URL host is missing or contains invalid characters".to_owned());
    }
    let authority = authority.to_ascii_lowercase();
    let in_brackets = authority.rfind(']').map_or(0, |at| at + 1);
    let Some((host, port)) = authority[in_brackets..].rsplit_once(':') else { return Ok(authority) };
    let host = format!("{}{host}", &authority[..in_brackets]);
    let default_port: u16 = if scheme == "https" { 443 } else { 80 };
    match port.parse::<u16>() {
        Ok(port) if port != default_port => Ok(format!("{host}:{port}")),
        Ok(_) => Ok(host),
        Err(_) if port.is_empty() => Ok(host),
        Err(_) => Err("the URL port is not a number from 0 to 65535".to_owned()),
    }
}

/// Splits a path into segments, and resolves empty segments, `.` and `..`.
fn resolve_segments(path: &str) -> Vec<String> {
    let mut segments: Vec<String> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other.to_owned()),
        }
    }
    segments
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: &str, b: &str) {
        assert_eq!(NormalizedUrl::parse(a).unwrap(), NormalizedUrl::parse(b).unwrap(), "{a} {b}");
    }

    fn differ(a: &str, b: &str) {
        assert_ne!(NormalizedUrl::parse(a).unwrap(), NormalizedUrl::parse(b).unwrap(), "{a} {b}");
    }

    #[test]
    fn equivalent_urls_have_one_normal_form() {
        same("/data/./a//b/../c", "/data/a/c");
        same("FILE:///data/a%20b/%2e%2e/c", "/data/c");
        same("file://localhost/data", "file:///data/");
        same("HTTPS://Host:443/a%62/../c", "https://host/c");
        same("http://host:080/x", "http://host/x");
        same("http://[FE80::1]:80/x", "http://[fe80::1]/x");
        same("https://host/a%2Fb", "https://host/a/b");
        same("s3a://bucket//a/", "S3://bucket/a");
        same("azure://box/a", "az://box/a");
        same("abfss://box@Account.dfs.core.windows.net/a", "abfs://box@account.dfs.core.windows.net/a");
    }

    #[test]
    fn different_urls_have_different_normal_forms() {
        differ("/data/a%20b", "/data/a b");
        differ("s3://bucket/a%62", "s3://bucket/ab");
        differ("s3://Bucket/a", "s3://bucket/a");
        differ("http://host/x", "https://host/x");
        differ("http://host:8080/x", "http://host/x");
        differ("https://host/A", "https://host/a");
    }

    #[test]
    fn errors_say_why_a_url_cannot_be_normalized() {
        for (url, why) in [
            ("data/x", "relative"),
            ("file://data/x", "absolute"),
            ("https://", "is missing"),
            ("https://a b/x", "invalid characters"),
            ("https://host%2eorg/x", "invalid characters"),
            ("https://user@host/x", "invalid characters"),
            ("https://host:x/", "port"),
            ("s3://bucket/a/../b", "`..`"),
            ("https://host/%ff", "UTF-8"),
        ] {
            let error = NormalizedUrl::parse(url).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }

    #[test]
    fn local_paths_are_distinguished_from_other_urls() {
        for (url, path) in [
            ("/a/../b", Some("/a/../b")),
            ("FILE:///a%20b", Some("/a b")),
            ("file://localhost/a", Some("/a")),
            ("a/b", Some("a/b")),
            ("/a/b-*.tar", Some("/a/")),
            ("/{a,b}/c", Some("/")),
            ("s3://bucket/a", None),
            ("https://host/a", None),
        ] {
            assert_eq!(local_path(url).as_deref(), path, "{url}");
        }
        for (url, pattern) in [
            ("file:///a%20b/%2A.{x,y}", Some("/a b/*.{x,y}")),
            ("/a%20b/*", Some("/a%20b/*")),
            ("s3://bucket/*", None),
        ] {
            assert_eq!(local_pattern(url).as_deref(), pattern, "{url}");
        }
    }

    #[test]
    fn a_pattern_is_normalized_to_its_folder() {
        let folder = |url: &str| NormalizedUrl::parse_pattern(url).unwrap().path();
        assert_eq!(folder("s3://b/a/x-*.tar"), "/a");
        assert_eq!(folder("/d/{a,b}/x"), "/d");
        assert_eq!(folder("/d/x"), "/d/x");
        assert_eq!(folder("/d/*/../../e/f?"), "/e");
    }
}
