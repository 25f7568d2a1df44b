//! Errors while listing, indexing and reading datasets.

use feedline_data::manifest::ShardRef;

use crate::guard;

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
    /// The object changed after indexing.
    #[error("`{url}` changed after indexing; restore the object, or run `feedline index --rebuild`")]
    ShardChanged {
        /// The shard.
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
    /// The schema of a shard differs from the schema of the other shards.
    #[error("`{url}` differs from other shards of the dataset: {reason}")]
    SchemaMismatch {
        /// The shard.
        url: String,
        /// The difference.
        reason: String,
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
        match error {
            E::NotFound { .. } => Self::NotFound { url },
            E::Precondition { .. } => Self::ShardChanged { url },
            // Listings return a generic error for denied access.
            E::Generic { source, .. } if is_denied(source.as_ref()) => Self::denied(url, source.as_ref()),
            E::Generic { store, source } => {
                // Errors from local files, such as missing permissions, are permanent.
                let retryable = store != "LocalFileSystem";
                let fix = if retryable { STORE_FIX } else { "" };
                Self::Store { url, reason: causes(source.as_ref()) + fix, retryable }
            }
            E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
                Self::denied(url, source.as_ref())
            }
            other => Self::Store { url, reason: causes(&other), retryable: false },
        }
    }

    fn denied(url: String, error: &(dyn std::error::Error + 'static)) -> Self {
        let reason = format!("access denied ({}): check the credentials", causes(error));
        Self::Store { url, reason, retryable: false }
    }

    pub(crate) fn corrupt(shard: &ShardRef, offset: u64, reason: impl Into<String>) -> Self {
        Self::Corrupt { url: shard.url.clone(), offset, reason: reason.into() }
    }

    pub(crate) fn unsupported(shard: &ShardRef, reason: impl Into<String>) -> Self {
        Self::Unsupported { url: shard.url.clone(), reason: reason.into() }
    }
}

fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let text = causes(error);
    ["401 Unauthorized", "403 Forbidden"].iter().any(|status| text.contains(status))
}

/// Formats an error and its causes on one line.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    without_body(&text).replace('\n', " ")
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
