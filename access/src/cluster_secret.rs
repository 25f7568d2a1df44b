//! The secret of a running coordinator. It is reloaded when its file changes, and previous secrets stay valid for a while.
//!
//! The files of several coordinators do not change at the same time. A new secret is therefore accepted at once, but signs
//! only after a delay, and a removed secret is accepted for a longer delay.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::secret::SecretBytes;
use crate::ticket::TicketIssuer;
use crate::token::Tokens;
use crate::{Secret, now_s, warn_if_exposed};

/// Time from the acceptance of a new secret to its first signature. In this time, the files of all coordinators change.
/// Kubernetes updates mounted files within two minutes.
const SIGNING_DELAY_S: u64 = 180;
/// Time for which the second secret of a file is accepted after its removal from the file. It exceeds [`SIGNING_DELAY_S`]
/// plus the time for which roles use a signed token or ticket again, so that no request fails during a removal.
const REMOVAL_DELAY_S: u64 = 300;
/// Time for which the first secret of a file is accepted after a file without it has replaced the file. It exceeds the
/// default lifetime of a token.
const REPLACED_LIFETIME_S: u64 = 366 * 86_400;
/// Maximum number of accepted secrets that are not in the file. Beyond this limit, the secret that expires first is dropped.
const MAX_REMOVED_SECRETS: usize = 4;

/// The secret of a running coordinator.
pub struct ClusterSecret {
    /// The file; `None` for a secret that never changes.
    file: Option<PathBuf>,
    state: Mutex<SecretState>,
}

/// Keys that sign and verify tokens and tickets.
pub struct ClusterKeys {
    /// Issues and verifies tokens.
    pub tokens: Tokens,
    /// Issues tickets.
    pub tickets: TicketIssuer,
}

impl fmt::Debug for ClusterSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterSecret(hidden)")
    }
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKeys(hidden)")
    }
}

impl ClusterKeys {
    fn new(secret: &Secret) -> Self {
        Self { tokens: Tokens::new(secret), tickets: TicketIssuer::new(secret) }
    }
}

impl ClusterSecret {
    /// Creates a secret that never changes.
    pub fn fixed(secret: Secret) -> Self {
        Self { file: None, state: Mutex::new(SecretState::new(secret)) }
    }

    /// Reads the secret from a file.
    ///
    /// # Errors
    /// Returns a message with the file and the fix, without the contents of the file.
    pub fn load(file: PathBuf) -> Result<Self, String> {
        let secret = Secret::load(&file)?;
        warn_if_exposed("a cluster's secret", &file);
        Ok(Self { file: Some(file), state: Mutex::new(SecretState::new(secret)) })
    }

    /// Reads the file again, and drops expired secrets. Returns whether the file has changed.
    ///
    /// # Errors
    /// Returns the errors of [`Self::load`]. After an error, the secrets stay in use.
    pub fn reload(&self) -> Result<bool, String> {
        self.reload_at(now_s())
    }

    /// Like [`Self::reload`], at the Unix time `now_s` in seconds.
    fn reload_at(&self, now_s: u64) -> Result<bool, String> {
        let read = self.file.as_deref().map(Secret::load).transpose();
        let mut state = self.lock();
        let has_changed = match &read {
            Ok(Some(secret)) => state.set_file_content(secret, now_s),
            Ok(None) | Err(_) => false,
        };
        state.advance(now_s);
        drop(state);
        if let (true, Some(file)) = (has_changed, &self.file) {
            warn_if_exposed("a cluster's secret", file);
        }
        read.map(|_| has_changed)
    }

    /// Returns the current keys. They change at a [`Self::reload`].
    pub fn keys(&self) -> Arc<ClusterKeys> {
        Arc::clone(&self.lock().keys)
    }

    /// Returns a short hash that identifies the secret in logs, as [`Secret::fingerprint`] does.
    pub fn fingerprint(&self) -> String {
        self.lock().in_file.fingerprint()
    }

