//! What a cluster's coordinators know and nobody else does.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::Ed25519KeyPair;

/// Bytes of a secret, and of the seed of a pair of keys.
const SECRET_BYTES: usize = 32;
/// How its text begins, so that it is not taken for something else, and is found where it should not be.
const PREFIX: &str = "feedline-secret-1:";
/// Keys of one use are of none for another.
const SALT: &[u8] = b"feedline cluster secret 1";

/// The secret of a cluster. Whoever has it can do everything.
#[derive(Clone)]
pub struct Secret([u8; SECRET_BYTES]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Secret {
    /// A new one.
    ///
    /// # Errors
    /// One clause, when the system gives no random numbers.
    pub fn new() -> Result<Self, String> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| "the system gives no random numbers".to_owned())?;
        Ok(Self(bytes))
    }

    /// Reads what [`Self::text`] wrote; spaces and line ends around it do not matter.
    ///
    /// # Errors
    /// One clause, which does not show the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "it is no secret of a cluster, which is a line that begins with {PREFIX}; `feedline keys` makes one"
            )
        };
        let encoded = text.trim().strip_prefix(PREFIX).ok_or_else(refused)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| refused())?;
        Ok(Self(bytes.try_into().map_err(|_| refused())?))
    }

    /// The secret as a line of text, without a line end.
    pub fn text(&self) -> String {
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }

    /// A number by which logs and people tell secrets apart, and which says nothing of them.
    pub fn fingerprint(&self) -> String {
        let named = [SALT, b" fingerprint ".as_slice(), self.0.as_slice()].concat();
        digest(&SHA256, &named).as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The pair of keys for one use: HMAC-SHA256 as a pseudo-random function of the use (RFC 5869, one block of the
    /// expansion) gives its seed.
    pub(crate) fn keys(&self, usage: &str) -> Ed25519KeyPair {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let seed = hmac::sign(&key, &[SALT, b" ", usage.as_bytes()].concat());
        Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a seed has the 32 bytes of a SHA-256")
    }
}

#[cfg(test)]
mod tests {
    use ring::signature::KeyPair;

    use super::*;

    #[test]
    fn a_secret_is_read_as_it_was_written_and_shows_itself_nowhere_else() {
        let secret = Secret::new().unwrap();
        let again = Secret::parse(&format!(" {}\n", secret.text())).unwrap();
        assert_eq!(again.text(), secret.text());
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        assert_ne!(Secret::new().unwrap().text(), secret.text());
        assert_eq!(secret.fingerprint(), again.fingerprint());
        assert!(!secret.text().contains(&secret.fingerprint()));
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_shown() {
        for wrong in ["", "hunter2", "feedline-secret-1:", "feedline-secret-1:aGVsbG8", "feedline-secret-1:!"]
        {
            let said = Secret::parse(wrong).unwrap_err();
            assert!(said.starts_with("it is no secret of a cluster"), "{said}");
            assert!(!said.contains("hunter2") && !said.contains("aGVsbG8"));
        }
    }

    #[test]
    fn each_use_has_keys_of_its_own() {
        let secret = Secret([7; 32]);
        let public = |usage| secret.keys(usage).public_key().as_ref().to_vec();
        assert_eq!(public("tokens"), public("tokens"));
        assert_ne!(public("tokens"), public("tickets"));
        assert_ne!(public("tokens"), Secret([8; 32]).keys("tokens").public_key().as_ref());
    }
}
