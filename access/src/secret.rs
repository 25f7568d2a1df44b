//! What a cluster's coordinators know and nobody else does.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{Ed25519KeyPair, KeyPair};

/// Bytes of a secret, and of the seed of a pair of keys.
const SECRET_BYTES: usize = 32;
/// How its text begins, so that it is not taken for something else, and is found where it should not be.
const PREFIX: &str = "feedline-secret-1:";
/// Keys of one use are of none for another.
const SALT: &[u8] = b"feedline cluster secret 1";

/// The secret of a cluster, and a second one while one is exchanged for another. Whoever has either can do everything.
#[derive(Clone)]
pub struct Secret {
    /// What is signed is signed with this one.
    signs: [u8; SECRET_BYTES],
    /// What this one signed is good too.
    also: Option<[u8; SECRET_BYTES]>,
}

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
        Ok(Self { signs: bytes, also: None })
    }

    /// Reads what [`Self::text`] wrote: one secret, or two with a line each, of which the first signs and both are good.
    /// Spaces and empty lines do not matter.
    ///
    /// # Errors
    /// One clause, which does not show the text.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let signs = bytes_of(lines.next().unwrap_or_default())?;
        let also = lines.next().map(bytes_of).transpose()?;
        if lines.next().is_some() {
            return Err(
                "it has more than two secrets: keep the one that signs and the one that is exchanged"
                    .to_owned(),
            );
        }
        Ok(Self { signs, also })
    }

    /// The secret as a line of text, and the second one as another, without a line end after the last.
    pub fn text(&self) -> String {
        let lines: Vec<String> =
            self.all().map(|bytes| format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes))).collect();
        lines.join("\n")
    }

    /// A number by which logs and people tell secrets apart, and which says nothing of them; two for two.
    pub fn fingerprint(&self) -> String {
        let number = |bytes: &[u8; SECRET_BYTES]| -> String {
            let named = [SALT, b" fingerprint ".as_slice(), bytes.as_slice()].concat();
            digest(&SHA256, &named).as_ref()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        let numbers: Vec<String> = self.all().map(number).collect();
        numbers.join(" and ")
    }

    /// The pair of keys that signs for one use.
    pub(crate) fn keys(&self, usage: &str) -> Ed25519KeyPair {
        pair(&self.signs, usage)
    }

    /// The public keys for one use with which signatures are good, that of [`Self::keys`] first.
    pub(crate) fn public_keys(&self, usage: &str) -> Vec<Vec<u8>> {
        self.all().map(|bytes| pair(bytes, usage).public_key().as_ref().to_vec()).collect()
    }

    /// The one that signs, and the one that is good too.
    fn all(&self) -> impl Iterator<Item = &[u8; SECRET_BYTES]> {
        std::iter::once(&self.signs).chain(&self.also)
    }
}

fn bytes_of(line: &str) -> Result<[u8; SECRET_BYTES], String> {
    let refused = || {
        format!(
            "it is no secret of a cluster, which is a line that begins with {PREFIX}; `feedline keys` makes one"
        )
    };
    let encoded = line.strip_prefix(PREFIX).ok_or_else(refused)?;
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| refused())?;
    bytes.try_into().map_err(|_| refused())
}

/// The pair of keys for one use: HMAC-SHA256 as a pseudo-random function of the use (RFC 5869, one block of the
/// expansion) gives its seed.
fn pair(secret: &[u8; SECRET_BYTES], usage: &str) -> Ed25519KeyPair {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let seed = hmac::sign(&key, &[SALT, b" ", usage.as_bytes()].concat());
    Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a seed has the 32 bytes of a SHA-256")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(byte: u8) -> Secret {
        Secret { signs: [byte; SECRET_BYTES], also: None }
    }

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
    fn of_two_secrets_the_first_signs_and_both_are_good() {
        let both = Secret::parse(&format!("\n{}\n\n {}\n", of(7).text(), of(8).text())).unwrap();
        assert_eq!(both.text(), format!("{}\n{}", of(7).text(), of(8).text()));
        assert_eq!(both.fingerprint(), format!("{} and {}", of(7).fingerprint(), of(8).fingerprint()));
        assert_eq!(both.keys("tokens").public_key().as_ref(), of(7).keys("tokens").public_key().as_ref());
        assert_eq!(
            both.public_keys("tokens"),
            [of(7).public_keys("tokens"), of(8).public_keys("tokens")].concat()
        );
        let three = format!("{}\n{}", both.text(), of(9).text());
        assert!(Secret::parse(&three).unwrap_err().contains("more than two secrets"));
        assert!(Secret::parse(&format!("{}\nhunter2", of(7).text())).unwrap_err().contains("no secret"));
    }

    #[test]
    fn each_use_has_keys_of_its_own() {
        let secret = of(7);
        let public = |usage| secret.keys(usage).public_key().as_ref().to_vec();
        assert_eq!(public("tokens"), public("tokens"));
        assert_ne!(public("tokens"), public("tickets"));
        assert_ne!(public("tokens"), of(8).keys("tokens").public_key().as_ref());
    }
}
