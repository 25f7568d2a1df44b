//! The URLs and credentials that a coordinator or worker allows pipelines to use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::pipeline::{Pipeline, did_you_mean, join_names};
use crate::tenants::TenantReads;
use crate::urls::{UrlPolicy, check_no_secrets, is_local, metadata_host, without_query};

/// The URLs and credentials that a coordinator or worker allows. The default allows everything except metadata services.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReadPolicy {
    /// The allowed URL prefixes.
    pub urls: UrlPolicy,
    /// Whether addresses of metadata services are allowed.
    pub metadata_addresses: bool,
    /// Whether local files are rejected unless a prefix allows them. Set if users who open jobs must not have the process's
    /// access to local files.
    pub local_by_prefix: bool,
    /// The URLs for which each named credential is valid. `None` skips the check in this process; workers check before
    /// reading.
    pub credentials: Option<BTreeMap<String, UrlPolicy>>,
}

impl ReadPolicy {
    /// Returns the policy for a tenant's pipelines. It contains only the credentials that the tenant may use.
    #[must_use]
    pub fn for_tenant(&self, reads: &TenantReads) -> Self {
        let mut policy = self.clone();
        if let (Some(known), Some(allowed)) = (&mut policy.credentials, &reads.credentials) {
            known.retain(|name, _| allowed.contains(name));
        }
        policy
    }

    /// Checks the URLs and credentials in the text of a pipeline.
    ///
    /// # Errors
    /// Returns a message that names the field and the fix.
    pub fn check(&self, pipeline: &Pipeline) -> Result<(), String> {
        for (place, url) in pipeline.read_locations() {
            self.check_url(url).map_err(|sentence| format!("{place}: {sentence}"))?;
        }
        for (place, source) in pipeline.source.datasets().into_iter().enumerate() {
            if let Some(name) = &source.credentials {
                self.check_credentials(name, &source.url).map_err(|sentence| {
                    format!("{}: {sentence}", pipeline.source.field_path(place, "credentials"))
                })?;
            }
        }
        Ok(())
    }

    /// Checks a URL of a pipeline, which may be a path and may contain globs and braces.
    ///
    /// # Errors
    /// Returns a message with the fix.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.check_host(url)?;
        self.check_local(url)?;
        self.urls.check(url)
    }

    /// Checks the URL of one object, such as a listed object.
    ///
    /// # Errors
    /// Returns a message with the fix.
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        self.check_host(url)?;
        self.check_local(url)?;
        self.urls.check_object(url)
    }

    /// Checks that the named credentials exist and are valid for these URLs.
    ///
    /// # Errors
    /// Returns a message that lists the known names or the valid URLs.
    pub fn check_credentials(&self, name: &str, urls: &[String]) -> Result<(), String> {
        let Some(scope) = self.scope(name)? else { return Ok(()) };
        urls.iter().try_for_each(|url| scope.check(url).map_err(|_| scope_error(name, scope, url)))
    }

    /// Checks that the named credentials exist and are valid for this object.
    ///
    /// # Errors
    /// Same as [`Self::check_credentials`].
    pub fn check_object_credentials(&self, name: &str, url: &str) -> Result<(), String> {
        let Some(scope) = self.scope(name)? else { return Ok(()) };
        scope.check_object(url).map_err(|_| scope_error(name, scope, url))
    }

    /// Returns the URLs for which the named credentials are valid, or `None` if this process skips the check.
    fn scope(&self, name: &str) -> Result<Option<&UrlPolicy>, String> {
        let Some(known) = &self.credentials else { return Ok(None) };
        if let Some(scope) = known.get(name) {
            return Ok(Some(scope));
        }
        if known.is_empty() {
            return Err(format!(
                "unknown credentials `{name}`: start coordinators and workers with `--credentials FILE`, and define them in \
                 that file"
            ));
        }
        let names = || known.keys().map(String::as_str);
        let hint = did_you_mean(name, names());
        Err(format!("unknown credentials `{name}`{hint} (known: {})", join_names(names())))
    }

    fn check_local(&self, url: &str) -> Result<(), String> {
        if !self.local_by_prefix || !self.urls.allows_all() || !is_local(url) {
            return Ok(());
        }
        Err(format!(
            "`{}` is a local file; with token authentication, pipelines can only read files under an `--allow-url` prefix: start coordinators and workers with `--allow-url` for its directory and for all other pipeline URLs",
            without_query(url)
        ))
    }

    fn check_host(&self, url: &str) -> Result<(), String> {
        check_no_secrets(url)?;
        match metadata_host(url) {
            Some(host) if !self.metadata_addresses => Err(metadata_host_error(host)),
            _ => Ok(()),
        }
    }
}

