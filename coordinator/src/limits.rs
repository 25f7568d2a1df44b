//! What may wait before further requests are refused. How many jobs, consumers and workers there may be is the state
//! machine's: `cluster::Limits`.

use feedline_data::messages::ServiceError;
use serde::{Deserialize, Serialize};

/// A log that is behind has caught up with this much in about so long.
const LOG_RETRY_MS: u64 = 1_000;
/// Answers wait for the log, or for another second.
const ANSWER_RETRY_MS: u64 = 500;

/// What may wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestLimits {
    /// Requests that were taken and are not answered: each worker and each consumer has one or two that are held until there
    /// is something to say. With more, only reports are taken. 262,144 by default.
    pub unanswered: usize,
    /// Entries of the log that a majority does not keep yet; with more, no job is opened. 4,096 by default.
    pub pending_entries: u64,
    /// Bytes of the log, which is whole in memory; with more, no job is opened. 1 GiB by default.
    pub log_bytes: u64,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self { unanswered: 262_144, pending_entries: 4_096, log_bytes: 1 << 30 }
    }
}

impl RequestLimits {
    /// The refusal where so many requests are not answered.
    pub(crate) fn too_many(unanswered: usize) -> ServiceError {
        let message = format!("the coordinator has {unanswered} requests to answer; ask again later");
        ServiceError::busy(message, ANSWER_RETRY_MS)
    }

    /// Why a request is not taken, of so many unanswered ones; of one that opens a job, with the entries that wait and the bytes
    /// of the log.
    pub(crate) fn check(&self, unanswered: usize, opens: Option<(u64, u64)>) -> Option<ServiceError> {
        if unanswered >= self.unanswered {
            return Some(Self::too_many(unanswered));
        }
        let (entries, log_bytes) = opens?;
        if entries >= self.pending_entries {
            let message = format!(
                "the coordinator's log is {entries} entries behind, so no job is opened; ask again later, and look at the disks of the coordinators if it lasts"
            );
            return Some(ServiceError::busy(message, LOG_RETRY_MS));
        }
        if log_bytes >= self.log_bytes {
            let message = format!(
                "the coordinator's log has {log_bytes} bytes, so no further job is opened; wait until jobs have ended, or cancel some"
            );
            return Some(ServiceError::busy(message, LOG_RETRY_MS));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_told_with_when_to_come_back() {
        let limits = RequestLimits { unanswered: 10, pending_entries: 5, log_bytes: 1_000 };
        assert_eq!(limits.check(9, Some((4, 999))), None);
        assert_eq!(limits.check(9, None), None);
        let refused = |unanswered, opens| {
            let refusal = limits.check(unanswered, opens).unwrap();
            (refusal.message, refusal.retry_after_ms)
        };
        assert_eq!(
            refused(10, None),
            ("the coordinator has 10 requests to answer; ask again later".to_owned(), Some(500))
        );
        assert!(refused(9, Some((5, 0))).0.starts_with("the coordinator's log is 5 entries behind"));
        assert!(refused(9, Some((0, 1_000))).0.starts_with("the coordinator's log has 1000 bytes"));
    }
}
