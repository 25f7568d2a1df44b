//! What a role lets pipelines read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Pipeline, did_you_mean, listed};
use crate::tenants::TenantReads;
use crate::urls::{UrlPolicy, is_local, metadata_host, refuse_secrets, without_query};

/// What a role lets pipelines read. By default all but addresses of metadata services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadPolicy {
    /// Prefixes within which URLs must lie.
    pub urls: UrlPolicy,
    /// Whether a metadata service's address may be read from.
    pub metadata_addresses: bool,
    /// Whether local files are read only where a prefix names them: where not everybody who may open a job may read what the
    /// role itself can.
    pub local_by_prefix: bool,
    /// Names of credentials, each with the URLs that it is for; `None` where whoever reads knows them, and checks.
    pub credentials: Option<BTreeMap<String, UrlPolicy>>,
}

impl ReadPolicy {
    /// The same for a tenant's pipelines: of credentials they know those that they may name.
    #[must_use]
    pub fn for_tenant(&self, reads: &TenantReads) -> Self {
        let mut policy = self.clone();
        if let (Some(known), Some(allowed)) = (&mut policy.credentials, &reads.credentials) {
            known.retain(|name, _| allowed.contains(name));
        }
        policy
    }

    /// Checks all that a pipeline reads, as far as its text tells.
    ///
    /// # Errors
    /// One sentence with the place in the pipeline and the fix.
    pub fn check(&self, pipeline: &Pipeline) -> Result<(), String> {
        for (place, url) in pipeline.reads() {
            self.check_url(url).map_err(|sentence| format!("{place}: {sentence}"))?;
        }
        for (place, source) in pipeline.source.datasets().into_iter().enumerate() {
            if let Some(name) = &source.credentials {
                self.check_credentials(name, &source.url).map_err(|sentence| {
                    format!("{}: {sentence}", pipeline.source.place_of(place, "credentials"))
                })?;
            }
        }
        Ok(())
    }

    /// Checks a URL as pipelines have them: it may be a path, and have globs and braces.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.check_host(url)?;
        self.check_local(url)?;
        self.urls.check(url)
    }

    /// Checks the URL of one object, such as one that was listed.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        self.check_host(url)?;
        self.check_local(url)?;
        self.urls.check_object(url)
    }

    /// Checks that credentials of this name are known, and are for these URLs.
    ///
    /// # Errors
    /// One sentence that lists the names that are known, or the URLs that they are for.
    pub fn check_credentials(&self, name: &str, urls: &[String]) -> Result<(), String> {
        let Some(scope) = self.scope(name)? else { return Ok(()) };
        urls.iter().try_for_each(|url| scope.check(url).map_err(|_| not_for(name, scope, url)))
    }

    /// Checks that credentials of this name are known, and are for this object.
    ///
    /// # Errors
    /// As [`Self::check_credentials`].
    pub fn check_credentials_of_object(&self, name: &str, url: &str) -> Result<(), String> {
        let Some(scope) = self.scope(name)? else { return Ok(()) };
        scope.check_object(url).map_err(|_| not_for(name, scope, url))
    }

    /// The URLs that credentials are for; `None` where others know.
    fn scope(&self, name: &str) -> Result<Option<&UrlPolicy>, String> {
        let Some(known) = &self.credentials else { return Ok(None) };
        if let Some(scope) = known.get(name) {
            return Ok(Some(scope));
        }
        if known.is_empty() {
            return Err(format!(
                "there are no credentials `{name}` here: start coordinators and workers with `--credentials FILE`, a file that has \
                 them"
            ));
        }
        let names = || known.keys().map(String::as_str);
        let hint = did_you_mean(name, names());
        Err(format!("there are no credentials `{name}` here{hint} (known: {})", listed(names())))
    }

    fn check_local(&self, url: &str) -> Result<(), String> {
        if !self.local_by_prefix || !self.urls.is_open() || !is_local(url) {
            return Ok(());
        }
        Err(format!(
            "`{}` is a local file, and where tokens say who comes only those are read that `--allow-url` names: start coordinators \
             and workers with `--allow-url` for the folder that holds it, and for every other place that pipelines shall read",
            without_query(url)
        ))
    }

    fn check_host(&self, url: &str) -> Result<(), String> {
        refuse_secrets(url)?;
        match metadata_host(url) {
            Some(host) if !self.metadata_addresses => Err(refused_host(host)),
            _ => Ok(()),
        }
    }
}

fn not_for(name: &str, scope: &UrlPolicy, url: &str) -> String {
    let prefixes: Vec<String> = scope.prefixes().map(|prefix| format!("`{prefix}`")).collect();
    format!(
        "the credentials `{name}` are not for `{}`, only for {}: name others, or have the file of credentials say so",
        without_query(url),
        prefixes.join(", ")
    )
}

