//! The requests of workers to object stores, and the budgets that the leader divides among workers.

use sha2::{Digest, Sha256};

use crate::ids::JobId;

/// The reports of one worker about one store. Counters start at 0 when the worker starts.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreReport {
    /// Identifies the endpoint, the bucket and the identity of the credentials. A hash, so that it contains none of them.
    pub key: String,
    /// The store for messages to users, such as `s3://bucket`.
    pub name: String,
    /// Requests that the store answered, including errors that are not rejections because of load.
    pub accepted: u64,
    /// Requests that the store rejected because of its load.
    pub rejected: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Total time of the accepted requests, from the request to the last byte, in nanoseconds.
    pub latency_ns: u64,
    /// Total time in nanoseconds that the accepted requests would have taken if each had been as fast as the fastest request
    /// of a similar size.
    pub base_latency_ns: u64,
    /// Total time in nanoseconds in which a pause after a rejection stopped requests.
    pub paused_ns: u64,
    /// Nanoseconds from the worker's start to the measurement of these numbers.
    pub elapsed_ns: u64,
    /// Gauge: the requests per second that the worker allows itself; 0 without a limit.
    pub requests_per_s: f64,
    /// The jobs that have read the store.
    pub jobs: Vec<StoreJobReport>,
}

/// The requests of one job to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreJobReport {
    /// The job; 0 for requests without a job, such as listings.
    pub job: JobId,
    /// Requests of the job that the worker has sent, including rejected ones.
    pub requests: u64,
    /// Gauge: requests that wait for the worker's part of the budget.
    pub waiting: u32,
}

/// The part of a store's budget that one worker may use. The worker keeps it while it has no leader.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoreShare {
    /// The store: see [`StoreReport::key`].
    pub key: String,
    /// Requests per second; 0 without a limit.
    pub requests_per_s: f64,
    /// Requests in flight; 0 without a limit.
    pub in_flight: u32,
    /// Bytes in flight; 0 without a limit. One request is always allowed.
    pub bytes_in_flight: u64,
    /// The weight of each job in the worker's queue. A job without an entry has the smallest weight.
    pub jobs: Vec<(JobId, f64)>,
}

/// Returns a key for a store with these properties: a part of their SHA-256 hash.
pub fn store_key(properties: &[&str]) -> String {
    let mut hash = Sha256::new();
    for property in properties {
        hash.update((property.len() as u64).to_le_bytes());
        hash.update(property.as_bytes());
    }
    hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
