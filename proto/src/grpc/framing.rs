//! Framing of the gRPC messages of a fetch. The bytes of a batch are never copied. The codec of tonic would copy them once
//! on each side. The result on the wire is plain gRPC.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint, encoded_len_varint};
use tonic::Status;

use crate::rpc;
use crate::wire;

/// Size of the header of a gRPC message: one byte for the compression and four bytes for the length.
const HEADER_BYTES: usize = 5;
/// Maximum size of a message before the data of a chunk: four keys and lengths of at most ten bytes each.
const MAX_PREFIX_BYTES: usize = 44;
/// Field numbers in data.proto of the chunk of a frame, and of the offset and the data of a chunk.
const FRAME_CHUNK: u32 = 3;
const CHUNK_OFFSET: u32 = 1;
const CHUNK_DATA: u32 = 2;

/// Appends a message.
pub(super) fn push_message(frame: &wire::FetchFrame, out: &mut VecDeque<Bytes>) {
    let len = frame.encoded_len();
    let mut message = BytesMut::with_capacity(HEADER_BYTES + len);
    put_header(len, &mut message);
    frame.encode(&mut message).expect("the buffer has the encoded length");
    out.push_back(message.freeze());
}

/// Appends a chunk without copying its data.
pub(super) fn push_chunk(offset: u64, data: Bytes, out: &mut VecDeque<Bytes>) {
    out.push_back(chunk_prefix(offset, data.len()));
    out.push_back(data);
}

/// The bytes of a message before `len` bytes of chunk data.
fn chunk_prefix(offset: u64, len: usize) -> Bytes {
    let mut fields = BytesMut::with_capacity(MAX_PREFIX_BYTES);
    if offset > 0 {
        encode_key(CHUNK_OFFSET, WireType::Varint, &mut fields);
        encode_varint(offset, &mut fields);
    }
    encode_key(CHUNK_DATA, WireType::LengthDelimited, &mut fields);
    encode_varint(len as u64, &mut fields);
    let chunk_len = fields.len() + len;
    let mut prefix = BytesMut::with_capacity(HEADER_BYTES + MAX_PREFIX_BYTES);
    put_header(1 + encoded_len_varint(chunk_len as u64) + chunk_len, &mut prefix);
    encode_key(FRAME_CHUNK, WireType::LengthDelimited, &mut prefix);
    encode_varint(chunk_len as u64, &mut prefix);
    prefix.extend_from_slice(&fields);
    prefix.freeze()
}

fn put_header(message_bytes: usize, out: &mut BytesMut) {
    out.put_u8(0);
    out.put_u32(u32::try_from(message_bytes).expect("messages are cut far below 4 GiB"));
}

/// A part of a fetch that the client received.
#[derive(Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a message is moved a few times and never stored")]
pub(super) enum ReceivedMessage {
    /// Bytes of a chunk. One chunk may arrive in several parts.
    Chunk {
        /// Offset of the first byte in the buffer of the piece.
        offset: u64,
        data: Bytes,
    },
    /// Any other message.
    Message(wire::FetchFrame),
}

/// Parses messages incrementally.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a message, with the received part of its header.
    Header(Vec<u8>),
    /// At the start of a message of `len` bytes, with the part that has been received.
    Start { len: usize, head: Vec<u8> },
    /// Within the data of a chunk.
    Chunk { offset: u64, left: usize },
    /// Within any other message of `len` bytes.
    Message { len: usize, message: BytesMut },
}

impl Default for State {
    fn default() -> Self {
        Self::Header(Vec::with_capacity(HEADER_BYTES))
    }
}

impl FrameParser {
    /// Whether the parser is between two messages.
    pub(super) fn is_between(&self) -> bool {
        match &self.state {
            State::Header(header) => header.is_empty(),
            State::Chunk { left, .. } => *left == 0,
            State::Start { .. } | State::Message { .. } => false,
        }
    }

