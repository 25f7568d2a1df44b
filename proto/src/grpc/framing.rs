//! gRPC messages of a fetch, laid by hand around the bytes of a batch, so that these are never copied: tonic's codec
//! copies them once on each end. On the wire it is plain gRPC.

use std::collections::VecDeque;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, decode_varint, encode_key, encode_varint, encoded_len_varint};
use tonic::Status;

use crate::rpc;
use crate::wire;

/// A gRPC message opens with one byte for its compression and four for its length.
const HEADER_BYTES: usize = 5;
/// Most bytes of a message before the bytes of a chunk: four keys and lengths of at most ten bytes each.
const MAX_PREFIX_BYTES: usize = 44;
/// Numbers of the fields on the way from a frame to a chunk's bytes, as data.proto has them.
const FRAME_CHUNK: u32 = 3;
const CHUNK_OFFSET: u32 = 1;
const CHUNK_DATA: u32 = 2;

/// Appends a message.
pub(super) fn put_message(frame: &wire::FetchFrame, out: &mut VecDeque<Bytes>) {
    let len = frame.encoded_len();
    let mut message = BytesMut::with_capacity(HEADER_BYTES + len);
    put_header(len, &mut message);
    frame.encode(&mut message).expect("it has the room that it asked for");
    out.push_back(message.freeze());
}

/// Appends a chunk that shares its memory.
pub(super) fn put_chunk(offset: u64, data: Bytes, out: &mut VecDeque<Bytes>) {
    out.push_back(chunk_prefix(offset, data.len()));
    out.push_back(data);
}

/// What comes before `len` bytes of a chunk.
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

/// What was received.
#[derive(Debug, PartialEq)]
pub(super) enum ReceivedMessage {
    /// Bytes of a chunk; those of one chunk may come in several parts.
    Chunk {
        /// Place of the first byte in the piece's buffer.
        offset: u64,
        data: Bytes,
    },
    /// Any other message.
    Message(wire::FetchFrame),
}

/// Takes messages apart as their bytes come.
#[derive(Debug, Default)]
pub(super) struct FrameParser {
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a message: what came of its header.
    Header(Vec<u8>),
    /// At the start of a message of `len` bytes: what came of it.
    Start { len: usize, head: Vec<u8> },
    /// Within the bytes of a chunk.
    Chunk { offset: u64, left: usize },
    /// Within another message of `len` bytes.
    Message { len: usize, message: BytesMut },
}

impl Default for State {
    fn default() -> Self {
        Self::Header(Vec::with_capacity(HEADER_BYTES))
    }
}

impl FrameParser {
    /// Whether it stands between two messages.
    pub(super) fn is_between(&self) -> bool {
        match &self.state {
            State::Header(header) => header.is_empty(),
            State::Chunk { left, .. } => *left == 0,
            State::Start { .. } | State::Message { .. } => false,
        }
    }

    /// Takes bytes from `data`; `None` when all are taken and more are needed.
    ///
    /// # Errors
    /// For bytes that are no messages of a fetch.
    pub(super) fn next(&mut self, data: &mut Bytes) -> Result<Option<ReceivedMessage>, Status> {
        loop {
            match &mut self.state {
                State::Header(header) => {
                    take(data, header, HEADER_BYTES);
                    if header.len() < HEADER_BYTES {
                        return Ok(None);
                    }
                    self.state = State::Start { len: message_len(header)?, head: Vec::new() };
                }
                State::Start { len, head } => {
                    let wanted = MAX_PREFIX_BYTES.min(*len);
                    take(data, head, wanted);
                    let Some((offset, prefix)) = chunk_start(head, *len) else {
                        if head.len() < wanted {
                            return Ok(None);
                        }
                        self.state = State::Message { len: *len, message: BytesMut::from(&head[..]) };
                        continue;
                    };
                    // A few bytes of the chunk itself may have been taken with its prefix.
                    let beyond = Bytes::copy_from_slice(&head[prefix..]);
                    self.state = State::Chunk { offset, left: *len - prefix };
                    if !beyond.is_empty() {
                        return Ok(self.chunk(beyond));
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
                        .map_err(|error| damaged(&error));
                }
            }
        }
    }

    /// Notes that `data` of the present chunk came.
    fn chunk(&mut self, data: Bytes) -> Option<ReceivedMessage> {
        let State::Chunk { offset, left } = &mut self.state else { return None };
        let begin = *offset;
        *offset += data.len() as u64;
        *left -= data.len();
        Some(ReceivedMessage::Chunk { offset: begin, data })
    }
}

/// Moves bytes until `buffer` has `wanted`, or there are no more.
fn take(data: &mut Bytes, buffer: &mut Vec<u8>, wanted: usize) {
    let bytes = wanted.saturating_sub(buffer.len()).min(data.len());
    buffer.extend_from_slice(&data[..bytes]);
    data.advance(bytes);
}

fn message_len(header: &[u8]) -> Result<usize, Status> {
    let [compressed, length @ ..] = header else { return Err(damaged(&"it has no header")) };
    if *compressed != 0 {
        return Err(Status::internal("a fetch came compressed, which was not asked for"));
    }
    let len = <[u8; 4]>::try_from(length).map(u32::from_be_bytes).map_err(|error| damaged(&error))?;
    match usize::try_from(len) {
        Ok(len) if len <= rpc::FETCH.max_response.bytes() => Ok(len),
        _ => Err(Status::out_of_range(format!("a message of a fetch has {len} bytes"))),
    }
}

/// Where a chunk's bytes start in the piece and in its message of `len` bytes; `None` when the message is none that a
/// chunk's bytes end, or not enough of it is there.
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
    let mut ahead = rest;
    if decode_varint(&mut ahead).ok()? == key {
        offset = decode_varint(&mut ahead).ok()?;
        rest = ahead;
    }
    let data_len = length_of(CHUNK_DATA, &mut rest)?;
    let prefix = head.len() - rest.len();
    (prefix.checked_add(usize::try_from(data_len).ok()?)? == len).then_some((offset, prefix))
}

fn damaged(error: &impl std::fmt::Display) -> Status {
    Status::internal(format!("a message of a fetch is damaged: {error}"))
}

#[cfg(test)]
mod tests;
