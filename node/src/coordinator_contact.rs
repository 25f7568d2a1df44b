//! Tracks whether the coordinator answers the reports of a worker in this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_common::mismatch_timer::MismatchTimer;
use feedline_data::messages::{ServiceError, ServiceErrorKind};
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

/// Time without an answer after which a coordinator is considered lost. A coordinator normally answers every half second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Tracks the answers of a coordinator to the reports of one worker.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorContact {
    /// Number of answers, and the time of the last answer.
    answers: Mutex<(u64, Option<Instant>)>,
    /// The last error.
    error: Mutex<Option<ServiceError>>,
    /// The time for which the coordinators have rejected the protocol version of the worker.
    mismatch: Mutex<MismatchTimer>,
}

impl CoordinatorContact {
    /// Returns the number of answered reports.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the coordinator has answered recently.
    pub(crate) fn is_connected(&self) -> bool {
        let last = self.answers.lock().unwrap_or_else(PoisonError::into_inner).1;
        last.is_some_and(|last| last.elapsed() < ANSWER_TIMEOUT)
    }

    /// Returns the error message of the last failed report.
    pub(crate) fn last_error(&self) -> String {
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        error.as_ref().map_or_else(|| "no connection was established".to_owned(), ToString::to_string)
    }

    /// Returns the last error if the coordinators have rejected the protocol version of the worker for this time.
    pub(crate) fn version_mismatch(&self, timeout: Duration) -> Option<ServiceError> {
        let lasted = self.mismatch.lock().unwrap_or_else(PoisonError::into_inner).lasted();
        lasted.filter(|lasted| *lasted >= timeout)?;
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        error.filter(|error| error.is_version_mismatch)
    }

    fn record_error(&self, error: &ServiceError) {
        let mut mismatch = self.mismatch.lock().unwrap_or_else(PoisonError::into_inner);
        if error.is_version_mismatch {
            mismatch.record(Instant::now());
        } else if error.kind != ServiceErrorKind::Unavailable {
            // A coordinator with the version of the worker has answered.
            mismatch.reset();
        }
        drop(mismatch);
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
    }

    fn record_answer(&self) {
        self.mismatch.lock().unwrap_or_else(PoisonError::into_inner).reset();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers = (answers.0 + 1, Some(Instant::now()));
    }
}

/// Wraps a coordinator service, and records the outcome of each worker report.
pub(crate) struct ContactRecorder {
    /// The wrapped service.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    /// The recorded outcomes.
    pub(crate) contact: Arc<CoordinatorContact>,
}

#[async_trait]
impl CoordinatorService for ContactRecorder {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let is_report = matches!(request, CoordinatorRequest::SyncWorker { .. });
        let reply = self.coordinator.call(request).await;
        match &reply {
            Ok(_) if is_report => self.contact.record_answer(),
            Err(error) if is_report => self.contact.record_error(error),
            _ => {}
        }
        reply
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_continuous_mismatch_of_versions_is_reported() {
        let contact = CoordinatorContact::default();
        let mismatch = ServiceError::version_mismatch("versions 3 and 4");
        assert_eq!(contact.version_mismatch(Duration::ZERO), None);
        contact.record_error(&mismatch);
        assert_eq!(contact.version_mismatch(Duration::ZERO), Some(mismatch.clone()));
        assert_eq!(contact.version_mismatch(Duration::from_secs(600)), None);
        assert_eq!(contact.last_error(), "versions 3 and 4");
        contact.record_error(&ServiceError::new(ServiceErrorKind::Unavailable, "refused"));
        assert_eq!(contact.version_mismatch(Duration::ZERO), None, "the coordinator may restart");
        contact.record_error(&mismatch);
        assert_eq!(contact.version_mismatch(Duration::ZERO), Some(mismatch.clone()));
        contact.record_answer();
        assert_eq!(contact.version_mismatch(Duration::ZERO), None);
        contact.record_error(&mismatch);
        contact.record_error(&ServiceError::busy("full", 200));
        assert_eq!(
            contact.mismatch.lock().unwrap().lasted(),
            None,
            "a busy coordinator has the right version"
        );
    }
}
