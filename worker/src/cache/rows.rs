//! Cached rows: what they are stored under, and what they are worth.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;

/// Fingerprint of the data and the operators that made rows.
pub(crate) type Prefix = u128;

/// Name of a tenant.
pub(crate) type Tenant = Arc<str>;

/// What the rows of each prefix are worth to a tier, for the prefixes of the jobs that are worked on.
pub(crate) type CacheValues = BTreeMap<Prefix, CacheValue>;

/// What rows are worth to a tier.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct CacheValue {
    /// What a byte of them saves each time it is found, in seconds; 0 as long as it is not known.
    pub(crate) saved_s_per_byte: f64,
    /// A pipeline's file names the cache: rows that plans cache for the same tenant do not evict its rows.
    pub(crate) is_named: bool,
    /// Whose jobs they are kept for, and the bytes that may be kept for each of these on this worker.
    pub(crate) tenants: BTreeMap<Tenant, u64>,
}

impl CacheValue {
    /// Counts in a job that has these rows kept, what a byte saves it, and whose it is with what may be kept for those. Jobs may see
    /// it differently; what is kept serves all of them. One that is nobody's is of a tenant without a limit.
    pub(crate) fn add_job(&mut self, saved_s_per_byte: f64, is_named: bool, tenant: Option<&(Tenant, u64)>) {
        self.saved_s_per_byte = saved_s_per_byte.max(self.saved_s_per_byte);
        self.is_named |= is_named;
        let (tenant, limit_bytes) = tenant.cloned().unwrap_or_else(|| (Tenant::from(""), u64::MAX));
        self.tenants.insert(tenant, limit_bytes);
    }
}

/// A row's id in its dataset, and its bytes.
pub(crate) type CachedRow = (u64, Bytes);
