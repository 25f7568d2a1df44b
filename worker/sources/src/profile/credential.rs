//! Where the credentials of a profile come from, and the credentials themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use object_store::aws::AwsCredential;

/// The keys of a profile.
pub(super) type Section = BTreeMap<String, String>;

/// How a profile gets its credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum ProfileSource {
    /// Keys in a file.
    Static { key_id: String, secret_key: String, token: Option<String> },
    /// The output of a command.
    Process { command: String },
    /// A role, which the source may assume.
    Role { role_arn: String, session_name: String, external_id: Option<String>, source: Box<Self> },
    /// A role, which the bearer of the token in a file may assume. The client supports this itself.
    WebIdentity { role_arn: String, token_file: String },
}

/// Credentials, and the time at which they expire.
#[derive(Clone)]
pub(super) struct ExpiringCredential {
    pub(super) credential: Arc<AwsCredential>,
    pub(super) expires_at: Option<SystemTime>,
}

impl ExpiringCredential {
    /// Whether the credentials expire within this time.
    pub(super) fn expires_within(&self, margin: Duration) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= SystemTime::now() + margin)
    }
}

/// Why a profile has no credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CredentialError {
    /// A part of a sentence, without secrets.
    pub(super) reason: String,
    /// Whether the next attempt may succeed.
    pub(super) is_retryable: bool,
}

impl CredentialError {
    pub(super) fn permanent(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), is_retryable: false }
    }
}