fn scope_error(name: &str, scope: &UrlPolicy, url: &str) -> String {
    let prefixes: Vec<String> = scope.prefixes().map(|prefix| format!("`{prefix}`")).collect();
    format!(
        "the credentials `{name}` are not valid for `{}`, only for {}: use other credentials, or add the URL to `urls` in the \
         credentials file",
        without_query(url),
        prefixes.join(", ")
    )
}

/// The error message for the host of a metadata service.
pub fn metadata_host_error(host: &str) -> String {
    format!(
        "`{host}` is the address of a cloud metadata service, which pipelines are not allowed to read: use another host, or start the \
         process with `--allow-metadata-addresses`"
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

    fn error_of(source: Source) -> String {
        policy().check(&pipeline(source)).unwrap_err()
    }

    #[test]
    fn every_url_of_a_pipeline_is_checked() {
        assert_eq!(policy().check(&pipeline(Source::text("s3://a/x/"))), Ok(()));
        assert!(
            error_of(Source::text("s3://a/x/").with_url("s3://b/"))
                .starts_with("source.url: `s3://b/` is outside")
        );
        let mut elsewhere = policy();
        elsewhere.urls = UrlPolicy::new(["s3://a"]).unwrap();
        let error = elsewhere.check(&pipeline(Source::text("s3://a/x/"))).unwrap_err();
        assert!(error.starts_with("operator 1 (tokenize).tokenizer: `/vocab/t.json` is outside"), "{error}");
    }

    #[test]
    fn credentials_are_checked_by_name_and_url() {
        let with = |url: &str, name: &str| Source::text(url).credentials(name);
        assert_eq!(policy().check(&pipeline(with("s3://a/x/y", "one"))), Ok(()));
        assert_eq!(policy().check(&pipeline(with("s3://a/z", "other"))), Ok(()));
        assert_eq!(
            error_of(with("s3://a/z", "one")),
            "source.credentials: the credentials `one` are not valid for `s3://a/z`, only for `s3://a/x`: use other \
             credentials, or add the URL to `urls` in the credentials file"
        );
        assert_eq!(
            error_of(with("s3://a/x", "othr")),
            "source.credentials: unknown credentials `othr`; did you mean `other`? (known: one, other)"
        );
        let none = ReadPolicy { credentials: Some(BTreeMap::new()), ..ReadPolicy::default() };
        let error = none.check(&pipeline(with("s3://a/x", "one"))).unwrap_err();
        assert!(error.contains("--credentials FILE"), "{error}");
        assert_eq!(ReadPolicy::default().check(&pipeline(with("s3://a/x", "one"))), Ok(()));
    }

    #[test]
    fn errors_list_only_the_credentials_of_the_tenant() {
        let only = |names: &[&str]| TenantReads {
            credentials: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..TenantReads::default()
        };
        let named = pipeline(Source::text("s3://a/x").credentials("gone"));
        let error = policy().for_tenant(&only(&["other", "gone"])).check(&named).unwrap_err();
        assert!(error.ends_with("(known: other)"), "{error}");
        let error = policy().for_tenant(&TenantReads::default()).check(&named).unwrap_err();
        assert!(error.ends_with("(known: one, other)"), "{error}");
        assert_eq!(ReadPolicy::default().for_tenant(&only(&[])), ReadPolicy::default(), "the worker checks");
    }

    #[test]
    fn local_files_need_a_prefix_if_the_policy_requires_one() {
        let strict = ReadPolicy { local_by_prefix: true, ..ReadPolicy::default() };
        for url in ["/keys/worker.token", "keys/secret", "FILE:///keys/secret", "/keys/*"] {
            for result in [strict.check_url(url), strict.check_object(url)] {
                let error = result.unwrap_err();
                assert!(error.contains("is a local file") && error.contains("`--allow-url`"), "{error}");
            }
        }
        assert_eq!(strict.check_url("s3://bucket/x"), Ok(()));
        let within = ReadPolicy { urls: UrlPolicy::new(["/data"]).unwrap(), ..strict };
        assert_eq!(within.check_url("/data/x"), Ok(()));
        assert!(within.check_url("/keys/secret").unwrap_err().contains("is outside"));
        assert_eq!(ReadPolicy::default().check_url("/keys/secret"), Ok(()), "the user owns the files");
    }

    #[test]
    fn metadata_services_are_rejected_unless_allowed() {
        let url = "http://2852039166/latest/x";
        let error = ReadPolicy::default().check(&pipeline(Source::files(url))).unwrap_err();
        assert!(error.starts_with("source.url: `2852039166` is the address of a cloud metadata"), "{error}");
        assert!(error.contains("--allow-metadata-addresses"));
        let allowed = ReadPolicy { metadata_addresses: true, ..ReadPolicy::default() };
        assert_eq!(allowed.check(&pipeline(Source::files(url))), Ok(()));
    }
}
