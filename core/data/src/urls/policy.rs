//! Allowed URL prefixes.

use serde::{Deserialize, Serialize};

use super::braces::expand_braces;
use super::kafka::{is_kafka, server_urls};
use super::normal::NormalizedUrl;
use super::secrets::{check_no_secrets, without_query};

/// Maximum number of URLs of a pattern that are checked individually. If a pattern expands to more URLs, only its directory
/// is checked.
const MAX_EXPANDED_URLS: usize = 256;
/// Maximum number of prefixes in an error message.
const MAX_LISTED_PREFIXES: usize = 8;

/// Allowed URL prefixes. An empty policy allows every URL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct UrlPolicy {
    prefixes: Vec<Prefix>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Prefix {
    original: String,
    normalized: NormalizedUrl,
}

impl UrlPolicy {
    /// Creates a policy with the given prefixes: URLs of buckets, hosts or directories, or absolute local paths. A prefix
    /// allows itself and all URLs below it: `s3://bucket/a` allows `s3://bucket/a/b`, but not `s3://bucket/ab`.
    ///
    /// # Errors
    /// Returns a message that names the invalid prefix.
    pub fn new<S: AsRef<str>>(prefixes: impl IntoIterator<Item = S>) -> Result<Self, String> {
        let prefixes = prefixes.into_iter().map(|prefix| Prefix::new(prefix.as_ref()));
        Ok(Self { prefixes: prefixes.collect::<Result<_, _>>()? })
    }

    /// Whether the policy allows every URL.
    pub fn allows_all(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The prefixes in their original form.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().map(|prefix| prefix.original.as_str())
    }

    /// The paths of the local directories among the prefixes.
    pub fn folders(&self) -> impl Iterator<Item = String> {
        let local = self.prefixes.iter().filter(|prefix| prefix.normalized.is_local());
        local.map(|prefix| prefix.normalized.path())
    }

    /// Checks a URL of a pipeline, which may be a path and may contain globs and braces.
    ///
    /// # Errors
    /// Returns a message with the URL and the prefixes, if the URL or the directory of its pattern is outside all prefixes.
    pub fn check(&self, url: &str) -> Result<(), String> {
        if self.allows_all() {
            return Ok(());
        }
        if let Some(servers) = server_urls(url) {
            return servers
                .iter()
                .try_for_each(|server| self.check_parsed(url, NormalizedUrl::parse(server)));
        }
        match expand_braces(url, MAX_EXPANDED_URLS) {
            Ok(urls) => {
                urls.iter().try_for_each(|one| self.check_parsed(url, NormalizedUrl::parse_pattern(one)))
            }
            Err(_) => self.check_parsed(url, NormalizedUrl::parse_pattern(url)),
        }
    }

    /// Checks the URL of one object. Globs and braces have no special meaning in an object's URL.
    ///
    /// # Errors
    /// Same as [`Self::check`].
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        if is_kafka(url) {
            return self.check(url);
        }
        if self.allows_all() { Ok(()) } else { self.check_parsed(url, NormalizedUrl::parse(url)) }
    }

    fn check_parsed(&self, url: &str, parsed: Result<NormalizedUrl, String>) -> Result<(), String> {
        let shown = without_query(url);
        let parsed = parsed.map_err(|reason| {
            format!("cannot check `{shown}` against the allowed URLs ({}): {reason}", self.list_prefixes())
        })?;
        if self.prefixes.iter().any(|prefix| prefix.normalized.contains(&parsed)) {
            return Ok(());
        }
        Err(format!(
            "`{shown}` is outside the allowed URLs ({}): use an allowed URL, or add a prefix with `--allow-url`",
            self.list_prefixes()
        ))
    }

    fn list_prefixes(&self) -> String {
        let prefixes: Vec<String> =
            self.prefixes().take(MAX_LISTED_PREFIXES).map(|prefix| format!("`{prefix}`")).collect();
        let more = self.prefixes.len().saturating_sub(MAX_LISTED_PREFIXES);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("{}{more}", prefixes.join(", "))
    }
}

impl Prefix {
    fn new(original: &str) -> Result<Self, String> {
        check_no_secrets(original)?;
        let error = |reason: &str| {
            let shown = without_query(original);
            format!(
                "invalid URL prefix `{shown}`: {reason}; write a prefix such as `s3://bucket/folder`, `https://host/` or `/data`"
            )
        };
        let normalized = NormalizedUrl::parse(original).map_err(|reason| error(&reason))?;
        if !normalized.is_local() && normalized.authority.is_empty() {
            return Err(error("the bucket or host is missing"));
        }
        if normalized.has_pattern() || original.contains(['?', '#']) {
            return Err(error("globs, braces and queries are not allowed"));
        }
        if normalized.scheme == "hf" && original.contains('@') {
            return Err(error(
                "a prefix applies to all revisions of a repository, so it must not contain a revision",
            ));
        }
        Ok(Self { original: original.to_owned(), normalized })
    }
}

impl TryFrom<Vec<String>> for UrlPolicy {
    type Error = String;

