//! Prefixes within which URLs must lie.

use serde::{Deserialize, Serialize};

use super::braces::expand_braces;
use super::normal::NormalizedUrl;
use super::secrets::{refuse_secrets, without_query};

/// Most URLs of one pattern that are looked at one by one; of one that stands for more only the folder is.
const MOST_EXPANDED: usize = 256;
/// Prefixes that a refusal lists.
const LISTED: usize = 8;

/// Prefixes within which URLs must lie. None: any URL may be read.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct UrlPolicy {
    prefixes: Vec<Prefix>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Prefix {
    written: String,
    normal: NormalizedUrl,
}

impl UrlPolicy {
    /// A policy of these prefixes: URLs of buckets, hosts or folders in them, or absolute local paths. One allows itself and
    /// what lies below it, so `s3://bucket/a` does not allow `s3://bucket/ab`.
    ///
    /// # Errors
    /// One sentence that names the prefix that is none.
    pub fn new<S: AsRef<str>>(prefixes: impl IntoIterator<Item = S>) -> Result<Self, String> {
        let prefixes = prefixes.into_iter().map(|prefix| Prefix::new(prefix.as_ref()));
        Ok(Self { prefixes: prefixes.collect::<Result<_, _>>()? })
    }

    /// Whether any URL may be read.
    pub fn is_open(&self) -> bool {
        self.prefixes.is_empty()
    }

    /// The prefixes as they were written.
    pub fn prefixes(&self) -> impl Iterator<Item = &str> {
        self.prefixes.iter().map(|prefix| prefix.written.as_str())
    }

    /// Paths of the local folders among the prefixes.
    pub fn folders(&self) -> impl Iterator<Item = String> {
        self.prefixes.iter().filter(|prefix| prefix.normal.is_local()).map(|prefix| prefix.normal.path())
    }

    /// Checks a URL as pipelines have them: it may be a path, and have globs and braces.
    ///
    /// # Errors
    /// One sentence with the URL and the prefixes, where it, or the folder that is listed for it, lies outside of them.
    pub fn check(&self, url: &str) -> Result<(), String> {
        self.check_each(url, NormalizedUrl::of_pattern)
    }

    /// Checks the URL of one object, in which globs and braces are what they are.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        if self.is_open() { Ok(()) } else { self.check_one(url, url, NormalizedUrl::of) }
    }

    fn check_each(
        &self,
        url: &str,
        normal: impl Fn(&str) -> Result<NormalizedUrl, String>,
    ) -> Result<(), String> {
        if self.is_open() {
            return Ok(());
        }
        match expand_braces(url, MOST_EXPANDED) {
            Ok(urls) => urls.iter().try_for_each(|one| self.check_one(one, url, &normal)),
            Err(_) => self.check_one(url, url, &normal),
        }
    }

    fn check_one(
        &self,
        one: &str,
        url: &str,
        normal: impl Fn(&str) -> Result<NormalizedUrl, String>,
    ) -> Result<(), String> {
        let shown = without_query(url);
        let place = normal(one)
            .map_err(|reason| format!("`{shown}` cannot be compared with {}: {reason}", self.listed()))?;
        if self.prefixes.iter().any(|prefix| prefix.normal.holds(&place)) {
            return Ok(());
        }
        Err(format!(
            "`{shown}` lies outside of {}: read from there, or have `--allow-url` name a prefix that holds it",
            self.listed()
        ))
    }

    /// `what may be read here (`a`, `b`)`.
    fn listed(&self) -> String {
        let names: Vec<String> = self.prefixes().take(LISTED).map(|prefix| format!("`{prefix}`")).collect();
        let more = self.prefixes.len().saturating_sub(LISTED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("what may be read here ({}{more})", names.join(", "))
    }
}

impl Prefix {
    fn new(written: &str) -> Result<Self, String> {
        refuse_secrets(written)?;
        let refused = |reason: &str| {
            let written = without_query(written);
            format!(
                "`{written}` is no prefix of URLs: {reason}; write one such as `s3://bucket/folder`, `https://host/` or `/data`"
            )
        };
        let normal = NormalizedUrl::of(written).map_err(|reason| refused(&reason))?;
        if !normal.is_local() && normal.authority.is_empty() {
            return Err(refused("it names no bucket or host"));
        }
        if normal.has_pattern() || written.contains(['?', '#']) {
            return Err(refused("it has a glob, braces or a query"));
        }
        Ok(Self { written: written.to_owned(), normal })
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
        policy.prefixes.into_iter().map(|prefix| prefix.written).collect()
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
    fn what_lies_within_is_allowed() {
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
        assert!(UrlPolicy::default().is_open() && !policy().is_open());
    }

    #[test]
    fn what_lies_outside_is_not() {
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
    fn an_object_is_taken_by_its_name() {
        let policy = UrlPolicy::new(["/data/x[1]"]);
        assert!(policy.is_err(), "a prefix has no globs");
        let policy = UrlPolicy::new(["/data"]).unwrap();
        assert_eq!(policy.check_object("file:///data/x[1]{a,../../etc}.tar"), Ok(()));
        assert!(policy.check_object("/data/x/../../y").is_err());
    }

    #[test]
    fn the_sentence_says_what_is_allowed() {
        assert_eq!(
            UrlPolicy::new(["/data", "s3://b"]).unwrap().check("s3://c/x").unwrap_err(),
            "`s3://c/x` lies outside of what may be read here (`/data`, `s3://b`): read from there, or have `--allow-url` \
             name a prefix that holds it"
        );
        let many = UrlPolicy::new((0..11).map(|at| format!("/d{at}"))).unwrap();
        assert!(many.check("/x").unwrap_err().contains("`/d7` and 3 more"));
    }

    #[test]
    fn a_prefix_names_a_place() {
        for (prefix, why) in [
            ("data", "relative"),
            ("s3://", "no bucket or host"),
            ("https:///x", "no host"),
            ("s3://bucket/*", "glob"),
            ("https://host/x?y=1", "query"),
            ("https://user:word@host/x", "--credentials"),
        ] {
            let refused = UrlPolicy::new([prefix]).unwrap_err();
            assert!(refused.contains(why) && !refused.contains("word@"), "{refused}");
        }
    }

    #[test]
    fn it_is_written_as_a_list() {
        let json = serde_json::to_string(&UrlPolicy::new(["/data/"]).unwrap()).unwrap();
        assert_eq!(json, r#"["/data/"]"#);
        assert_eq!(serde_json::from_str::<UrlPolicy>(&json).unwrap().prefixes().count(), 1);
        assert!(serde_json::from_str::<UrlPolicy>(r#"["data"]"#).is_err());
    }
}
