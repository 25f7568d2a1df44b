//! Unanswered requests with the channels for their replies.

use std::collections::HashMap;

use feedline_cluster::{Reply, RequestId};
use feedline_data::messages::ServiceError;
use feedline_raft::Members;
use tokio::sync::oneshot;

/// The result of a membership change.
pub(super) type ChangeResult = Result<Members, ServiceError>;

/// Channels by request number. Failed sends are ignored: the client has stopped waiting.
#[derive(Default)]
pub(super) struct PendingReplies {
    last: RequestId,
    requests: HashMap<RequestId, oneshot::Sender<Reply>>,
    changes: HashMap<RequestId, oneshot::Sender<ChangeResult>>,
}

impl PendingReplies {
    /// Adds a request and returns its number.
    pub(super) fn add(&mut self, reply: oneshot::Sender<Reply>) -> RequestId {
        self.last += 1;
        self.requests.insert(self.last, reply);
        self.last
    }

    /// Adds a membership change and returns its number.
    pub(super) fn add_change(&mut self, reply: oneshot::Sender<ChangeResult>) -> RequestId {
        self.last += 1;
        self.changes.insert(self.last, reply);
        self.last
    }

    /// Returns the number of unanswered requests, without membership changes.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(super) fn answer(&mut self, request: RequestId, reply: Reply) {
        if let Some(waiting) = self.requests.remove(&request) {
            let _ = waiting.send(reply);
        }
    }

    pub(super) fn answer_change(&mut self, request: RequestId, result: ChangeResult) {
        if let Some(waiting) = self.changes.remove(&request) {
            let _ = waiting.send(result);
        }
    }

    pub(super) fn refuse_all(&mut self, refusal: &ServiceError) {
        for (_, waiting) in self.requests.drain() {
            let _ = waiting.send(Reply::Rejected(refusal.clone()));
        }
        for (_, waiting) in self.changes.drain() {
            let _ = waiting.send(Err(refusal.clone()));
        }
    }
}
