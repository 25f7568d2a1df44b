//! The failure of a command: its exit status, and the message that explains it.

use std::fmt;
use std::io;

use anyhow::Error;
use feedline_client::ClientError;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The user's request is invalid: exit status 2.
    InvalidUsage(Error),
    /// The request is valid, but an operation failed: exit status 1.
    Failed(Error),
    /// The user interrupted the command: exit status 130.
    Interrupted(String),
}

impl Failure {
    /// Creates a failure with exit status 2 and this message.
    pub fn invalid_usage(sentence: impl fmt::Display) -> Self {
        Self::InvalidUsage(Error::msg(sentence.to_string()))
    }

    /// Creates a failure with exit status 1 and this message.
    pub fn failed(sentence: impl fmt::Display) -> Self {
        Self::Failed(Error::msg(sentence.to_string()))
    }

    /// Returns the client error that caused this failure, if any.
    pub fn client_error(&self) -> Option<&ClientError> {
        match self {
            Self::InvalidUsage(error) | Self::Failed(error) => error.downcast_ref(),
            Self::Interrupted(_) => None,
        }
    }

    /// Returns the exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::InvalidUsage(_) => 2,
            Self::Interrupted(_) => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidUsage(error) | Self::Failed(error) => write!(f, "{error:#}"),
            Self::Interrupted(sentence) => f.write_str(sentence),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl From<ServiceError> for Failure {
    fn from(error: ServiceError) -> Self {
        match error.kind {
            ServiceErrorKind::Invalid | ServiceErrorKind::Denied | ServiceErrorKind::NotFound => {
                Self::invalid_usage(error)
            }
            ServiceErrorKind::Superseded | ServiceErrorKind::Unavailable | ServiceErrorKind::Busy => {
                Self::failed(error)
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Setting(_) | ClientError::Refused(_) => Self::InvalidUsage(Error::new(error)),
            _ => Self::Failed(Error::new(error)),
        }
    }
}

/// Returns the operating system's message in lower case, without its error number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
