//! Signed text. Everyone can read its payload, and only the owner of the key can create it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum length of a text that is verified.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// Signs a payload. The text consists of `prefix`, the payload as JSON and the signature, separated by dots, and fits into a
/// header.
pub(crate) fn seal<T: Serialize>(prefix: &str, payload: &T, keys: &Ed25519KeyPair) -> String {
    let payload = serde_json::to_vec(payload).expect("payloads consist of types that JSON supports");
    let signed = format!("{prefix}.{}", URL_SAFE_NO_PAD.encode(payload));
    let signature = URL_SAFE_NO_PAD.encode(keys.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// Returns the payload of a text that [`seal`] has signed with the private key that belongs to `public`; `None` for any
/// other text. The signature is verified before the payload is parsed.
pub(crate) fn unseal<T: DeserializeOwned>(prefix: &str, text: &str, public: &[u8]) -> Option<T> {
    let text = text.trim();
    if text.len() > MAX_TEXT_BYTES {
        return None;
    }
    let (signed, signature) = text.rsplit_once('.')?;
    let payload = signed.strip_prefix(prefix)?.strip_prefix('.')?;
    let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
    UnparsedPublicKey::new(&ED25519, public).verify(signed.as_bytes(), &signature).ok()?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}