/// What to say of a metadata service's host.
pub fn refused_host(host: &str) -> String {
    format!(
        "`{host}` is an address at which clouds tell a machine its keys, and no pipeline reads from there: name another host \
         (a role that is started with `--allow-metadata-addresses` allows it)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Source;

    fn pipeline(source: Source) -> Pipeline {
        Pipeline::builder("p").source(source).tokenize("text", "/vocab/t.json").batch(1).build().unwrap()
    }

    fn policy() -> ReadPolicy {
        let scope = |prefixes: &[&str]| UrlPolicy::new(prefixes).unwrap();
        let credentials =
            BTreeMap::from([("one".to_owned(), scope(&["s3://a/x"])), ("other".to_owned(), scope(&[]))]);
        ReadPolicy {
            urls: scope(&["s3://a", "/vocab"]),
            metadata_addresses: false,
            local_by_prefix: false,
            credentials: Some(credentials),
        }
    }

    fn refused(source: Source) -> String {
        policy().check(&pipeline(source)).unwrap_err()
    }

    #[test]
    fn every_place_is_checked() {
        assert_eq!(policy().check(&pipeline(Source::text("s3://a/x/"))), Ok(()));
        assert!(
            refused(Source::text("s3://a/x/").and("s3://b/"))
                .starts_with("source.url: `s3://b/` lies outside")
        );
        let mut elsewhere = policy();
        elsewhere.urls = UrlPolicy::new(["s3://a"]).unwrap();
        let told = elsewhere.check(&pipeline(Source::text("s3://a/x/"))).unwrap_err();
        assert!(told.starts_with("operator 1 (tokenize).tokenizer: `/vocab/t.json` lies outside"), "{told}");
    }

    #[test]
    fn credentials_are_known_by_name_and_for_their_urls() {
        let with = |url: &str, name: &str| Source::text(url).credentials(name);
        assert_eq!(policy().check(&pipeline(with("s3://a/x/y", "one"))), Ok(()));
        assert_eq!(policy().check(&pipeline(with("s3://a/z", "other"))), Ok(()));
        assert_eq!(
            refused(with("s3://a/z", "one")),
            "source.credentials: the credentials `one` are not for `s3://a/z`, only for `s3://a/x`: name others, or have \
             the file of credentials say so"
        );
        assert_eq!(
            refused(with("s3://a/x", "othr")),
            "source.credentials: there are no credentials `othr` here; did you mean `other`? (known: one, other)"
        );
        let nobody = ReadPolicy { credentials: Some(BTreeMap::new()), ..ReadPolicy::default() };
        let told = nobody.check(&pipeline(with("s3://a/x", "one"))).unwrap_err();
        assert!(told.contains("--credentials FILE"), "{told}");
        assert_eq!(ReadPolicy::default().check(&pipeline(with("s3://a/x", "one"))), Ok(()));
    }

    #[test]
    fn a_tenant_is_told_of_its_own_credentials_only() {
        let only = |names: &[&str]| TenantReads {
            credentials: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..TenantReads::default()
        };
        let named = pipeline(Source::text("s3://a/x").credentials("gone"));
        let told = policy().for_tenant(&only(&["other", "gone"])).check(&named).unwrap_err();
        assert!(told.ends_with("(known: other)"), "{told}");
        let told = policy().for_tenant(&TenantReads::default()).check(&named).unwrap_err();
        assert!(told.ends_with("(known: one, other)"), "{told}");
        assert_eq!(ReadPolicy::default().for_tenant(&only(&[])), ReadPolicy::default(), "others know");
    }

    #[test]
    fn local_files_are_named_by_a_prefix_where_that_is_asked() {
        let asked = ReadPolicy { local_by_prefix: true, ..ReadPolicy::default() };
        for url in ["/keys/worker.token", "keys/secret", "FILE:///keys/secret", "/keys/*"] {
            for told in [asked.check_url(url), asked.check_object(url)] {
                let told = told.unwrap_err();
                assert!(told.contains("is a local file") && told.contains("`--allow-url`"), "{told}");
            }
        }
        assert_eq!(asked.check_url("s3://bucket/x"), Ok(()));
        let within = ReadPolicy { urls: UrlPolicy::new(["/data"]).unwrap(), ..asked };
        assert_eq!(within.check_url("/data/x"), Ok(()));
        assert!(within.check_url("/keys/secret").unwrap_err().contains("lies outside"));
        assert_eq!(ReadPolicy::default().check_url("/keys/secret"), Ok(()), "it is the user's own");
    }

    #[test]
    fn metadata_services_are_refused_unless_that_is_said() {
        let url = "http://2852039166/latest/x";
        let told = ReadPolicy::default().check(&pipeline(Source::files(url))).unwrap_err();
        assert!(told.starts_with("source.url: `2852039166` is an address at which clouds"), "{told}");
        assert!(told.contains("--allow-metadata-addresses"));
        let allowed = ReadPolicy { metadata_addresses: true, ..ReadPolicy::default() };
        assert_eq!(allowed.check(&pipeline(Source::files(url))), Ok(()));
    }
}
