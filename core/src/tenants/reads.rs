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
        for (place, url) in pipeline.reads() {
            if self.urls.check(url).is_err() {
                return Err(format!(
                    "{place}: `{}` lies outside of what {} may read ({}): read from there, or have its `urls` in the \
                     coordinator's file of tenants name a prefix that holds it",
                    without_query(url),
                    whom(tenant),
                    listed(self.urls.prefixes())
                ));
            }
        }
        let (Some(name), Some(allowed)) = (&pipeline.source.credentials, &self.credentials) else {
            return Ok(());
        };
        if allowed.contains(name) {
            return Ok(());
        }
        let allowed = listed(allowed.iter().map(String::as_str));
        Err(format!(
            "source.credentials: {} may not read with the credentials `{name}` (allowed: {allowed}): name others, or have its \
             `credentials` in the coordinator's file of tenants name these",
            whom(tenant)
        ))
    }
}

/// The tenant in a sentence.
pub(crate) fn whom(tenant: &str) -> String {
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
