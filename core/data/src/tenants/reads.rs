//! The read permissions of a tenant, which further restrict the read policy of coordinators and workers.

use serde::{Deserialize, Serialize};

use crate::pipeline::{Pipeline, join_names};
use crate::urls::{UrlPolicy, without_query};

/// The URLs and credentials that pipelines of a tenant may use. The default adds no restrictions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantReads {
    /// The allowed URL prefixes.
    pub urls: UrlPolicy,
    /// The names of the allowed credentials; `None` allows all.
    pub credentials: Option<Vec<String>>,
}

impl TenantReads {
    /// Checks the URLs and credentials of a pipeline. `tenant` is the name in messages.
    ///
    /// # Errors
    /// Returns a message that names the field and the fix.
    pub fn check(&self, tenant: &str, pipeline: &Pipeline) -> Result<(), String> {
        let subject = describe_tenant(tenant);
        for (place, url) in pipeline.read_locations() {
            self.urls.check(url).map_err(|_| format!("{place}: {}", self.outside_error(&subject, url)))?;
        }
        for (place, source) in pipeline.source.datasets().into_iter().enumerate() {
            self.check_named(&subject, source.credentials.as_deref()).map_err(|sentence| {
                format!("{}: {sentence}", pipeline.source.field_path(place, "credentials"))
            })?;
        }
        Ok(())
    }

    /// Checks a URL of a pipeline, which may be a path and may contain globs and braces.
    ///
    /// # Errors
    /// Returns a message with the fix.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.urls.check(url).map_err(|_| self.outside_error(UNNAMED_TENANT, url))
    }

    /// Checks the URL of one object, such as a listed object.
    ///
    /// # Errors
    /// Same as [`Self::check_url`].
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        self.urls.check_object(url).map_err(|_| self.outside_error(UNNAMED_TENANT, url))
    }

    /// Checks that the named credentials are allowed.
    ///
    /// # Errors
    /// Returns a message that lists the allowed names.
    pub fn check_credentials(&self, name: &str) -> Result<(), String> {
        self.check_named(UNNAMED_TENANT, Some(name))
    }

    fn outside_error(&self, subject: &str, url: &str) -> String {
        format!(
            "`{}` is outside the URLs that {subject} may read ({}): use an allowed URL, or add a prefix to `urls` in the \
             coordinator's tenants file",
            without_query(url),
            join_names(self.urls.prefixes())
        )
    }

    fn check_named(&self, subject: &str, name: Option<&str>) -> Result<(), String> {
        let (Some(name), Some(allowed)) = (name, &self.credentials) else { return Ok(()) };
        if allowed.iter().any(|allowed| allowed == name) {
            return Ok(());
        }
        let allowed = join_names(allowed.iter().map(String::as_str));
        Err(format!(
            "{subject} may not use the credentials `{name}` (allowed: {allowed}): use other credentials, or add this name to `credentials` in the coordinator's tenants file"
        ))
    }
}

/// The subject of messages on workers, which do not have the tenant's name.
const UNNAMED_TENANT: &str = "the job's tenant";

/// Describes the tenant as the subject of a sentence.
pub fn describe_tenant(tenant: &str) -> String {
    match tenant {
        "" => "callers without a tenant".to_owned(),
        tenant => format!("tenant `{tenant}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Source;

    fn error_of(reads: &TenantReads, source: Source) -> String {
        let pipeline =
            Pipeline::builder("p").source(source).tokenize("text", "/vocab/t.json").batch(1).build().unwrap();
        reads.check("vision", &pipeline).err().unwrap_or_default()
    }

    #[test]
    fn a_tenant_reads_within_its_prefixes() {
        let urls =
            |prefixes: &[&str]| TenantReads { urls: UrlPolicy::new(prefixes).unwrap(), credentials: None };
        let own = urls(&["s3://vision", "/vocab"]);
        assert_eq!(error_of(&own, Source::text("s3://vision/x/")), "");
        assert_eq!(error_of(&TenantReads::default(), Source::text("s3://text/x/")), "");
        assert_eq!(
            error_of(&own, Source::text("s3://vision/../text/?key=1")),
            "source.url: `s3://vision/../text/` is outside the URLs that tenant `vision` may read (s3://vision, /vocab): use an \
             allowed URL, or add a prefix to `urls` in the coordinator's tenants file"
        );
        let no_vocabulary = error_of(&urls(&["s3://vision"]), Source::text("s3://vision/x/"));
        assert!(
            no_vocabulary.starts_with("operator 1 (tokenize).tokenizer: `/vocab/t.json` is outside"),
            "{no_vocabulary}"
        );
    }

    #[test]
    fn workers_check_urls_and_credentials_again() {
        let own = TenantReads { urls: UrlPolicy::new(["/own"]).unwrap(), credentials: Some(Vec::new()) };
        assert_eq!((own.check_url("/own/*"), own.check_object("/own/[x]")), (Ok(()), Ok(())));
        for result in [own.check_url("/own*/x"), own.check_object("/other/x")] {
            let error = result.unwrap_err();
            assert!(error.contains("is outside the URLs that the job's tenant may read (/own)"), "{error}");
        }
        assert!(own.check_credentials("text").unwrap_err().starts_with("the job's tenant may not use"));
        assert_eq!(TenantReads::default().check_credentials("text"), Ok(()));
    }

    #[test]
    fn a_tenant_uses_only_allowed_credentials() {
        let only = |names: &[&str]| TenantReads {
            credentials: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..TenantReads::default()
        };
        let with = |name: &str| Source::text("s3://vision/x/").credentials(name);
        assert_eq!(error_of(&only(&["vision"]), with("vision")), "");
        assert_eq!(
            error_of(&only(&[]), Source::text("s3://vision/x/")),
            "",
            "the source names no credentials"
        );
        assert_eq!(
            error_of(&only(&["vision", "shared"]), with("text")),
            "source.credentials: tenant `vision` may not use the credentials `text` (allowed: vision, shared): use other credentials, or add this name to `credentials` in the coordinator's tenants file"
        );
        assert!(error_of(&only(&[]), with("text")).contains("(allowed: none)"));
    }
}
