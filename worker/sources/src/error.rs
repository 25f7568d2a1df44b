//! What can go wrong between a dataset's URL and its rows.

use feedline_data::manifest::ShardRef;

use crate::guard;

/// Why a dataset could not be listed, indexed or read. No variant leaves side effects behind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The URL cannot be used as it is written.
    #[error("cannot use `{url}` as a source: {reason}")]
    Url {
        /// As given.
        url: String,
        /// What to change.
        reason: String,
    },
    /// Pipelines may not read from there, or not so.
    #[error("{sentence}")]
    Refused {
        /// One sentence with the place and the fix.
        sentence: String,
    },
    /// There is no such object.
    #[error("`{url}` does not exist: check the path, or end it with `/` to read everything below it")]
    NotFound {
        /// As given.
        url: String,
    },
    /// A glob or prefix under which nothing lies.
    #[error("`{url}` matches no objects: check the pattern, and that the data is there")]
    Empty {
        /// As given.
        url: String,
    },
    /// The store refused or failed.
    #[error("cannot read `{url}`: {reason}")]
    Store {
        /// Object or prefix.
        url: String,
        /// The store's words.
        reason: String,
        /// Whether the same request may succeed later.
        retryable: bool,
    },
    /// The object is not the one that was indexed.
    #[error("`{url}` changed after indexing; restore the object, or run `feedline index --rebuild`")]
    ShardChanged {
        /// The shard.
        url: String,
    },
    /// The bytes are not what the format says.
    #[error("`{url}` at byte {offset}: {reason}")]
    Corrupt {
        /// The shard.
        url: String,
        /// Byte offset in the shard.
        offset: u64,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A dataset that is valid but not readable here.
    #[error("`{url}` cannot be read: {reason}")]
    Unsupported {
        /// The shard.
        url: String,
        /// What is not supported, and what to do.
        reason: String,
    },
    /// A column that the data does not have.
    #[error("`{url}` has no `{name}` (wanted for column `{column}`): {hint}")]
    MissingFeature {
        /// The shard.
        url: String,
        /// Name of the column in the pipeline.
        column: String,
        /// Name in the data.
        name: String,
        /// The nearest names known.
        hint: String,
    },
    /// Shards that do not fit together.
    #[error("`{url}` differs from the other shards: {reason}")]
    SchemaMismatch {
        /// The shard that differs.
        url: String,
        /// How it differs, and what to do.
        reason: String,
    },
    /// A read that no index could have led to.
    #[error("cannot read this block of `{url}`: {reason}")]
    Request {
        /// The shard.
        url: String,
        /// What is wrong with the request.
        reason: String,
    },
}

impl SourceError {
    /// Whether the same call may succeed later without anybody changing anything.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Store { retryable: true, .. })
    }

    pub(crate) fn from_store(url: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        let url = url.to_owned();
        if let Some(refused) = guard::find_guard_error(&error) {
            return Self::Refused { sentence: format!("`{url}` is not read: {refused}") };
        }
        match error {
            E::NotFound { .. } => Self::NotFound { url },
            E::Precondition { .. } => Self::ShardChanged { url },
            // Listings have no kind of their own for it.
            E::Generic { source, .. } if is_denied(source.as_ref()) => Self::denied(url, source.as_ref()),
            E::Generic { store, source } => {
                // A local disk's failures (permissions, a directory) do not pass by waiting.
                Self::Store { url, reason: causes(source.as_ref()), retryable: store != "LocalFileSystem" }
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

/// An error and what caused it, on one line.
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

/// A text in which the body of a store's answer is cut to what it says: the rest repeats the request, with its signature.
fn without_body(text: &str) -> String {
    let Some(start) = text.find("<?xml").or_else(|| text.find("<Error>")) else { return text.to_owned() };
    let (before, body) = text.split_at(start);
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        Some(rest.split_once(&format!("</{name}>"))?.0.trim())
    };
    let said: Vec<&str> = ["Code", "Message"].into_iter().filter_map(element).collect();
    format!("{before}{}", said.join(": "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_stores_answer_only_what_it_says_is_told() {
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
