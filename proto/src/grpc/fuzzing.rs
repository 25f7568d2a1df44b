//! Reading any bytes as what a worker sends in answer to a fetch, as a client does to which nothing is lent.

use bytes::Bytes;

use super::framing::{FrameParser, ReceivedMessage};
use super::worker_client::unpack;
use crate::services::Frame;
use crate::wire;

/// Takes `bytes` apart into messages and chunks.
pub(crate) fn read_answer(bytes: &[u8]) {
    let (mut parser, mut data) = (FrameParser::default(), Bytes::copy_from_slice(bytes));
    while let Ok(Some(received)) = parser.next(&mut data) {
        if let ReceivedMessage::Message(message) = received {
            read_frame(message);
        }
    }
}

/// Reads one message. Whether it can be read does not matter; that it ends does.
pub(crate) fn read_frame(message: wire::FetchFrame) {
    if let Some(wire::fetch_frame::Frame::Packed(packed)) = &message.frame {
        drop(unpack(packed));
        return;
    }
    drop(Frame::try_from(message));
}
