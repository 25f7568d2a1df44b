//! The cluster secret, which the coordinators share.

use std::fmt;
use std::fs;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

/// Length of a secret, and of the seed of a key pair.
const SECRET_BYTES: usize = 32;
/// Prefix of an encoded secret. The prefix makes misplaced secrets easy to find.
const SECRET_PREFIX: &str = "feedline-secret-1:";
/// Salt of the key derivation.
const DERIVATION_SALT: &[u8] = b"feedline cluster secret 1";

/// The bytes of a secret.
pub(crate) type SecretBytes = [u8; SECRET_BYTES];

/// The cluster secret, and further secrets during a rotation. The owner of any of these secrets has all rights.
#[derive(Clone)]
pub struct Secret {
    /// The secret that signs tokens and tickets.
    signing: SecretBytes,
    /// Further secrets, whose signatures are also valid.
    additional: Vec<SecretBytes>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

impl Secret {
    /// Generates a secret.
    ///
    /// # Errors
    /// Returns a message if the system cannot generate random numbers.
    pub fn new() -> Result<Self, String> {
        let mut bytes = [0; SECRET_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| "cannot generate random numbers".to_owned())?;
        Ok(Self::from_parts(bytes, Vec::new()))
    }

    /// Creates a secret that signs with `signing` and also accepts signatures of `additional`.
    pub(crate) fn from_parts(signing: SecretBytes, additional: Vec<SecretBytes>) -> Self {
        Self { signing, additional }
    }

    /// Creates a new secret that signs, and that also accepts signatures of the current signing secret.
    ///
    /// # Errors
    /// Returns a message if the system cannot generate random numbers.
    pub fn rotated(&self) -> Result<Self, String> {
        Ok(Self::from_parts(Self::new()?.signing, vec![self.signing]))
    }

    /// Returns the signing secret alone.
    pub fn without_previous(&self) -> Self {
        Self::from_parts(self.signing, Vec::new())
    }

    /// Returns whether signatures of a further secret are valid.
    pub fn has_previous(&self) -> bool {
        !self.additional.is_empty()
    }

    /// Reads a file with the text of [`Self::text`].
    ///
    /// # Errors
    /// Returns a message with the file and the fix, without the contents of the file.
    pub fn load(file: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(file).map_err(|error| {
            format!(
                "cannot read the secret in {}: {error}; create one with `feedline keys new`",
                file.display()
            )
        })?;
        Self::parse(&text).map_err(|reason| format!("{}: {reason}", file.display()))
    }

    /// Parses the text of [`Self::text`]: one secret, or two on separate lines. The first secret signs, and the signatures
    /// of both are valid. Spaces and empty lines are ignored.
    ///
    /// # Errors
    /// Returns a message that does not contain the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let signing = parse_line(lines.next().unwrap_or_default())?;
        let additional: Vec<SecretBytes> = lines.next().map(parse_line).transpose()?.into_iter().collect();
        if lines.next().is_some() {
            return Err(
                "the file contains more than two secrets; keep only the current and the previous secret"
                    .to_owned(),
            );
        }
        Ok(Self { signing, additional })
    }

