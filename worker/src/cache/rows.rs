//! The keys and the value of cached rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

/// The fingerprint of the dataset and of the operators before a cache point.
pub(crate) type Prefix = u128;

/// The name of a tenant.
pub(crate) type Tenant = Arc<str>;

/// The tenant of a job, and the maximum number of bytes that this worker caches for the tenant.
#[derive(Debug, Clone)]
pub(crate) struct TenantCacheLimit {
    pub(crate) tenant: Tenant,
    pub(crate) bytes: u64,
}

/// The prefixes of the running jobs, with the values of their rows.
pub(crate) type CacheValues = BTreeMap<Prefix, CacheValue>;

/// The value of the cached rows of one prefix.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CacheValue {
    /// Seconds of computation that one cached byte saves per hit, or 0 if it is not measured yet.
    pub(crate) saved_s_per_byte: f64,
    /// Whether a pipeline has a `cache` operator at this cache point. Rows that only the planner caches for the same tenant do not
    /// evict rows of a `cache` operator.
    pub(crate) has_cache_operator: bool,
    /// The tenants of the jobs that use the rows, with the maximum number of bytes that this worker caches for each tenant.
    pub(crate) tenants: BTreeMap<Tenant, u64>,
}

impl CacheValue {
    /// Adds a job that uses the rows. The value is the largest saving that any job measures. Jobs without a tenant have no limit.
    pub(crate) fn add_job(
        &mut self,
        saved_s_per_byte: f64,
        has_cache_operator: bool,
        limit: Option<&TenantCacheLimit>,
    ) {
        self.saved_s_per_byte = saved_s_per_byte.max(self.saved_s_per_byte);
        self.has_cache_operator |= has_cache_operator;
        let no_limit = || TenantCacheLimit { tenant: Tenant::from(""), bytes: u64::MAX };
        let TenantCacheLimit { tenant, bytes } = limit.cloned().unwrap_or_else(no_limit);
        self.tenants.insert(tenant, bytes);
    }
}

/// A row's id in its dataset, and its bytes.
pub(crate) type CachedRow = (u64, Bytes);
