//! How a command ends: its exit status and the one sentence that says why.

use std::fmt;
use std::io;

use anyhow::Error;
use feedline_client::ClientError;
use feedline_data::messages::{ServiceError, ServiceErrorKind};

/// A command ended without having done all that it was asked for.
#[derive(Debug)]
pub enum Failure {
    /// It could never have worked as it was asked for: exit status 2.
    WrongUse(Error),
    /// It was tried and failed: exit status 1.
    Failed(Error),
    /// The user ended it: exit status 130.
    Interrupted(String),
}

impl Failure {
    /// Wrong use, with this sentence.
    pub(crate) fn wrong_use(sentence: impl fmt::Display) -> Self {
        Self::WrongUse(Error::msg(sentence.to_string()))
    }

    /// A failure with this sentence.
    pub(crate) fn failed(sentence: impl fmt::Display) -> Self {
        Self::Failed(Error::msg(sentence.to_string()))
    }

    /// What the client said, where it ended the command.
    pub fn client_error(&self) -> Option<&ClientError> {
        match self {
            Self::WrongUse(error) | Self::Failed(error) => error.downcast_ref(),
            Self::Interrupted(_) => None,
        }
    }

    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::WrongUse(_) => 2,
            Self::Interrupted(_) => 130,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongUse(error) | Self::Failed(error) => write!(f, "{error:#}"),
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
    fn from(refusal: ServiceError) -> Self {
        match refusal.kind {
            ServiceErrorKind::Invalid | ServiceErrorKind::Denied | ServiceErrorKind::NotFound => {
                Self::wrong_use(refusal)
            }
            ServiceErrorKind::Superseded | ServiceErrorKind::Unavailable | ServiceErrorKind::Busy => {
                Self::failed(refusal)
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Setting(_) | ClientError::Refused(_) => Self::WrongUse(Error::new(error)),
            _ => Self::Failed(Error::new(error)),
        }
    }
}

/// What the system said, without its error number.
pub(crate) fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_lowercase(),
        None => text,
    }
}
