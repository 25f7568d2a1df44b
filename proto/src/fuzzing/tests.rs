//! Tests that every message of the services has an entry, and that every entry accepts arbitrary bytes.

use std::collections::BTreeSet;

use super::*;
use crate::convert::samples;

/// The request and response messages that the `.proto` files declare.
fn declared_messages() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/feedline/v1")).unwrap() {
        let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for call in text.split("\n  rpc ").skip(1) {
            let call = call.split(';').next().unwrap();
            for message in call.split('(').skip(1) {
                let message = message.split(')').next().unwrap().trim();
                names.insert(message.trim_start_matches("stream ").to_owned());
            }
        }
    }
    names
}

#[test]
fn every_message_of_a_service_is_read() {
    let read: BTreeSet<String> =
        DECODERS.iter().chain(MESSAGES).map(|(name, _)| (*name).to_owned()).collect();
    let named = declared_messages();
    let missing: Vec<&String> = named.difference(&read).collect();
    assert!(missing.is_empty(), "no fuzzer reads {missing:?}: add them to MESSAGES");
    let gone: Vec<&String> = read.difference(&named).collect();
    assert!(gone.is_empty(), "no service has {gone:?}: take them out of MESSAGES");
}

fn encode<T: Wire<W>, W: Message>(value: T) -> Vec<u8> {
    value.into_wire().encode_to_vec()
}

#[test]
fn bytes_of_any_message_are_decoded_as_every_message() {
    let index = encode_manifest(&samples::manifest());
    let chunk = wire::IndexChunk { part: Some(Part::Data(index.clone().into())) };
    let packed = wire::PackedChunk { offset: 1, bytes: 3, lz4: lz4_flex::block::compress(b"abc").into() };
    let frame = wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Packed(packed)) };
    let messages = [
        Vec::new(),
        index,
        chunk.encode_to_vec(),
        frame.encode_to_vec(),
        encode::<_, wire::JobSpec>(samples::spec()),
        encode::<_, wire::WorkerReport>(samples::worker_report()),
        encode::<_, wire::JobList>(vec![samples::job_status()]),
    ];
    for message in messages {
        read_messages(&message);
        let header = [&[0u8][..], &(message.len() as u32).to_be_bytes()[..]].concat();
        read_messages(&[header, message].concat());
    }
}
