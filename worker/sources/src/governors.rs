//! The governors of all stores of a worker, by endpoint, bucket and identity of the credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use feedline_data::messages::{StoreReport, StoreShare, store_key};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::access::StoreOptions;
use crate::governor::StoreGovernor;
use crate::throttling::StoreKind;

/// Options that determine the endpoint of a store or the account that pays for its requests. None of them is a secret.
const IDENTITY_OPTIONS: [&str; 26] = [
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "endpoint",
    "endpoint_url",
    "aws_access_key_id",
    "access_key_id",
    "aws_role_arn",
    "role_arn",
    "aws_profile",
    "aws_default_profile",
    "azure_storage_account_name",
    "account_name",
    "azure_storage_client_id",
    "azure_client_id",
    "client_id",
    "azure_storage_endpoint",
    "azure_endpoint",
    "google_base_url",
    "base_url",
    "google_service_account_path",
    "service_account",
    "service_account_path",
    "google_service_account",
    "google_application_credentials",
    "hf_endpoint",
];
/// A store that was not used for this time is not reported. The leader then forgets it.
const REPORTED_FOR: Duration = Duration::from_secs(120);
/// Maximum number of reported stores. Stores that are limited are reported first.
const MAX_REPORTS: usize = 256;

/// The governors of the stores that a worker has opened.
#[derive(Debug)]
pub struct WorkerGovernors {
    started: Instant,
    by_key: Mutex<BTreeMap<String, Arc<StoreGovernor>>>,
    /// The parts of the last plan for stores that this worker has not opened.
    shares: Mutex<BTreeMap<String, StoreShare>>,
    rejected: Arc<Notify>,
}

impl Default for WorkerGovernors {
    fn default() -> Self {
        let (by_key, shares) = (Mutex::default(), Mutex::default());
        Self { started: Instant::now(), by_key, shares, rejected: Arc::default() }
    }
}

/// Returns the key of a store: a hash of the endpoint, the bucket, and the name and the account of the credentials.
pub(crate) fn store_identity(root: &str, credentials: Option<&str>, options: &StoreOptions) -> String {
    // Both schemes name the same bucket.
    let root = root.replace("s3a://", "s3://");
    let mut parts = vec![root.as_str(), credentials.unwrap_or_default()];
    for (key, value) in options.iter() {
        if IDENTITY_OPTIONS.contains(&key) {
            parts.extend([key, value]);
        }
    }
    store_key(&parts)
}

impl WorkerGovernors {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<StoreGovernor>>> {
        self.by_key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn open(&self, key: String, name: &str, kind: StoreKind) -> Arc<StoreGovernor> {
        let (started, rejected) = (self.started, Arc::clone(&self.rejected));
        let new = || Arc::new(StoreGovernor::new(key.clone(), name.to_owned(), kind, started, rejected));
        let governor = Arc::clone(self.lock().entry(key.clone()).or_insert_with(new));
        if let Some(share) = self.lock_shares().remove(&key) {
            governor.set_share(&share);
        }
        governor
    }

    fn lock_shares(&self) -> MutexGuard<'_, BTreeMap<String, StoreShare>> {
        self.shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters and gauges of the stores that are in use and have answered requests, or for which requests wait.
    /// Limited stores are first.
    pub fn reports(&self) -> Vec<StoreReport> {
        let mut governors: Vec<_> =
            self.lock().values().filter(|governor| governor.is_used(REPORTED_FOR)).cloned().collect();
        governors.sort_by_key(|governor| !governor.is_limited());
        let reports = governors.iter().map(|governor| governor.report());
        let is_known = |report: &StoreReport| {
            report.accepted + report.rejected > 0 || report.jobs.iter().any(|job| job.waiting > 0)
        };
        reports.filter(is_known).take(MAX_REPORTS).collect()
    }