    fn lock(&self) -> MutexGuard<'_, SecretState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The accepted secrets, and the secret that signs.
struct SecretState {
    /// The content of the file.
    in_file: Secret,
    accepted: Vec<AcceptedSecret>,
    signing: SecretBytes,
    /// The secrets of `keys`, starting with the signing secret.
    in_keys: Vec<SecretBytes>,
    keys: Arc<ClusterKeys>,
}

/// A secret whose signatures are valid.
struct AcceptedSecret {
    bytes: SecretBytes,
    /// Time of its first acceptance as a Unix timestamp in seconds.
    since_s: u64,
    /// Time after which it is no longer accepted; `None` while the file contains it.
    expires_s: Option<u64>,
}

impl SecretState {
    /// The secrets that a process reads at its start sign at once.
    fn new(in_file: Secret) -> Self {
        let accept = |bytes: &SecretBytes| AcceptedSecret { bytes: *bytes, since_s: 0, expires_s: None };
        Self {
            accepted: in_file.all().map(accept).collect(),
            signing: in_file.signing_bytes(),
            in_keys: in_file.all().copied().collect(),
            keys: Arc::new(ClusterKeys::new(&in_file)),
            in_file,
        }
    }

    /// Accepts the secrets of a file. Returns whether they differ from the secrets of the previous file.
    fn set_file_content(&mut self, in_file: &Secret, now_s: u64) -> bool {
        if in_file.all().eq(self.in_file.all()) {
            return false;
        }
        let replaced = self.in_file.signing_bytes();
        for known in &mut self.accepted {
            if in_file.all().any(|bytes| *bytes == known.bytes) {
                known.expires_s = None;
                continue;
            }
            let lifetime_s = if known.bytes == replaced { REPLACED_LIFETIME_S } else { REMOVAL_DELAY_S };
            known.expires_s.get_or_insert(now_s.saturating_add(lifetime_s));
        }
        for bytes in in_file.all() {
            if self.accepted.iter().all(|known| known.bytes != *bytes) {
                self.accepted.push(AcceptedSecret { bytes: *bytes, since_s: now_s, expires_s: None });
            }
        }
        self.in_file = in_file.clone();
        true
    }

    /// Drops expired secrets, selects the signing secret, and creates new keys after a change.
    fn advance(&mut self, now_s: u64) {
        self.accepted.retain(|known| known.expires_s.is_none_or(|end| now_s < end));
        while self.accepted.iter().filter(|known| known.expires_s.is_some()).count() > MAX_REMOVED_SECRETS {
            let removed = self.accepted.iter().enumerate().filter(|(_, known)| known.expires_s.is_some());
            let Some((index, _)) = removed.min_by_key(|(_, known)| known.expires_s) else { break };
            self.accepted.remove(index);
        }
        let first = self.in_file.signing_bytes();
        let is_known_to_all = |known: &AcceptedSecret| {
            known.bytes == first && now_s >= known.since_s.saturating_add(SIGNING_DELAY_S)
        };
        let can_sign = self.accepted.iter().any(|known| known.bytes == self.signing);
        if self.signing != first && (!can_sign || self.accepted.iter().any(is_known_to_all)) {
            self.signing = first;
            let secret = Secret::from_parts(first, Vec::new()).fingerprint();
            tracing::info!(secret, "the new secret of the cluster now signs tokens and tickets");
        }
        let others = self.accepted.iter().map(|known| known.bytes).filter(|bytes| *bytes != self.signing);
        let in_keys: Vec<SecretBytes> = std::iter::once(self.signing).chain(others).collect();
        if in_keys != self.in_keys {
            let secret = Secret::from_parts(self.signing, in_keys[1..].to_vec());
            tracing::info!(secrets = secret.fingerprint(), "signatures of these secrets are valid");
            self.keys = Arc::new(ClusterKeys::new(&secret));
            self.in_keys = in_keys;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use feedline_data::ids::{JobId, SessionId};
    use tempfile::TempDir;

    use super::*;
    use crate::{Claims, Scope};

    const JOB: JobId = JobId(7);
    const START_S: u64 = 1_000_000;

    struct SecretFile {
        folder: TempDir,
        secret: ClusterSecret,
    }

    impl SecretFile {
        fn new(secrets: &[&Secret]) -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("secret"), text(secrets)).unwrap();
            let secret = ClusterSecret::load(folder.path().join("secret")).unwrap();
            Self { folder, secret }
        }

        fn path(&self) -> std::path::PathBuf {
            self.folder.path().join("secret")
        }

        fn write(&self, secrets: &[&Secret], now_s: u64) {
            fs::write(self.path(), text(secrets)).unwrap();
            assert_eq!(self.secret.reload_at(now_s), Ok(true));
        }

        /// Whether tokens and tickets of each secret are valid at this time.
        fn accepts(&self, secrets: &[&Secret], now_s: u64) -> Vec<bool> {
            assert_eq!(self.secret.reload_at(now_s), Ok(false));
            let keys = self.secret.keys();
            let is_accepted = |secret: &&Secret| {
                let is_valid = keys.tokens.check(&token(secret), now_s).is_ok();
                let ticket = TicketIssuer::new(secret).issue(JOB, 0, SessionId(1), now_s);
                assert_eq!(keys.tickets.public_key().check(Some(&ticket), JOB, now_s).is_ok(), is_valid);
                is_valid
            };
            secrets.iter().map(is_accepted).collect()
        }

        /// Whether this secret signs tokens.
        fn signs(&self, secret: &Secret, now_s: u64) -> bool {
            assert_eq!(self.secret.reload_at(now_s), Ok(false));
            Tokens::new(secret).check(&self.secret.keys().tokens.issue(&claims()), now_s).is_ok()
        }
    }

