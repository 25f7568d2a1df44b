//! The file of `--tenants`: what the jobs of each tenant may take together. Strict: a mistake is told with its line.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use feedline_core::tenants::{self, Quota, Tenants};
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

/// What the jobs of a tenant may take together. What is left out has no limit.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
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
}

impl Default for QuotaEntry {
    fn default() -> Self {
        Self { jobs: None, cores: None, cache_bytes: None, priority: 1.0 }
    }
}

impl QuotaEntry {
    /// What multiplies the weights of its jobs.
    pub(crate) fn priority(&self) -> f64 {
        self.priority
    }
}

impl From<QuotaEntry> for Quota {
    fn from(entry: QuotaEntry) -> Self {
        let QuotaEntry { jobs, cores, cache_bytes, priority } = entry;
        Self { jobs, cores, cache_bytes, priority }
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
    let tenants = found.tenants.into_iter().map(|(name, entry)| (name.0, entry.into())).collect();
    Ok(Tenants { default: found.default.into(), tenants })
}

#[cfg(test)]
mod tests;
