//! Signed text: a payload that everybody can read and nobody can change.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{ED25519, Ed25519KeyPair, UnparsedPublicKey};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest text that is looked at.
const MAX_TEXT_BYTES: usize = 4 << 10;

/// `prefix`, the payload as JSON, and the signature of both, with dots between, all fit for a header.
pub(crate) fn seal<T: Serialize>(prefix: &str, payload: &T, keys: &Ed25519KeyPair) -> String {
    let payload = serde_json::to_vec(payload).expect("payloads have only fields that JSON knows");
    let signed = format!("{prefix}.{}", URL_SAFE_NO_PAD.encode(payload));
    let signature = URL_SAFE_NO_PAD.encode(keys.sign(signed.as_bytes()));
    format!("{signed}.{signature}")
}

/// The payload of what [`seal`] gave under the pair that `public` is of; `None` for anything else. The signature is
/// checked before the payload is read.
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
