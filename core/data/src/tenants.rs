//! Quotas and read permissions of tenants. This module identifies a tenant by name only; the service authenticates callers.
//! The empty name identifies callers without a tenant.

mod reads;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use reads::{TenantReads, describe_tenant};

/// Maximum length of a tenant name in bytes. The name appears in tables, logs and metrics.
const MAX_NAME_BYTES: usize = 64;

/// Limits on the total usage of all jobs of one tenant. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Maximum number of jobs that are preparing or running at the same time.
    pub jobs: Option<u32>,
    /// Maximum number of CPU cores over all workers; above 0.
    pub cores: Option<f64>,
    /// Maximum size of cached rows in bytes, over all workers and tiers.
    pub cache_bytes: Option<f64>,
    /// A factor for the weights of the tenant's jobs; above 0.
    pub priority: f64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { jobs: None, cores: None, cache_bytes: None, priority: 1.0 }
    }
}

impl Quota {
    /// Checks that all numbers are in range.
    ///
    /// # Errors
    /// Returns a message that names the field and the fix.
    pub fn check(&self) -> Result<(), String> {
        let is_positive = |number: f64| number > 0.0 && number.is_finite();
        if let Some(cores) = self.cores.filter(|cores| !is_positive(*cores)) {
            return Err(format!(
                "cores: invalid number of cores {cores}; write a number above 0, or omit the field"
            ));
        }
        if let Some(bytes) = self.cache_bytes.filter(|bytes| !(*bytes >= 0.0 && bytes.is_finite())) {
            return Err(format!(
                "cache_bytes: invalid size {bytes}; write a size such as 100GiB, or omit the field"
            ));
        }
        if !is_positive(self.priority) {
            return Err(format!("priority: invalid priority {}; write a number above 0", self.priority));
        }
        Ok(())
    }
}

/// The quotas and read permissions of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tenants {
    /// The quota of each tenant that is not in `tenants`.
    pub default: Quota,
    /// Quotas by tenant name.
    pub tenants: BTreeMap<String, Quota>,
    /// The read permissions of each tenant that is not in `reads`.
    pub default_reads: TenantReads,
    /// Read permissions by tenant name.
    pub reads: BTreeMap<String, TenantReads>,
}

impl Tenants {
    /// The quota of a tenant.
    pub fn quota_of(&self, tenant: &str) -> &Quota {
        self.tenants.get(tenant).unwrap_or(&self.default)
    }

    /// The read permissions of a tenant.
    pub fn reads_of(&self, tenant: &str) -> &TenantReads {
        self.reads.get(tenant).unwrap_or(&self.default_reads)
    }

    /// Checks the names and quotas of all tenants.
    ///
    /// # Errors
    /// Returns a message that names the field and the fix.
    pub fn check(&self) -> Result<(), String> {
        self.default.check().map_err(|sentence| format!("default.{sentence}"))?;
        for (tenant, quota) in &self.tenants {
            check_name(tenant).map_err(|sentence| format!("tenants: {sentence}"))?;
            quota.check().map_err(|sentence| format!("tenants.{tenant}.{sentence}"))?;
        }
        Ok(())
    }
}

/// Checks the name of a tenant.
///
/// # Errors
/// Returns a message with the fix.
pub fn check_name(tenant: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if tenant.len() > MAX_NAME_BYTES || !tenant.chars().all(is_plain) {
        return Err(format!(
            "invalid tenant name `{}`: use at most {MAX_NAME_BYTES} letters, digits, `.`, `_` and `-`",
            tenant.escape_debug()
        ));
    }
    Ok(())
}

/// Returns the tenant name for tables and messages; `-` for the empty name.
pub fn display_name(tenant: &str) -> &str {
    if tenant.is_empty() { "-" } else { tenant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_tenants_have_the_default_quota() {
        let few = Quota { jobs: Some(2), ..Quota::default() };
        let many = Quota { jobs: Some(9), priority: 2.0, ..Quota::default() };
        let tenants =
            Tenants { default: few, tenants: [("vision".to_owned(), many)].into(), ..Tenants::default() };
        assert_eq!(
            (tenants.quota_of("vision"), tenants.quota_of("text"), tenants.quota_of("")),
            (&many, &few, &few)
        );
        assert_eq!(Tenants::default().quota_of("vision"), &Quota::default());
    }

    #[test]
    fn invalid_quotas_are_rejected_with_their_field() {
        let error_of = |quota: Quota| {
            Tenants { tenants: [("a".to_owned(), quota)].into(), ..Tenants::default() }.check().unwrap_err()
        };
        assert_eq!(
            error_of(Quota { cores: Some(0.0), ..Quota::default() }),
            "tenants.a.cores: invalid number of cores 0; write a number above 0, or omit the field"
        );
        assert_eq!(
            error_of(Quota { cache_bytes: Some(-1.0), ..Quota::default() }),
            "tenants.a.cache_bytes: invalid size -1; write a size such as 100GiB, or omit the field"
        );
        assert_eq!(
            error_of(Quota { priority: 0.0, ..Quota::default() }),
            "tenants.a.priority: invalid priority 0; write a number above 0"
        );
        let named = Tenants { tenants: [("a b".to_owned(), Quota::default())].into(), ..Tenants::default() };
        assert!(named.check().unwrap_err().starts_with("tenants: invalid tenant name `a b`:"));
    }

    #[test]
    fn names_are_plain_and_short() {
        for good in ["", "vision", "team-7.eu_west"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["two words", "ünïcode", "a/b", "line\nbreak", &"a".repeat(65)] {
            let error = check_name(bad).unwrap_err();
            assert!(error.starts_with("invalid tenant name") && !error.contains('\n'), "{error}");
        }
    }
}
