//! What the pipelines of a tenant may read, within what roles let be read.

use serde::{Deserialize, Serialize};

use crate::pipeline::{Pipeline, listed};
use crate::urls::{UrlPolicy, without_query};

/// What the pipelines of a tenant may read. By default all that roles let be read, with any credentials that they know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantReads {
    /// Prefixes within which URLs must lie.
    pub urls: UrlPolicy,
    /// Names of credentials that may be named; `None` is any.
    pub credentials: Option<Vec<String>>,
}

impl TenantReads {
    /// Checks all that a pipeline reads, as far as its text tells. `tenant` is for messages.
    ///
    /// # Errors
    /// One sentence with the place in the pipeline and the fix.
    pub fn check(&self, tenant: &str, pipeline: &Pipeline) -> Result<(), String> {
        let whom = whom(tenant);
        for (place, url) in pipeline.reads() {
            self.urls.check(url).map_err(|_| format!("{place}: {}", self.outside(&whom, url)))?;
        }
        for (place, source) in pipeline.source.datasets().into_iter().enumerate() {
            self.check_named(&whom, source.credentials.as_deref()).map_err(|sentence| {
                format!("{}: {sentence}", pipeline.source.place_of(place, "credentials"))
            })?;
        }
        Ok(())
    }

    /// Checks a URL as pipelines have them: it may be a path, and have globs and braces.
    ///
    /// # Errors
    /// One sentence with the fix.
    pub fn check_url(&self, url: &str) -> Result<(), String> {
        self.urls.check(url).map_err(|_| self.outside(THE_TENANT, url))
    }

    /// Checks the URL of one object, such as one that was listed.
    ///
    /// # Errors
    /// As [`Self::check_url`].
    pub fn check_object(&self, url: &str) -> Result<(), String> {
        self.urls.check_object(url).map_err(|_| self.outside(THE_TENANT, url))
    }

    /// Checks that credentials of this name may be named.
    ///
    /// # Errors
    /// One sentence that lists those that may.
    pub fn check_credentials(&self, name: &str) -> Result<(), String> {
        self.check_named(THE_TENANT, Some(name))
    }

    fn outside(&self, whom: &str, url: &str) -> String {
        format!(
            "`{}` lies outside of what {whom} may read ({}): read from there, or have its `urls` in the coordinator's file of \
             tenants name a prefix that holds it",
            without_query(url),
            listed(self.urls.prefixes())
        )
    }

    fn check_named(&self, whom: &str, name: Option<&str>) -> Result<(), String> {
        let (Some(name), Some(allowed)) = (name, &self.credentials) else { return Ok(()) };
        if allowed.iter().any(|allowed| allowed == name) {
            return Ok(());
        }
        let allowed = listed(allowed.iter().map(String::as_str));
        Err(format!(
            "{whom} may not read with the credentials `{name}` (allowed: {allowed}): name others, or have its `credentials` in the \
             coordinator's file of tenants name these"
        ))
    }
}

/// The tenant where its name is not known: on a worker.
const THE_TENANT: &str = "the job's tenant";

/// The tenant in a sentence.
pub fn whom(tenant: &str) -> String {
    match tenant {
        "" => "callers without a tenant".to_owned(),
        tenant => format!("tenant `{tenant}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Source;

    fn told(reads: &TenantReads, source: Source) -> String {
        let pipeline =
            Pipeline::builder("p").source(source).tokenize("text", "/vocab/t.json").batch(1).build().unwrap();
        reads.check("vision", &pipeline).err().unwrap_or_default()
    }

    #[test]
    fn a_tenant_reads_within_its_prefixes() {
        let urls =
            |prefixes: &[&str]| TenantReads { urls: UrlPolicy::new(prefixes).unwrap(), credentials: None };
        let own = urls(&["s3://vision", "/vocab"]);
        assert_eq!(told(&own, Source::text("s3://vision/x/")), "");
        assert_eq!(told(&TenantReads::default(), Source::text("s3://text/x/")), "");
        assert_eq!(
            told(&own, Source::text("s3://vision/../text/?key=1")),
            "source.url: `s3://vision/../text/` lies outside of what tenant `vision` may read (s3://vision, /vocab): read from \
             there, or have its `urls` in the coordinator's file of tenants name a prefix that holds it"
        );
        let no_vocabulary = told(&urls(&["s3://vision"]), Source::text("s3://vision/x/"));
        assert!(
            no_vocabulary.starts_with("operator 1 (tokenize).tokenizer: `/vocab/t.json` lies"),
            "{no_vocabulary}"
        );
    }

    #[test]
    fn who_reads_looks_again() {
        let own = TenantReads { urls: UrlPolicy::new(["/own"]).unwrap(), credentials: Some(Vec::new()) };
        assert_eq!((own.check_url("/own/*"), own.check_object("/own/[x]")), (Ok(()), Ok(())));
        for told in [own.check_url("/own*/x"), own.check_object("/other/x")] {
            let told = told.unwrap_err();
            assert!(told.contains("lies outside of what the job's tenant may read (/own)"), "{told}");
        }
        assert!(own.check_credentials("text").unwrap_err().starts_with("the job's tenant may not read with"));
        assert_eq!(TenantReads::default().check_credentials("text"), Ok(()));
    }

    #[test]
    fn a_tenant_names_its_own_credentials() {
        let only = |names: &[&str]| TenantReads {
            credentials: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..TenantReads::default()
        };
        let with = |name: &str| Source::text("s3://vision/x/").credentials(name);
        assert_eq!(told(&only(&["vision"]), with("vision")), "");
        assert_eq!(told(&only(&[]), Source::text("s3://vision/x/")), "", "it names none");
        assert_eq!(
            told(&only(&["vision", "shared"]), with("text")),
            "source.credentials: tenant `vision` may not read with the credentials `text` (allowed: vision, shared): name \
             others, or have its `credentials` in the coordinator's file of tenants name these"
        );
        assert!(told(&only(&[]), with("text")).contains("(allowed: none)"));
    }
}
