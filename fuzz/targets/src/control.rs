//! The targets of everything but rows: pipelines, network messages, secrets, and files that Feedline writes.

use std::sync::LazyLock;

use feedline_access::ticket::{TicketIssuer, TicketKey};
use feedline_access::token::Tokens;
use feedline_access::{CertificateAuthority, Secret};
use feedline_data::graph::description::GraphDescription;
use feedline_data::ids::JobId;
use feedline_data::pipeline::Pipeline;
use feedline_sources::NpyArrayHeader;

use crate::thread_state::with_folder;

/// Parses a pipeline file, and the same pipeline again after it is written.
pub fn pipeline(bytes: &[u8]) {
    let text = bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid());
    let Ok(pipeline) = Pipeline::from_yaml(text, "fuzz.yaml") else { return };
    let again =
        Pipeline::from_yaml(&pipeline.to_yaml(), "again.yaml").expect("a written pipeline can be parsed");
    assert_eq!(pipeline.fingerprint(), again.fingerprint(), "{text}");
}

/// Parses network messages of all types.
pub fn messages(bytes: &[u8]) {
    feedline_proto::fuzzing::read_messages(bytes);
}

/// Parses a coordinator's log, log entries, and messages between coordinators.
pub fn raft_log(bytes: &[u8]) {
    feedline_raft::read_anything(bytes);
}

/// Parses a stored dataset index: the input as it is, and with a valid checksum.
pub fn index(bytes: &[u8]) {
    feedline_coordinator::read_index(bytes);
}

/// Parses the description of a stored graph, and the headers of its arrays.
pub fn graph_folder(bytes: &[u8]) {
    // Errors are expected; only panics and hangs are failures.
    let _ = NpyArrayHeader::parse(bytes);
    if let Ok(description) = GraphDescription::parse(bytes) {
        let again = GraphDescription::parse(description.to_json().as_bytes());
        assert_eq!(again.as_ref(), Ok(&description));
        let _ = description.topology_fingerprint();
    }
}

/// Reads cached rows, from disk and from the object store.
pub fn cache(bytes: &[u8]) {
    with_folder(|folder| feedline_worker::read_cached_rows(folder, bytes));
}

static KEYS: LazyLock<(Tokens, TicketKey)> = LazyLock::new(|| {
    let secret = Secret::new().expect("the system provides random numbers");
    (Tokens::new(&secret), TicketIssuer::new(&secret).public_key())
});

/// Validates tokens, tickets, secrets and private keys.
pub fn access(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    assert!(KEYS.0.check(text, 0).is_err(), "the input is not signed");
    assert!(KEYS.1.check(Some(text), JobId(1), 0).is_err(), "the input is not signed");
    // Errors are expected; only panics and hangs are failures.
    let _ = Secret::parse(text);
    let _ = CertificateAuthority::from_key(text, 1);
}
