//! The file of `--tenants`: what the jobs of each tenant may take together. Strict: a mistake is told with its line.

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
    /// Of each tenant that is not named.
    default: QuotaEntry,
    /// By name.
    tenants: BTreeMap<TenantName, QuotaEntry>,
}

/// What the jobs of a tenant may take together, and read. What is left out has no limit.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct QuotaEntry {
    /// Jobs at once.
    jobs: Option<u32>,
    /// CPU cores.
    #[serde(deserialize_with = "values::some_positive")]
    cores: Option<f64>,
    /// Rows that plans keep.
    #[serde(deserialize_with = "values::some_bytes")]
    cache_bytes: Option<f64>,
    /// Multiplies the weights of its jobs.
    #[serde(deserialize_with = "values::positive")]
    priority: f64,
    /// Prefixes within which its pipelines read.
    urls: UrlPolicy,
    /// Credentials that its pipelines may name.
    credentials: Option<Vec<String>>,
}

impl Default for QuotaEntry {
    fn default() -> Self {
        let urls = UrlPolicy::default();
        Self { jobs: None, cores: None, cache_bytes: None, priority: 1.0, urls, credentials: None }
    }
}

impl QuotaEntry {
    /// What multiplies the weights of its jobs.
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

/// A name that a tenant may have.
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
        f.write_str("the name of a tenant")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<TenantName, E> {
        tenants::check_name(name).map_err(E::custom)?;
        Ok(TenantName(name.to_owned()))
    }
}

/// Reads the quotas of all tenants.
pub(crate) fn load(path: &Path) -> Result<Tenants, Failure> {
    yaml::load(path, "a file of tenants and their quotas", parse)
}

fn parse(text: &str, file: &str) -> Result<Tenants, String> {
    let found: TenantsFile = yaml::read(text, file)?;
    Ok(Tenants {
        default: (&found.default).into(),
        tenants: found.tenants.iter().map(|(name, entry)| (name.0.clone(), entry.into())).collect(),
        default_reads: found.default.into(),
        reads: found.tenants.into_iter().map(|(name, entry)| (name.0, entry.into())).collect(),
    })
}

#[cfg(test)]
mod tests;
