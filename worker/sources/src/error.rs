//! Errors while listing, indexing and reading datasets.

use feedline_data::manifest::ShardRef;

use crate::access_denied::find_access_denied;
use crate::causes;
use crate::guard;
use crate::hub::hub_error;
use crate::responses::ResponseError;

/// An error while listing, indexing or reading a dataset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The URL is invalid.
    #[error("cannot use `{url}` as a source: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// The reason and the fix.
        reason: String,
    },
    /// The read policy or the tenant's permissions reject the read.
    #[error("{message}")]
    Rejected {
        /// The URL, the reason and the fix.
        message: String,
    },
    /// The object does not exist.
    #[error("`{url}` does not exist: check the path, or add `/` at the end to read all objects below it")]
    NotFound {
        /// The URL.
        url: String,
    },
    /// No object matches a glob or prefix.
    #[error("`{url}` matches no objects: check the pattern and the data")]
    Empty {
        /// The URL.
        url: String,
    },
    /// The store rejected a request or failed.
    #[error("cannot read `{url}`: {reason}")]
    Store {
        /// The URL of the object or prefix.
        url: String,
        /// The store's error message.
        reason: String,
        /// Whether a retry may succeed.
        retryable: bool,
    },
    /// The store denied access, or the file may not be read.
    #[error("cannot read `{url}`: {reason}")]
    Denied {
        /// The URL of the object or prefix.
        url: String,
        /// The identity, the missing right and the fix.
        reason: String,
    },
    /// The object changed after indexing.
    #[error(
        "`{url}` changed after indexing; restore the object, or start the job again, which indexes the changed objects again"
    )]
    ShardChanged {
        /// The shard.
        url: String,
    },
    /// A web server describes the object without an entity tag and a modification time.
    #[error(
        "`{url}` has no validator, so a change during a job would not be detected: configure the web server to send an `ETag` or \
         `Last-Modified` header, or copy the object"
    )]
    NoValidator {
        /// The object.
        url: String,
    },
    /// The shard is corrupted or has a different format.
    #[error("`{url}` at byte {offset}: {reason}")]
    Corrupt {
        /// The shard.
        url: String,
        /// The byte offset in the shard.
        offset: u64,
        /// The reason and the fix.
        reason: String,
    },
    /// The shard uses an unsupported feature of its format, or exceeds a limit.
    #[error("`{url}` cannot be read: {reason}")]
    Unsupported {
        /// The shard.
        url: String,
        /// The reason and the fix.
        reason: String,
    },
    /// The shard does not contain a requested column.
    #[error("`{url}` has no column `{name}`, which the pipeline reads as `{column}`: {hint}")]
    MissingFeature {
        /// The shard.
        url: String,
        /// The name of the column in the pipeline.
        column: String,
        /// The name of the column or feature in the data.
        name: String,
        /// Suggested names.
        hint: String,
    },
    /// The requested rows are not valid for the block.
    #[error("cannot read a block of `{url}`: {reason}")]
    Request {
        /// The shard.
        url: String,
        /// The reason.
        reason: String,
    },
}

/// How to fix the error of a store that does not respond or responds with an error.
pub(crate) const STORE_FIX: &str = "; check the store and the network, and try again";

impl SourceError {
    /// The URL of the source, the object or the shard. `None` if only the message contains it.
    pub fn url(&self) -> Option<&str> {
        match self {
            Self::Rejected { .. } => None,
            Self::Url { url, .. }
            | Self::NotFound { url }
            | Self::Empty { url }
            | Self::Store { url, .. }
            | Self::Denied { url, .. }
            | Self::ShardChanged { url }
            | Self::NoValidator { url }
            | Self::Corrupt { url, .. }
            | Self::Unsupported { url, .. }
            | Self::MissingFeature { url, .. }
            | Self::Request { url, .. } => Some(url),
        }
    }

