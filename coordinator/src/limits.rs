//! Limits on unanswered requests and on the log. `feedline_cluster::ClusterLimits` limits jobs, consumers and workers.

use feedline_data::messages::ServiceError;
use serde::{Deserialize, Serialize};

/// Retry delay in milliseconds when the log is behind.
const LOG_RETRY_DELAY_MS: u64 = 1_000;
/// Retry delay in milliseconds when there are too many unanswered requests.
const UNANSWERED_RETRY_DELAY_MS: u64 = 500;

/// Limits on unanswered requests and on the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestLimits {
    /// Maximum number of unanswered requests. Each worker and consumer has one or two long polls. Beyond the limit, only
    /// reports are accepted. 262,144 by default.
    pub unanswered: usize,
    /// Maximum number of uncommitted log entries. Beyond the limit, no job is opened. 4,096 by default.
    pub pending_entries: u64,
    /// Maximum size of the log in bytes. The log is also in memory. Beyond the limit, no job is opened. 1 GiB by default.
    pub log_bytes: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { unanswered: 262_144, pending_entries: 4_096, log_bytes: 1 << 30 }
    }
}

impl RequestLimits {
    /// Returns the error for too many unanswered requests.
    pub(crate) fn too_many(unanswered: usize) -> ServiceError {
        let message = format!("the coordinator has too many pending requests ({unanswered}); retry later");
        ServiceError::busy(message, UNANSWERED_RETRY_DELAY_MS)
    }

    /// Returns an error if the request exceeds the limits. For a request that opens a job, `opens` contains the number of
    /// uncommitted entries and the size of the log.
    pub(crate) fn check(&self, unanswered: usize, opens: Option<(u64, u64)>) -> Option<ServiceError> {
        if unanswered >= self.unanswered {
            return Some(Self::too_many(unanswered));
        }
        let (entries, log_bytes) = opens?;
        if entries >= self.pending_entries {
            let message = format!(
                "the coordinator's log has {entries} uncommitted entries, so it rejects new jobs; retry later, and if the error persists, check the disks of the coordinators"
            );
            return Some(ServiceError::busy(message, LOG_RETRY_DELAY_MS));
        }
        if log_bytes >= self.log_bytes {
            let message = format!(
                "the coordinator's log is {log_bytes} bytes long, so it rejects new jobs; retry after jobs have ended, or cancel jobs"
            );
            return Some(ServiceError::busy(message, LOG_RETRY_DELAY_MS));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rejection_names_the_limit_and_the_time_to_retry() {
        let limits = RequestLimits { unanswered: 10, pending_entries: 5, log_bytes: 1_000 };
        assert_eq!(limits.check(9, Some((4, 999))), None);
        assert_eq!(limits.check(9, None), None);
        let refused = |unanswered, opens| {
            let refusal = limits.check(unanswered, opens).unwrap();
            (refusal.message, refusal.retry_after_ms)
        };
        assert_eq!(
            refused(10, None),
            ("the coordinator has too many pending requests (10); retry later".to_owned(), Some(500))
        );
        assert!(refused(9, Some((5, 0))).0.starts_with("the coordinator's log has 5 uncommitted entries"));
        assert!(refused(9, Some((0, 1_000))).0.starts_with("the coordinator's log is 1000 bytes long"));
    }
}
