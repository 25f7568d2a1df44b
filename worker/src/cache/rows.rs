//! Cached rows: their keys, and their value.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

/// The fingerprint of the data and the operators that computed rows.
pub(crate) type Prefix = u128;

/// The name of a tenant.
pub(crate) type Tenant = Arc<str>;

/// The value of the rows of each prefix of running jobs.
pub(crate) type CacheValues = BTreeMap<Prefix, CacheValue>;

/// The value of cached rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CacheValue {
    /// Seconds that one byte saves for each hit; 0 if unknown.
    pub(crate) saved_s_per_byte: f64,
    /// Whether a pipeline has a `cache` operator. Rows that plans cache for the same tenant do not evict these rows.
    pub(crate) is_named: bool,
    /// The tenants of the jobs, with the bytes that this worker may cache for each of them.
    pub(crate) tenants: BTreeMap<Tenant, u64>,
}

impl CacheValue {
    /// Adds a job with cached rows: the seconds that one byte saves the job, and its tenant with the tenant's limit.
    /// Jobs may measure different savings, but the same rows serve all of them. A job without a tenant belongs to a
    /// tenant without a limit.
    pub(crate) fn add_job(&mut self, saved_s_per_byte: f64, is_named: bool, tenant: Option<&(Tenant, u64)>) {
        self.saved_s_per_byte = saved_s_per_byte.max(self.saved_s_per_byte);
        self.is_named |= is_named;
        let (tenant, limit_bytes) = tenant.cloned().unwrap_or_else(|| (Tenant::from(""), u64::MAX));
        self.tenants.insert(tenant, limit_bytes);
    }
}

/// A row's id in its dataset, and its bytes.
pub(crate) type CachedRow = (u64, Bytes);
