//! Every message of the services has an entry, and every entry takes any bytes.

use std::collections::BTreeSet;

use super::*;
use crate::convert::dataset::encode_manifest;
use crate::convert::samples;

/// What the services take and answer with, as the files say from which they are generated.
fn of_services() -> BTreeSet<String> {
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
    let named = of_services();
    let missing: Vec<&String> = named.difference(&read).collect();
    assert!(missing.is_empty(), "no fuzzer reads {missing:?}: add them to MESSAGES");
    let gone: Vec<&String> = read.difference(&named).collect();
    assert!(gone.is_empty(), "no service has {gone:?}: take them out of MESSAGES");
}

#[test]
fn bytes_of_any_message_are_read_as_all_of_them() {
    let index = encode_manifest(&samples::manifest());
    let chunk = wire::IndexChunk { part: Some(Part::Data(index.clone().into())) };
    let packed = wire::Packed { offset: 1, bytes: 3, lz4: lz4_flex::block::compress(b"abc").into() };
    let frame = wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Packed(packed)) };
    let messages = [
        Vec::new(),
        index,
        chunk.encode_to_vec(),
        frame.encode_to_vec(),
        wire::JobSpec::from(samples::spec()).encode_to_vec(),
        wire::WorkerReport::from(samples::worker_report()).encode_to_vec(),
        wire::JobList { jobs: vec![samples::job_status().into()] }.encode_to_vec(),
    ];
    for message in messages {
        read_messages(&message);
        let header = [&[0u8][..], &(message.len() as u32).to_be_bytes()[..]].concat();
        read_messages(&[header, message].concat());
    }
}
