//! Decodes arbitrary bytes as the response to a fetch, as a client without shared memory does.

use bytes::Bytes;

use super::framing::{FrameParser, ReceivedMessage};
use super::worker_client::unpack;
use crate::services::Frame;
use crate::wire;

/// Parses `bytes` as messages and chunks.
pub(crate) fn read_answer(bytes: &[u8]) {
    let (mut parser, mut data) = (FrameParser::default(), Bytes::copy_from_slice(bytes));
    while let Ok(Some(received)) = parser.next(&mut data) {
        if let ReceivedMessage::Message(message) = received {
            read_frame(message);
        }
    }
}

/// Decodes one message. The call must return, even if the bytes are invalid.
pub(crate) fn read_frame(message: wire::FetchFrame) {
    if let Some(wire::fetch_frame::Frame::Packed(packed)) = &message.frame {
        drop(unpack(packed));
        return;
    }
    drop(Frame::try_from(message));
}