    fn try_from(prefixes: Vec<String>) -> Result<Self, String> {
        Self::new(prefixes)
    }
}

impl From<UrlPolicy> for Vec<String> {
    fn from(policy: UrlPolicy) -> Self {
        policy.prefixes.into_iter().map(|prefix| prefix.original).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> UrlPolicy {
        UrlPolicy::new([
            "s3://bucket/a",
            "/data",
            "https://Host:443/sets/",
            "abfss://box@acc.dfs.core.windows.net/x",
        ])
        .unwrap()
    }

    #[test]
    fn urls_below_a_prefix_are_allowed() {
        for url in [
            "s3://bucket/a",
            "S3A://bucket/a/b/*.tar",
            "s3://bucket/a/{000..999999}/x",
            "/data/x",
            "/data",
            "file:///data/%61/x?.txt",
            "/other/../data/x",
            "/data/{a,b}/../c",
            "https://host/sets/{1..3}.tar",
            "https://HOST:443/%73ets/x",
            "abfss://box@ACC.dfs.core.windows.net/x/y",
        ] {
            assert_eq!(policy().check(url), Ok(()), "{url}");
        }
        assert_eq!(UrlPolicy::default().check("anything://at/all"), Ok(()));
        assert!(UrlPolicy::default().allows_all() && !policy().allows_all());
    }

    #[test]
    fn other_urls_are_rejected() {
        for url in [
            "s3://bucket/ab",
            "s3://bucket/a*",
            "s3://bucket/*/x",
            "s3://bucket",
            "s3://Bucket/a/x",
            "s3://bucket/a/../b",
            "s3://bucket/%61/x",
            "gs://bucket/a/x",
            "/data/../etc/passwd",
            "file:///data/%2e%2e/etc/passwd",
            "/data2/x",
            "/data/{.,x}./../etc",
            "data/x",
            "https://host:8443/sets/x",
            "http://host/sets/x",
            "https://host/setsx",
            "https://host/sets/..%2fx",
            "https://host.evil.org/sets/x",
            "https://host\\@evil.org/sets/x",
            "https://evil.org/?https://host/sets/",
            "az://box/x",
            "abfss://box@acc.dfs.core.windows.net.evil.org/x",
            "",
        ] {
            assert!(policy().check(url).is_err(), "{url}");
        }
    }

    #[test]
    fn prefixes_of_the_hub_apply_to_all_revisions() {
        let policy = UrlPolicy::new(["hf://datasets/org/name", "hf://datasets/lab"]).unwrap();
        for url in
            ["hf://datasets/org/name", "hf://datasets/org/name@v1/x", "hf://datasets/lab/a@refs/pr/1/x"]
        {
            assert_eq!(policy.check(url), Ok(()), "{url}");
        }
        for url in
            ["hf://datasets/org/other", "hf://datasets/org/name2@name", "hf://datasets/org/x@org/name/y"]
        {
            assert!(policy.check(url).is_err() && policy.check_object(url).is_err(), "{url}");
        }
        assert!(UrlPolicy::new(["hf://datasets/org/name@v1"]).unwrap_err().contains("revision"));
    }

    #[test]
    fn objects_may_have_pattern_characters_in_their_names() {
        let policy = UrlPolicy::new(["/data/x[1]"]);
        assert!(policy.is_err(), "globs are not allowed in prefixes");
        let policy = UrlPolicy::new(["/data"]).unwrap();
        assert_eq!(policy.check_object("file:///data/x[1]{a,../../etc}.tar"), Ok(()));
        assert!(policy.check_object("/data/x/../../y").is_err());
    }

    #[test]
    fn the_error_lists_the_allowed_prefixes() {
        assert_eq!(
            UrlPolicy::new(["/data", "s3://b"]).unwrap().check("s3://c/x").unwrap_err(),
            "`s3://c/x` is outside the allowed URLs (`/data`, `s3://b`): use an allowed URL, or add a prefix with \
             `--allow-url`"
        );
        let many = UrlPolicy::new((0..11).map(|at| format!("/d{at}"))).unwrap();
        assert!(many.check("/x").unwrap_err().contains("`/d7` and 3 more"));
    }

    #[test]
    fn invalid_prefixes_are_rejected() {
        for (prefix, why) in [
            ("data", "relative"),
            ("s3://", "the bucket or host is missing"),
            ("https:///x", "the URL host is missing"),
            ("s3://bucket/*", "globs"),
            ("https://host/x?y=1", "queries"),
            ("https://user:word@host/x", "--credentials"),
        ] {
            let error = UrlPolicy::new([prefix]).unwrap_err();
            assert!(error.contains(why) && !error.contains("word@"), "{error}");
        }
    }

    #[test]
    fn the_serialized_form_is_a_list_of_prefixes() {
        let json = serde_json::to_string(&UrlPolicy::new(["/data/"]).unwrap()).unwrap();
        assert_eq!(json, r#"["/data/"]"#);
        assert_eq!(serde_json::from_str::<UrlPolicy>(&json).unwrap().prefixes().count(), 1);
        assert!(serde_json::from_str::<UrlPolicy>(r#"["data"]"#).is_err());
    }
}
