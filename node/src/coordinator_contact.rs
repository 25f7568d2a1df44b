//! A coordinator as a worker of this process sees it, watched: whether it has answered lately.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use feedline_data::messages::ServiceError;
use feedline_proto::{CoordinatorReply, CoordinatorRequest, CoordinatorService};

/// A coordinator answers every half second; after this long it is gone.
const PATIENCE: Duration = Duration::from_secs(3);

/// Answers of a coordinator to one worker.
#[derive(Debug, Default)]
pub(crate) struct CoordinatorContact {
    answers: Mutex<(u64, Option<Instant>)>,
    /// What it said last instead of an answer.
    refusal: Mutex<String>,
}

impl CoordinatorContact {
    /// Reports that were answered so far.
    pub(crate) fn answers(&self) -> u64 {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether the coordinator has answered lately.
    pub(crate) fn is_held(&self) -> bool {
        let last = self.answers.lock().unwrap_or_else(PoisonError::into_inner).1;
        last.is_some_and(|last| last.elapsed() < PATIENCE)
    }

    /// Why it has not answered: what was said last instead.
    pub(crate) fn reason(&self) -> String {
        let said = self.refusal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if said.is_empty() { "it is silent".to_owned() } else { said }
    }

    fn note(&self, refusal: &ServiceError) {
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal.to_string();
    }

    fn count(&self) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        *answers = (answers.0 + 1, Some(Instant::now()));
    }
}

/// The coordinator, counting its answers to worker reports.
pub(crate) struct CountingCoordinator {
    /// The coordinator.
    pub(crate) coordinator: Arc<dyn CoordinatorService>,
    /// Where they are counted.
    pub(crate) contact: Arc<CoordinatorContact>,
}

#[async_trait]
impl CoordinatorService for CountingCoordinator {
    async fn call(&self, request: CoordinatorRequest) -> Result<CoordinatorReply, ServiceError> {
        let is_report = matches!(request, CoordinatorRequest::SyncWorker { .. });
        let reply = self.coordinator.call(request).await;
        match &reply {
            Ok(_) if is_report => self.contact.count(),
            Err(refusal) if is_report => self.contact.note(refusal),
            _ => {}
        }
        reply
    }
}
