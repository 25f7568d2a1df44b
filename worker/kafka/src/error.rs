//! The error of a Kafka operation.

/// An error: one sentence without the name of the cluster, which the caller adds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct KafkaError {
    /// The cause and the fix. Contains no secrets.
    pub message: String,
    /// Whether a retry may succeed.
    pub is_retryable: bool,
    /// Whether the cause is that a topic or partition does not exist. A broker that restarts does not know its topics at first.
    pub(crate) is_unknown_topic: bool,
}

impl KafkaError {
    pub(crate) fn permanent(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_retryable: false, is_unknown_topic: false }
    }

    pub(crate) fn unknown_topic(message: impl Into<String>) -> Self {
        Self { is_unknown_topic: true, ..Self::permanent(message) }
    }

    pub(crate) fn retryable(message: impl Into<String>) -> Self {
        Self { is_retryable: true, ..Self::permanent(message) }
    }
}
