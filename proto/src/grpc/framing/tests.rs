//! Tests that framed messages equal the messages that prost encodes, and that the parser accepts every fragmentation.

use proptest::prelude::*;

use super::*;
use crate::grpc::settings::MAX_CHUNK_BYTES;

fn chunk(offset: u64, data: &Bytes) -> wire::FetchFrame {
    let chunk = wire::Chunk { offset, data: data.clone() };
    wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Chunk(chunk)) }
}

fn joined(parts: &VecDeque<Bytes>) -> Bytes {
    parts.iter().flatten().copied().collect::<Vec<u8>>().into()
}

/// Parses all messages from parts of `cut` bytes, and joins the parts of chunks.
fn parse(bytes: &Bytes, cut: usize) -> Vec<ReceivedMessage> {
    let mut parser = FrameParser::default();
    let mut all: Vec<ReceivedMessage> = Vec::new();
    for part in bytes.chunks(cut) {
        let mut part = bytes.slice_ref(part);
        while let Some(received) = parser.next(&mut part).unwrap() {
            match (all.last_mut(), received) {
                (
                    Some(ReceivedMessage::Chunk { offset, data }),
                    ReceivedMessage::Chunk { offset: at, data: more },
                ) if *offset + data.len() as u64 == at => {
                    *data = [&data[..], &more[..]].concat().into();
                }
                (_, received) => all.push(received),
            }
        }
        assert!(part.is_empty());
    }
    assert!(parser.is_between());
    all
}

#[test]
fn chunks_have_the_encoding_of_prost() {
    let data = Bytes::from(vec![7; MAX_CHUNK_BYTES]);
    for offset in [0, 1, 127, 128, 1 << 20, u64::MAX >> 1] {
        let mut parts = VecDeque::new();
        push_chunk(offset, data.clone(), &mut parts);
        let mut expected = VecDeque::new();
        push_message(&chunk(offset, &data), &mut expected);
        assert_eq!(joined(&parts), joined(&expected), "offset {offset}");
    }
}

#[test]
fn invalid_messages_are_rejected() {
    for (bytes, what) in [
        (&b"\x01\0\0\0\x01x"[..], "compressed"),
        (b"\0\xff\xff\xff\xff", "4294967295 bytes"),
        (b"\0\0\0\0\x03\x1a\x05\xff", "malformed"),
    ] {
        let mut data = Bytes::from_static(bytes);
        let status = FrameParser::default().next(&mut data).unwrap_err();
        assert!(status.message().contains(what), "{status}");
    }
}

proptest! {
    #[test]
    fn messages_are_split_regardless_of_buffer_boundaries(
        messages in proptest::collection::vec((any::<bool>(), 0_u64..1 << 40, 0_usize..200), 1..8),
        cut in 1_usize..300,
    ) {
        let mut parts = VecDeque::new();
        let mut expected = Vec::new();
        for (is_chunk, offset, len) in messages {
            let data = Bytes::from(vec![len as u8; len]);
            if is_chunk && len > 0 {
                push_chunk(offset, data.clone(), &mut parts);
                expected.push(ReceivedMessage::Chunk { offset, data });
            } else {
                let text = "x".repeat(len);
                let frame = wire::FetchFrame { frame: Some(wire::fetch_frame::Frame::Failed(text)) };
                push_message(&frame, &mut parts);
                expected.push(ReceivedMessage::Message(frame));
            }
        }
        // `parse` joins consecutive chunks of a piece, so they are also joined here.
        let mut joined_up: Vec<ReceivedMessage> = Vec::new();
        for received in expected {
            match (joined_up.last_mut(), received) {
                (Some(ReceivedMessage::Chunk { offset, data }), ReceivedMessage::Chunk { offset: at, data: more })
                    if *offset + data.len() as u64 == at => *data = [&data[..], &more[..]].concat().into(),
                (_, received) => joined_up.push(received),
            }
        }
        prop_assert_eq!(parse(&joined(&parts), cut), joined_up);
    }
}