    /// Sets the worker's parts of the budgets of stores. Stores without a part keep their last one.
    pub fn set_shares(&self, shares: &[StoreShare]) {
        let (mut opened, mut others) = (Vec::new(), BTreeMap::new());
        {
            let governors = self.lock();
            for share in shares {
                match governors.get(&share.key) {
                    Some(governor) => opened.push((Arc::clone(governor), share)),
                    None => drop(others.insert(share.key.clone(), share.clone())),
                }
            }
        }
        *self.lock_shares() = others;
        for (governor, share) in opened {
            governor.set_share(share);
        }
    }

    /// Waits until a store rejects a request because of its load.
    pub async fn rejected(&self) {
        self.rejected.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use futures::FutureExt;

    use super::*;
    use crate::governor::Demand;

    fn options(pairs: &[(&str, &str)]) -> StoreOptions {
        StoreOptions::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    async fn request(governor: &Arc<StoreGovernor>) {
        governor.acquire(Demand { job: JobId(1), bytes: 1, is_repeated: false }).await.succeed(1);
    }

    #[test]
    fn accounts_and_endpoints_have_different_keys() {
        let key = |root: &str, pairs: &[(&str, &str)]| store_identity(root, None, &options(pairs));
        let plain = key("s3://b", &[]);
        assert_eq!(plain, key("s3a://b", &[("aws_region", "x"), ("aws_secret_access_key", "HUSH")]));
        let others = ["aws_profile", "aws_access_key_id", "azure_endpoint", "google_base_url", "hf_endpoint"];
        for option in others {
            assert_ne!(plain, key("s3://b", &[(option, "x")]), "{option}");
        }
        assert_ne!(plain, key("s3://c", &[]));
    }

    #[tokio::test(start_paused = true)]
    async fn stores_that_are_not_used_are_not_reported() {
        let governors = WorkerGovernors::default();
        let open = |key: &str| governors.open(key.to_owned(), "s3://b", StoreKind::S3);
        let (idle, used, unanswered) = (open("idle"), open("used"), open("unanswered"));
        request(&idle).await;
        tokio::time::advance(Duration::from_secs(121)).await;
        request(&used).await;
        let keys: Vec<String> = governors.reports().into_iter().map(|report| report.key).collect();
        assert_eq!(keys, ["used"], "{unanswered:?}");
        request(&idle).await;
        assert_eq!(governors.reports().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn limited_stores_are_reported_first() {
        let governors = WorkerGovernors::default();
        for number in 0..300 {
            request(&governors.open(format!("{number:03}"), "s3://b", StoreKind::S3)).await;
        }
        governors.set_shares(&[StoreShare {
            key: "299".to_owned(),
            requests_per_s: 9.0,
            ..StoreShare::default()
        }]);
        let reports = governors.reports();
        assert_eq!((reports.len(), reports[0].key.as_str()), (256, "299"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_is_opened_later_has_the_part_of_the_last_plan() {
        let governors = WorkerGovernors::default();
        governors.set_shares(&[StoreShare {
            key: "a".to_owned(),
            requests_per_s: 9.0,
            ..StoreShare::default()
        }]);
        assert!(governors.open("a".to_owned(), "s3://a", StoreKind::S3).is_limited());
        assert!(!governors.open("b".to_owned(), "s3://b", StoreKind::S3).is_limited());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_requests_to_a_store_with_a_tiny_part_are_sent_and_reported() {
        let governors = WorkerGovernors::default();
        governors.set_shares(&[StoreShare {
            key: "a".to_owned(),
            requests_per_s: 0.003,
            ..StoreShare::default()
        }]);
        let governor = governors.open("a".to_owned(), "s3://a", StoreKind::S3);
        let demand = Demand { job: JobId(1), bytes: 1, is_repeated: false };
        let opened = Instant::now();
        let first = governor.acquire(demand).await;
        assert!(opened.elapsed() <= Duration::from_millis(1100), "{:?}", opened.elapsed());
        assert!(governors.reports().is_empty(), "the store has not answered, and no request waits");
        let mut second = Box::pin(governor.acquire(demand));
        assert!((&mut second).now_or_never().is_none());
        let reports = governors.reports();
        assert_eq!((reports.len(), reports[0].accepted, reports[0].jobs[0].waiting), (1, 0, 1));
        first.succeed(1);
    }
}
