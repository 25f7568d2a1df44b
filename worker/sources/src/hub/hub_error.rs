//! Errors of the Hugging Face Hub.

use crate::causes;

/// The name of the store in errors.
pub(super) const STORE: &str = "Hugging Face Hub";

/// An error of the Hub, as part of a sentence with the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HubError {
    pub(crate) message: String,
    /// Whether a retry may succeed.
    pub(crate) retryable: bool,
}

impl HubError {
    pub(super) fn permanent(message: impl Into<String>) -> object_store::Error {
        Self { message: message.into(), retryable: false }.into()
    }
}

impl From<HubError> for object_store::Error {
    fn from(error: HubError) -> Self {
        Self::Generic { store: STORE, source: Box::new(error) }
    }
}

/// Finds an error of the Hub among the causes of an error.
pub(crate) fn find_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a HubError> {
    causes::find(error)
}
