//! Tenants: whose a job is, what the jobs of one may take together, and what they may read. Who asks is found out at the service's door; here a
//! tenant is a name, and the empty one is that of everybody who has none.

mod reads;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use reads::{TenantReads, whom};

/// Longest name of a tenant in bytes: it stands in tables, logs and metrics.
const MOST_NAME_BYTES: usize = 64;

/// What the jobs of one tenant may take together. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Jobs that are prepared or run at once.
    pub jobs: Option<u32>,
    /// CPU cores of workers' pools, over all workers; above 0.
    pub cores: Option<f64>,
    /// Bytes of rows that are kept for it, over all workers and tiers.
    pub cache_bytes: Option<f64>,
    /// Multiplies the weights of its jobs; above 0.
    pub priority: f64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { jobs: None, cores: None, cache_bytes: None, priority: 1.0 }
    }
}

impl Quota {
    /// Checks the numbers.
    ///
    /// # Errors
    /// The field, and one sentence with the fix.
    pub fn check(&self) -> Result<(), String> {
        let is_positive = |number: f64| number > 0.0 && number.is_finite();
        if let Some(cores) = self.cores.filter(|cores| !is_positive(*cores)) {
            return Err(format!(
                "cores: jobs cannot run on {cores} cores; give a number above 0, or leave it out"
            ));
        }
        if let Some(bytes) = self.cache_bytes.filter(|bytes| !(*bytes >= 0.0 && bytes.is_finite())) {
            return Err(format!("cache_bytes: {bytes} is no size; give one such as 100GiB, or leave it out"));
        }
        if !is_positive(self.priority) {
            return Err(format!(
                "priority: jobs of priority {} get nothing; give a number above 0",
                self.priority
            ));
        }
        Ok(())
    }
}

/// The quotas of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tenants {
    /// Of each tenant that is not named, for itself.
    pub default: Quota,
    /// By name.
    pub tenants: BTreeMap<String, Quota>,
    /// What tenants that are not named may read.
    pub default_reads: TenantReads,
    /// The same of those that are.
    pub reads: BTreeMap<String, TenantReads>,
}

impl Tenants {
    /// What a tenant may take.
    pub fn of(&self, tenant: &str) -> &Quota {
        self.tenants.get(tenant).unwrap_or(&self.default)
    }

    /// What a tenant's pipelines may read.
    pub fn reads_of(&self, tenant: &str) -> &TenantReads {
        self.reads.get(tenant).unwrap_or(&self.default_reads)
    }

    /// Checks names and numbers.
    ///
    /// # Errors
    /// The field, and one sentence with the fix.
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
/// One sentence with the fix.
pub fn check_name(tenant: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    if tenant.len() > MOST_NAME_BYTES || !tenant.chars().all(is_plain) {
        return Err(format!(
            "`{}` is no tenant's name; use letters, digits, `.`, `_` and `-`, at most {MOST_NAME_BYTES} of them",
            tenant.escape_debug()
        ));
    }
    Ok(())
}

/// The name as tables and sentences show it.
pub fn shown(tenant: &str) -> &str {
    if tenant.is_empty() { "-" } else { tenant }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_not_named_has_the_default() {
        let few = Quota { jobs: Some(2), ..Quota::default() };
        let many = Quota { jobs: Some(9), priority: 2.0, ..Quota::default() };
        let tenants =
            Tenants { default: few, tenants: [("vision".to_owned(), many)].into(), ..Tenants::default() };
        assert_eq!((tenants.of("vision"), tenants.of("text"), tenants.of("")), (&many, &few, &few));
        assert_eq!(Tenants::default().of("vision"), &Quota::default());
    }

    #[test]
    fn quotas_that_make_no_sense_are_told_with_their_field() {
        let refused = |quota: Quota| {
            Tenants { tenants: [("a".to_owned(), quota)].into(), ..Tenants::default() }.check().unwrap_err()
        };
        assert_eq!(
            refused(Quota { cores: Some(0.0), ..Quota::default() }),
            "tenants.a.cores: jobs cannot run on 0 cores; give a number above 0, or leave it out"
        );
        assert_eq!(
            refused(Quota { cache_bytes: Some(-1.0), ..Quota::default() }),
            "tenants.a.cache_bytes: -1 is no size; give one such as 100GiB, or leave it out"
        );
        assert_eq!(
            refused(Quota { priority: 0.0, ..Quota::default() }),
            "tenants.a.priority: jobs of priority 0 get nothing; give a number above 0"
        );
        let named = Tenants { tenants: [("a b".to_owned(), Quota::default())].into(), ..Tenants::default() };
        assert!(named.check().unwrap_err().starts_with("tenants: `a b` is no tenant's name;"));
    }

    #[test]
    fn names_are_plain_and_short() {
        for good in ["", "vision", "team-7.eu_west"] {
            assert_eq!(check_name(good), Ok(()));
        }
        for bad in ["two words", "ünïcode", "a/b", "line\nbreak", &"a".repeat(65)] {
            let refused = check_name(bad).unwrap_err();
            assert!(
                refused.contains("is no tenant's name; use letters") && !refused.contains('\n'),
                "{refused}"
            );
        }
    }
}
