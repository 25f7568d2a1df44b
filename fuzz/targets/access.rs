//! Fuzzes the validation of tokens, tickets, secrets and private keys.
#![no_main]

use std::sync::LazyLock;

use feedline_access::ticket::{TicketKey, TicketIssuer};
use feedline_access::token::Tokens;
use feedline_access::{CertificateAuthority, Secret};
use feedline_data::ids::JobId;
use libfuzzer_sys::fuzz_target;

static KEYS: LazyLock<(Tokens, TicketKey)> = LazyLock::new(|| {
    let secret = Secret::new().expect("the system provides random numbers");
    (Tokens::new(&secret), TicketIssuer::new(&secret).public_key())
});

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    assert!(KEYS.0.check(text, 0).is_err(), "the input is not signed");
    assert!(KEYS.1.check(Some(text), JobId(1), 0).is_err(), "the input is not signed");
    // Errors are expected; only panics and hangs are failures.
    let _ = Secret::parse(text);
    let _ = CertificateAuthority::from_key(text, 1);
});