    fn text(secrets: &[&Secret]) -> String {
        secrets.iter().map(|secret| secret.text() + "\n").collect()
    }

    fn claims() -> Claims {
        let scopes = [Scope::Observe].into();
        Claims { holder: "ci".to_owned(), scopes, tenant: None, expires_s: None }
    }

    fn token(secret: &Secret) -> String {
        Tokens::new(secret).issue(&claims())
    }

    fn secrets<const N: usize>() -> [Secret; N] {
        [(); N].map(|()| Secret::new().unwrap())
    }

    #[test]
    fn a_replaced_secret_stays_valid_for_the_lifetime_of_its_tokens() {
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&new], START_S);
        for (after_s, expected) in [
            (0, [true, true]),
            (365 * 86_400, [true, true]),
            (REPLACED_LIFETIME_S - 1, [true, true]),
            (REPLACED_LIFETIME_S, [false, true]),
        ] {
            assert_eq!(file.accepts(&[&old, &new], START_S + after_s), expected, "after {after_s} s");
        }
    }

    #[test]
    fn a_new_secret_signs_after_all_coordinators_have_it() {
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&new], START_S);
        assert!(file.signs(&old, START_S + SIGNING_DELAY_S - 1));
        assert!(file.signs(&new, START_S + SIGNING_DELAY_S));
        // A secret that has been accepted for a while signs at once.
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&old, &new], START_S);
        assert!(file.signs(&old, START_S + 10 * SIGNING_DELAY_S));
        file.write(&[&new, &old], START_S + 10 * SIGNING_DELAY_S);
        assert!(file.signs(&new, START_S + 10 * SIGNING_DELAY_S));
        // The secret of a new process signs at once.
        assert!(SecretFile::new(&[&new, &old]).signs(&new, 0));
    }

    #[test]
    fn a_removed_second_secret_becomes_invalid_soon() {
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&new, &old], START_S);
        file.write(&[&new], START_S + 1);
        assert!(file.signs(&new, START_S + SIGNING_DELAY_S));
        assert_eq!(file.accepts(&[&old, &new], START_S + REMOVAL_DELAY_S), [true, true]);
        assert_eq!(file.accepts(&[&old, &new], START_S + REMOVAL_DELAY_S + 1), [false, true]);
        // Also after the second secret was replaced first.
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&new], START_S);
        file.write(&[&new, &old], START_S + 1);
        file.write(&[&new], START_S + 2);
        assert_eq!(file.accepts(&[&old], START_S + 2 + REMOVAL_DELAY_S), [false]);
    }

    #[test]
    fn a_restarted_coordinator_accepts_both_secrets_of_its_file() {
        let [old, new] = secrets();
        let running = SecretFile::new(&[&old]);
        running.write(&[&new, &old], START_S);
        let restarted = SecretFile::new(&[&new, &old]);
        assert!(running.signs(&old, START_S) && restarted.signs(&new, START_S));
        for now_s in [START_S, START_S + 2 * REPLACED_LIFETIME_S] {
            assert_eq!(restarted.accepts(&[&old, &new], now_s), [true, true]);
        }
        // Workers have the key of either coordinator.
        for (issuer, verifier) in [(&running, &restarted), (&restarted, &running)] {
            let ticket = issuer.secret.keys().tickets.issue(JOB, 0, SessionId(1), START_S);
            let key = verifier.secret.keys().tickets.public_key();
            assert!(key.check(Some(&ticket), JOB, START_S).is_ok());
        }
    }

    #[test]
    fn a_restored_secret_stays_valid() {
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        file.write(&[&new], START_S);
        file.write(&[&old], START_S + SIGNING_DELAY_S + 1);
        assert!(file.signs(&old, START_S + SIGNING_DELAY_S + 1));
        assert_eq!(file.accepts(&[&old, &new], START_S + REPLACED_LIFETIME_S), [true, true]);
    }

    #[test]
    fn the_number_of_previous_secrets_is_limited() {
        let all: [Secret; MAX_REMOVED_SECRETS + 3] = secrets();
        let file = SecretFile::new(&[&all[0]]);
        for (number, secret) in (0..).zip(&all[1..]) {
            file.write(&[secret], START_S + number);
        }
        let all: Vec<&Secret> = all.iter().collect();
        let accepted = file.accepts(&all, START_S + 60);
        assert_eq!(accepted.iter().filter(|is_accepted| **is_accepted).count(), MAX_REMOVED_SECRETS + 1);
        assert!(!accepted[0] && !accepted[1], "{accepted:?}");
        // When the signing secret was dropped, the first secret of the file at that time became the signing secret.
        assert!(file.signs(all[MAX_REMOVED_SECRETS + 1], START_S + 60));
    }

    #[test]
    fn an_invalid_file_does_not_change_the_secret() {
        let [old, new] = secrets();
        let file = SecretFile::new(&[&old]);
        fs::write(file.path(), "hunter2").unwrap();
        let error = file.secret.reload_at(START_S).unwrap_err();
        assert!(error.contains(&file.path().display().to_string()) && !error.contains("hunter2"), "{error}");
        assert!(error.contains("the file is not a cluster secret"), "{error}");
        fs::remove_file(file.path()).unwrap();
        let error = file.secret.reload_at(START_S).unwrap_err();
        assert!(error.starts_with("cannot read the secret in "), "{error}");
        assert!(file.secret.keys().tokens.check(&token(&old), 0).is_ok());
        file.write(&[&new], START_S);
        assert_eq!(file.accepts(&[&old, &new], START_S), [true, true]);
        assert_eq!(format!("{:?}", file.secret), "ClusterSecret(hidden)");
    }

    #[test]
    fn a_secret_behind_a_replaced_link_is_reloaded() {
        let [old, new] = secrets();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        // Kubernetes mounts a secret as a link into a directory, and replaces the link to that directory.
        for (name, secret) in [("1", &old), ("2", &new)] {
            fs::create_dir(path(name)).unwrap();
            fs::write(path(name).join("secret"), secret.text()).unwrap();
        }
        let link = |to: &str| {
            std::os::unix::fs::symlink(to, path("..data_tmp")).unwrap();
            fs::rename(path("..data_tmp"), path("..data")).unwrap();
        };
        link("1");
        std::os::unix::fs::symlink(Path::new("..data").join("secret"), path("secret")).unwrap();
        let secret = ClusterSecret::load(path("secret")).unwrap();
        assert_eq!(secret.reload_at(START_S), Ok(false));
        link("2");
        assert_eq!(secret.reload_at(START_S), Ok(true));
        assert!(secret.keys().tokens.check(&token(&new), 0).is_ok());
        assert_eq!(secret.fingerprint(), new.fingerprint());
    }
}
