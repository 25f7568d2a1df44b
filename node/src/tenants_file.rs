//! Parses the file of `--tenants`, which contains the quotas of tenants. Error messages contain the line number.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use feedline_data::tenants;
use feedline_data::tenants::{Quota, TenantReads, Tenants};
use feedline_data::urls::UrlPolicy;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::failure::Failure;
use crate::yaml::{self, values};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct TenantsFile {
    /// Quota of every tenant without an entry.
    default: Option<QuotaEntry>,
    /// Quotas by tenant name. A name without a value has no limits.
    tenants: Option<BTreeMap<TenantName, Option<QuotaEntry>>>,
}

/// The quota of a tenant, and the data that its pipelines may read. A missing key means no limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuotaEntry {
    /// Maximum number of unfinished jobs.
    jobs: Option<u32>,
    /// Maximum number of CPU cores over all jobs.
    #[serde(deserialize_with = "values::optional_positive")]
    cores: Option<f64>,
    /// Maximum bytes of cached rows.
    #[serde(deserialize_with = "values::optional_bytes")]
    cache_bytes: Option<f64>,
    /// Factor by which the weights of the tenant's jobs are multiplied.
    #[serde(deserialize_with = "values::positive")]
    priority: f64,
    /// URL prefixes that the tenant's pipelines may read.
    urls: UrlPolicy,
    /// Names of credentials that the tenant's pipelines may use.
    credentials: Option<Vec<String>>,
}

impl Default for QuotaEntry {
    fn default() -> Self {
        let urls = UrlPolicy::default();
        Self { jobs: None, cores: None, cache_bytes: None, priority: 1.0, urls, credentials: None }
    }
}

impl QuotaEntry {
    /// Returns the factor by which the weights of the tenant's jobs are multiplied.
    pub(crate) fn priority(&self) -> f64 {
        self.priority
    }
}

impl From<&QuotaEntry> for Quota {
    fn from(entry: &QuotaEntry) -> Self {
        let QuotaEntry { jobs, cores, cache_bytes, priority, .. } = *entry;
        Self { jobs, cores, cache_bytes, priority }
    }
}

impl From<QuotaEntry> for TenantReads {
    fn from(entry: QuotaEntry) -> Self {
        Self { urls: entry.urls, credentials: entry.credentials }
    }
}

/// A valid name of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TenantName(pub(crate) String);

impl<'de> Deserialize<'de> for TenantName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(NameVisitor)
    }
}

struct NameVisitor;

impl Visitor<'_> for NameVisitor {
    type Value = TenantName;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tenant name")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<TenantName, E> {
        tenants::check_name(name).map_err(E::custom)?;
        Ok(TenantName(name.to_owned()))
    }
}

/// Loads the quotas of all tenants.
pub(crate) fn load(path: &Path) -> Result<Tenants, Failure> {
    yaml::load(path, "a tenants file", parse)
}

fn parse(text: &str, file: &str) -> Result<Tenants, String> {
    let file_content: TenantsFile = yaml::parse(text, file)?;
    let default = file_content.default.unwrap_or_default();
    let tenants = file_content.tenants.unwrap_or_default().into_iter();
    let tenants: BTreeMap<String, QuotaEntry> =
        tenants.map(|(name, entry)| (name.0, entry.unwrap_or_default())).collect();
    Ok(Tenants {
        default: (&default).into(),
        tenants: tenants.iter().map(|(name, entry)| (name.clone(), entry.into())).collect(),
        default_reads: default.into(),
        reads: tenants.into_iter().map(|(name, entry)| (name, entry.into())).collect(),
    })
}

#[cfg(test)]
mod tests;
