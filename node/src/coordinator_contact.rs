//! Tracks whether the coordinator answers the reports of a worker in this process.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_data::messages::ServiceError;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

/// Time without an answer after which a coordinator is considered lost. A coordinator normally answers every half second.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// Tracks the answers of a coordinator to the reports of one worker.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorContact {
    /// Number of answers, and the time of the last answer.
    answers: Mutex<(u64, Option<Instant>)>,
    /// The last error.
    error: Mutex<String>,
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
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if error.is_empty() { "no connection was established".to_owned() } else { error }
    }

    fn record_error(&self, error: &ServiceError) {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner) = error.to_string();
    }

    fn record_answer(&self) {
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