    /// Consumes bytes of `data` and returns the next part; `None` if more bytes are needed.
    ///
    /// # Errors
    /// Returns an error for bytes that are not messages of a fetch.
    pub(super) fn next(&mut self, data: &mut Bytes) -> Result<Option<ReceivedMessage>, Status> {
        loop {
            match &mut self.state {
                State::Header(header) => {
                    move_bytes(data, header, HEADER_BYTES);
                    if header.len() < HEADER_BYTES {
                        return Ok(None);
                    }
                    self.state = State::Start { len: message_len(header)?, head: Vec::new() };
                }
                State::Start { len, head } => {
                    let wanted = MAX_PREFIX_BYTES.min(*len);
                    move_bytes(data, head, wanted);
                    let Some((offset, prefix)) = chunk_start(head, *len) else {
                        if head.len() < wanted {
                            return Ok(None);
                        }
                        self.state = State::Message { len: *len, message: BytesMut::from(&head[..]) };
                        continue;
                    };
                    // The head may end with a few bytes of the data.
                    let data_start = Bytes::copy_from_slice(&head[prefix..]);
                    self.state = State::Chunk { offset, left: *len - prefix };
                    if !data_start.is_empty() {
                        return Ok(self.chunk(data_start));
                    }
                }
                State::Chunk { left, .. } => {
                    if *left == 0 {
                        self.state = State::default();
                        continue;
                    }
                    if data.is_empty() {
                        return Ok(None);
                    }
                    let part = data.split_to(data.len().min(*left));
                    return Ok(self.chunk(part));
                }
                State::Message { len, message } => {
                    let missing = *len - message.len();
                    message.put(data.split_to(data.len().min(missing)));
                    if message.len() < *len {
                        return Ok(None);
                    }
                    let frame = wire::FetchFrame::decode(std::mem::take(message).freeze());
                    self.state = State::default();
                    return frame
                        .map(|frame| Some(ReceivedMessage::Message(frame)))
                        .map_err(|error| malformed(&error));
                }
            }
        }
    }

    /// Returns received data of the current chunk, with its offset.
    fn chunk(&mut self, data: Bytes) -> Option<ReceivedMessage> {
        let State::Chunk { offset, left } = &mut self.state else { return None };
        let begin = *offset;
        *offset += data.len() as u64;
        *left -= data.len();
        Some(ReceivedMessage::Chunk { offset: begin, data })
    }
}

/// Moves bytes from `data` until `buffer` contains `wanted` bytes or `data` is empty.
fn move_bytes(data: &mut Bytes, buffer: &mut Vec<u8>, wanted: usize) {
    let bytes = wanted.saturating_sub(buffer.len()).min(data.len());
    buffer.extend_from_slice(&data[..bytes]);
    data.advance(bytes);
}

fn message_len(header: &[u8]) -> Result<usize, Status> {
    let [compressed, length @ ..] = header else { return Err(malformed(&"the header is missing")) };
    if *compressed != 0 {
        return Err(Status::internal("the fetch response is compressed, which the client does not support"));
    }
    let len = <[u8; 4]>::try_from(length).map(u32::from_be_bytes).map_err(|error| malformed(&error))?;
    match usize::try_from(len) {
        Ok(len) if len <= rpc::FETCH.max_response.bytes() => Ok(len),
        _ => Err(Status::out_of_range(format!("a fetch message of {len} bytes exceeds the limit"))),
    }
}

/// Returns the offset of a chunk in its piece, and of its data in its message of `len` bytes. Returns `None` if the message
/// does not end with the data of a chunk, or if `head` is too short.
fn chunk_start(head: &[u8], len: usize) -> Option<(u64, usize)> {
    let mut rest = head;
    let length_of = |field: u32, rest: &mut &[u8]| {
        let key = u64::from(field << 3 | WireType::LengthDelimited as u32);
        (decode_varint(rest).ok()? == key).then(|| decode_varint(rest).ok()).flatten()
    };
    let chunk_len = length_of(FRAME_CHUNK, &mut rest)?;
    let whole = (head.len() - rest.len()).checked_add(usize::try_from(chunk_len).ok()?)?;
    if whole != len {
        return None;
    }
    let mut offset = 0;
    let key = u64::from(CHUNK_OFFSET << 3);
    let mut after = rest;
    if decode_varint(&mut after).ok()? == key {
        offset = decode_varint(&mut after).ok()?;
        rest = after;
    }
    let data_len = length_of(CHUNK_DATA, &mut rest)?;
    let prefix = head.len() - rest.len();
    (prefix.checked_add(usize::try_from(data_len).ok()?)? == len).then_some((offset, prefix))
}

fn malformed(error: &impl std::fmt::Display) -> Status {
    Status::internal(format!("a fetch message is malformed: {error}"))
}

#[cfg(test)]
mod tests;