    /// Returns the secret as a line of text, followed by a line for each further secret. The text does not end with a line
    /// break.
    pub fn text(&self) -> String {
        let lines: Vec<String> =
            self.all().map(|bytes| format!("{SECRET_PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))).collect();
        lines.join("\n")
    }

    /// Returns a short hash that identifies the secret in logs without revealing the secret; one hash for each secret.
    pub fn fingerprint(&self) -> String {
        let hash = |bytes: &SecretBytes| -> String {
            let salted = [DERIVATION_SALT, b" fingerprint ".as_slice(), bytes.as_slice()].concat();
            digest(&SHA256, &salted).as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let hashes: Vec<String> = self.all().map(hash).collect();
        hashes.join(" and ")
    }

    /// Returns the key pair that signs for a usage.
    pub(crate) fn signing_keys(&self, usage: &str) -> Ed25519KeyPair {
        derive_key_pair(&self.signing, usage)
    }

    /// Returns the public keys that verify signatures for a usage, starting with the key of [`Self::signing_keys`].
    pub(crate) fn public_keys(&self, usage: &str) -> Vec<Vec<u8>> {
        self.all().map(|bytes| derive_key_pair(bytes, usage).public_key().as_ref().to_vec()).collect()
    }

    /// Returns the bytes of the signing secret.
    pub(crate) fn signing_bytes(&self) -> SecretBytes {
        self.signing
    }

    /// Returns the signing secret, then the further secrets.
    pub(crate) fn all(&self) -> impl Iterator<Item = &SecretBytes> {
        std::iter::once(&self.signing).chain(&self.additional)
    }
}

fn parse_line(line: &str) -> Result<SecretBytes, String> {
    let invalid = || {
        format!(
            "the file is not a cluster secret: expected a line that starts with {SECRET_PREFIX}; create a secret with `feedline keys`"
        )
    };
    let encoded = line.strip_prefix(SECRET_PREFIX).ok_or_else(invalid)?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| invalid())?;
    bytes.try_into().map_err(|_| invalid())
}

/// Derives the key pair for one usage. HMAC-SHA256 of the usage is the seed, which is one block of the expansion of HKDF
/// (RFC 5869).
fn derive_key_pair(secret: &SecretBytes, usage: &str) -> Ed25519KeyPair {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let seed = hmac::sign(&key, &[DERIVATION_SALT, b" ", usage.as_bytes()].concat());
    Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a SHA-256 hash has the 32 bytes of a seed")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret_of(byte: u8) -> Secret {
        Secret::from_parts([byte; SECRET_BYTES], Vec::new())
    }

    #[test]
    fn a_secret_survives_a_round_trip_and_is_hidden_in_debug_output() {
        let secret = Secret::new().unwrap();
        let again = Secret::parse(&format!(" {}\n", secret.text())).unwrap();
        assert_eq!(again.text(), secret.text());
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
        assert_ne!(Secret::new().unwrap().text(), secret.text());
        assert_eq!(secret.fingerprint(), again.fingerprint());
        assert!(!secret.text().contains(&secret.fingerprint()));
    }

    #[test]
    fn an_invalid_secret_is_rejected_without_its_text() {
        for wrong in ["", "hunter2", "feedline-secret-1:", "feedline-secret-1:aGVsbG8", "feedline-secret-1:!"]
        {
            let error = Secret::parse(wrong).unwrap_err();
            assert!(error.starts_with("the file is not a cluster secret"), "{error}");
            assert!(!error.contains("hunter2") && !error.contains("aGVsbG8"));
        }
    }

    #[test]
    fn the_first_of_two_secrets_signs_and_both_verify() {
        let both =
            Secret::parse(&format!("\n{}\n\n {}\n", secret_of(7).text(), secret_of(8).text())).unwrap();
        assert_eq!(both.text(), format!("{}\n{}", secret_of(7).text(), secret_of(8).text()));
        assert_eq!(
            both.fingerprint(),
            format!("{} and {}", secret_of(7).fingerprint(), secret_of(8).fingerprint())
        );
        assert_eq!(
            both.signing_keys("tokens").public_key().as_ref(),
            secret_of(7).signing_keys("tokens").public_key().as_ref()
        );
        assert_eq!(
            both.public_keys("tokens"),
            [secret_of(7).public_keys("tokens"), secret_of(8).public_keys("tokens")].concat()
        );
        let three = format!("{}\n{}", both.text(), secret_of(9).text());
        assert!(Secret::parse(&three).unwrap_err().contains("more than two secrets"));
        assert!(
            Secret::parse(&format!("{}\nhunter2", secret_of(7).text()))
                .unwrap_err()
                .contains("not a cluster secret")
        );
    }

    #[test]
    fn a_rotated_secret_accepts_the_previous_signing_secret() {
        let first = secret_of(7);
        let second = first.rotated().unwrap();
        assert!(second.has_previous() && !first.has_previous());
        assert_eq!(second.text().lines().nth(1), Some(first.text().as_str()));
        assert_ne!(second.text().lines().next(), Some(first.text().as_str()));
        assert!(Secret::parse(&second.text()).is_ok());
        let third = second.rotated().unwrap();
        assert_eq!(third.text().lines().nth(1), second.text().lines().next());
        assert_eq!(Some(second.without_previous().text().as_str()), second.text().lines().next());
    }

    #[test]
    fn each_usage_has_different_keys() {
        let secret = secret_of(7);
        let public = |usage| secret.signing_keys(usage).public_key().as_ref().to_vec();
        assert_eq!(public("tokens"), public("tokens"));
        assert_ne!(public("tokens"), public("tickets"));
        assert_ne!(public("tokens"), secret_of(8).signing_keys("tokens").public_key().as_ref());
    }
}
