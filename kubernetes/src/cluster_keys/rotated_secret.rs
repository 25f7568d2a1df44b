//! The secret of a cluster in a Secret, and its rotation: the file contains the new and the previous secret until all tokens
//! of the previous secret have expired.

use feedline_access::Secret;
use feedline_access::key_files::SECRET_FILE;
use feedline_access::token::{Claims, Tokens};

use crate::secrets::{SecretName, StoredSecret};

/// The annotation with the time of the last rotation of the secret as a Unix timestamp in seconds.
pub(crate) const ROTATED_ANNOTATION: &str = "feedline/secret-rotated-at";
/// Time after a rotation at which all coordinators accept the new secret: the kubelet updates mounted files within two
/// minutes.
const ROTATION_DELAY_S: u64 = 600;

/// The secret of a cluster, and its last rotation.
pub(crate) struct RotatedSecret {
    secret: Secret,
    /// Issues tokens, and verifies signatures of the signing secret.
    signing: Tokens,
    /// Verifies signatures of both secrets.
    all: Tokens,
    /// The time of the last rotation as a Unix timestamp in seconds; `None` if the file was changed by hand or never.
    rotated_s: Option<u64>,
}

impl RotatedSecret {
    pub(crate) fn new(name: &SecretName, stored: &StoredSecret) -> Result<Self, String> {
        let secret = parse_secret(name, stored)?;
        Ok(Self {
            signing: Tokens::new(&secret.without_previous()),
            all: Tokens::new(&secret),
            rotated_s: stored.annotations.get(ROTATED_ANNOTATION).and_then(|text| text.parse().ok()),
            secret,
        })
    }

    /// Returns the claims of a valid token. Some time after a rotation, only tokens of the new secret are valid. A token with
    /// a line end counts as invalid, because the prometheus-operator puts the text of a Secret into a header as it is.
    pub(crate) fn check(&self, token: &str, now_s: u64) -> Option<Claims> {
        if token.trim() != token {
            return None;
        }
        let is_known_to_all =
            self.rotated_s.is_none_or(|time| now_s >= time.saturating_add(ROTATION_DELAY_S));
        let tokens = if is_known_to_all { &self.signing } else { &self.all };
        tokens.check(token, now_s).ok()
    }

    /// Returns the text of the signing secret alone.
    pub(crate) fn without_previous(&self) -> String {
        self.secret.without_previous().text()
    }

    /// Returns the issuer of new tokens.
    pub(crate) fn issuer(&self) -> &Tokens {
        &self.signing
    }

    /// Returns whether all tokens of the previous secret have expired.
    pub(crate) fn has_expired_previous(&self, lifetime_s: Option<u64>, now_s: u64) -> bool {
        let (Some(rotated_s), Some(lifetime_s)) = (self.rotated_s, lifetime_s) else { return false };
        self.secret.has_previous() && now_s >= rotated_s.saturating_add(lifetime_s)
    }
}

/// Parses the secret of the cluster.
pub(crate) fn parse_secret(name: &SecretName, stored: &StoredSecret) -> Result<Secret, String> {
    Secret::parse(stored.file(SECRET_FILE))
        .map_err(|reason| format!("the key {SECRET_FILE} of the Secret {name} is invalid: {reason}"))
}
