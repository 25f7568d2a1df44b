//! The package's exceptions: one base, and one for each thing that a caller may want to do about it.

use feedline_client::ClientError;
use feedline_node::Failure;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(
    feedline,
    FeedlineError,
    PyException,
    "Anything that Feedline could not do: one sentence with the fix."
);
create_exception!(
    feedline,
    WrongUse,
    PyValueError,
    "It could never have worked as it was asked for; the sentence says what to change."
);
create_exception!(
    feedline,
    JobFailed,
    FeedlineError,
    "The job failed, such as by a row that cannot be read, or was cancelled."
);
create_exception!(
    feedline,
    CoordinatorLost,
    FeedlineError,
    "No coordinator answers; the same again may work later."
);
create_exception!(feedline, Superseded, FeedlineError, "Another process took this rank's place.");

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("FeedlineError", py.get_type::<FeedlineError>())?;
    module.add("WrongUse", py.get_type::<WrongUse>())?;
    module.add("JobFailed", py.get_type::<JobFailed>())?;
    module.add("CoordinatorLost", py.get_type::<CoordinatorLost>())?;
    module.add("Superseded", py.get_type::<Superseded>())
}

/// What the client said, as an exception.
pub(crate) fn of_client(error: &ClientError) -> PyErr {
    let message = error.to_string();
    match error {
        ClientError::Setting(_) | ClientError::Refused(_) | ClientError::UnknownJob(_) => {
            WrongUse::new_err(message)
        }
        ClientError::JobFailed(_) | ClientError::Cancelled | ClientError::Damaged { .. } => {
            JobFailed::new_err(message)
        }
        ClientError::Unreachable(_) | ClientError::CoordinatorLost { .. } | ClientError::Busy { .. } => {
            CoordinatorLost::new_err(message)
        }
        ClientError::Superseded(_) => Superseded::new_err(message),
        ClientError::Closed => FeedlineError::new_err(message),
    }
}

/// What the wiring said, as an exception.
pub(crate) fn of_failure(failure: &Failure) -> PyErr {
    if let Some(error) = failure.client_error() {
        return of_client(error);
    }
    match failure {
        Failure::WrongUse(_) => WrongUse::new_err(failure.to_string()),
        Failure::Failed(_) | Failure::Interrupted(_) => FeedlineError::new_err(failure.to_string()),
    }
}