    /// Whether a retry may succeed.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store { retryable: true, .. })
    }

    pub(crate) fn from_store(url: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        let url = url.to_owned();
        if let Some(rejected) = guard::find_guard_error(&error) {
            return Self::Rejected { message: format!("reads of `{url}` are not allowed: {rejected}") };
        }
        if let Some(hub) = hub_error::find_error(&error) {
            return Self::Store { url, reason: hub.message.clone(), retryable: hub.retryable };
        }
        if let Some(violation) = causes::find::<ResponseError>(&error) {
            return Self::Store { url, reason: violation.to_string(), retryable: false };
        }
        match error {
            E::NotFound { .. } => Self::NotFound { url },
            // A listing fails if it contains a key that the client cannot represent, such as `a//b`.
            E::InvalidPath { source } => Self::Store {
                url,
                reason: format!("{source}: rename that object, or list other objects"),
                retryable: false,
            },
            E::Precondition { .. } => Self::ShardChanged { url },
            // Listings return a generic error for denied access.
            E::Generic { source, .. } if is_denied(source.as_ref()) => Self::denied(url, source.as_ref()),
            E::Generic { source, .. } if is_permission_error(source.as_ref()) => {
                Self::Denied { url, reason: local_denied_reason() }
            }
            E::Generic { source, .. } if find_access_denied(source.as_ref()).is_some() => {
                Self::Store { url, reason: source.to_string(), retryable: true }
            }
            E::Generic { store, source } => {
                // Errors from local files, such as missing permissions, are permanent.
                let retryable = store != "LocalFileSystem";
                let fix = if retryable { STORE_FIX } else { "" };
                Self::Store { url, reason: on_one_line(source.as_ref()) + fix, retryable }
            }
            E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
                Self::denied(url, source.as_ref())
            }
            other => Self::Store { url, reason: on_one_line(&other), retryable: false },
        }
    }

    fn denied(url: String, error: &(dyn std::error::Error + 'static)) -> Self {
        if let Some(denied) = find_access_denied(error) {
            return Self::Denied { url, reason: denied.to_string() };
        }
        let reason = format!("access denied ({}): check the credentials", on_one_line(error));
        Self::Denied { url, reason }
    }

    pub(crate) fn corrupt(shard: &ShardRef, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { url: shard.url.clone(), offset, reason: reason.into() }
    }

    pub(crate) fn unsupported(shard: &ShardRef, reason: impl Into<String>) -> Self {
        Self::Unsupported { url: shard.url.clone(), reason: reason.into() }
    }
}

fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let text = on_one_line(error);
    ["401 Unauthorized", "403 Forbidden"].iter().any(|status| text.contains(status))
}

/// Whether a local file or directory may not be read.
fn is_permission_error(error: &(dyn std::error::Error + 'static)) -> bool {
    causes::chain(error).any(|error| {
        let io: Option<&std::io::Error> = error.downcast_ref();
        io.is_some_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    })
}

/// The reason why this process may not read a local file.
pub(crate) fn local_denied_reason() -> String {
    format!(
        "access denied for user {}: the right to read the file, or to search its directory, is missing; change the permissions, or run as \
         another user",
        rustix::process::geteuid().as_raw()
    )
}

/// Formats an error and its causes on one line.
fn on_one_line(error: &(dyn std::error::Error + 'static)) -> String {
    without_body(&causes::describe(error)).replace('\n', " ")
}

/// Reduces the XML body of a store's response to its code and message. The rest of the body repeats the request with its
/// signature.
fn without_body(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error>")) else { return text.to_owned() };
    let (before, body) = text.split_at(start);
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim())
    };
    let elements: Vec<&str> = ["Code", "Message"].into_iter().filter_map(element).collect();
    format!("{before}{}", elements.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_errors_contain_only_code_and_message() {
        let answer = "status 403: <?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>Check your key.\
                      </Message><AWSAccessKeyId>HUSH</AWSAccessKeyId><SignatureProvided>HUSH</SignatureProvided></Error>";
        let error = object_store::Error::PermissionDenied { path: "x".to_owned(), source: answer.into() };
        let message = SourceError::from_store("s3://b/x", error).to_string();
        assert_eq!(
            message,
            "cannot read `s3://b/x`: access denied (status 403: SignatureDoesNotMatch: Check your key.): check the credentials"
        );
        assert_eq!(without_body("nothing of <that> kind"), "nothing of <that> kind");
    }
}
