//! The exceptions of the package. There is one class for each way that a caller can react.

use feedline_client::ClientError;
use feedline_node::Failure;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    feedline,
    FeedlineError,
    PyException,
    "Base class of Feedline's runtime errors. The message contains the fix."
);
create_exception!(
    feedline,
    WrongUse,
    PyValueError,
    "An argument, a pipeline or a call is invalid. The message contains the fix."
);
create_exception!(
    feedline,
    JobFailed,
    FeedlineError,
    "The job failed, for example because a row cannot be read, or was cancelled."
);
create_exception!(
    feedline,
    CoordinatorLost,
    FeedlineError,
    "No coordinator is available. A retry may succeed."
);
create_exception!(feedline, Superseded, FeedlineError, "Another process has taken over this rank.");

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("FeedlineError", py.get_type::<FeedlineError>())?;
    module.add("WrongUse", py.get_type::<WrongUse>())?;
    module.add("JobFailed", py.get_type::<JobFailed>())?;
    module.add("CoordinatorLost", py.get_type::<CoordinatorLost>())?;
    module.add("Superseded", py.get_type::<Superseded>())
}

/// Converts a client error to a Python exception.
pub(crate) fn from_client(error: &ClientError) -> PyErr {
    let message = error.to_string();
    match error {
        ClientError::Setting(_) | ClientError::Refused(_) | ClientError::UnknownJob(_) => {
            WrongUse::new_err(message)
        }
        ClientError::JobFailed(_) | ClientError::Cancelled | ClientError::Damaged { .. } => {
            JobFailed::new_err(message)
        }
        ClientError::Unreachable(_)
        | ClientError::CoordinatorLost { .. }
        | ClientError::VersionMismatch { .. }
        | ClientError::Busy { .. } => CoordinatorLost::new_err(message),
        ClientError::Superseded(_) => Superseded::new_err(message),
        ClientError::Closed => FeedlineError::new_err(message),
    }
}

/// Converts an error of the embedded service to a Python exception.
pub(crate) fn from_failure(failure: &Failure) -> PyErr {
    if let Some(error) = failure.client_error() {
        return from_client(error);
    }
    match failure {
        Failure::InvalidUsage(_) => WrongUse::new_err(failure.to_string()),
        Failure::Failed(_) | Failure::Interrupted(_) => FeedlineError::new_err(failure.to_string()),
    }
}
