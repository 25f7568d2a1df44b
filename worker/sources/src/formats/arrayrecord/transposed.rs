//! Transposed chunks: the values of each protobuf field are in a buffer of their own, and a state machine describes how to
//! join them to records. Records are built from their end to their start.

use bytes::Bytes;

use super::chunk::{decompress, take_varint, truncated};
use super::framing::RecordChunk;

/// Wire types of protobuf, and the wire type that ends a submessage in the state machine.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const LENGTH_DELIMITED: u32 = 2;
const START_GROUP: u32 = 3;
const END_GROUP: u32 = 4;
const FIXED32: u32 = 5;
const SUBMESSAGE_END: u32 = 6;
/// Subtypes of varints: from here on, the subtype contains the value.
const FIRST_INLINE: u8 = 10;
const MAX_INLINE: u8 = FIRST_INLINE + 0x7f;

/// Maximum size of the header in addition to the size of the records. A state needs about 8 bytes.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Size of the header and of the transitions that a chunk with small records may have.
const MIN_LIMIT_BYTES: u64 = 64 << 10;
/// Maximum size of the length of a record in the last buffer.
const MAX_LENGTH_BYTES: u64 = 10;

/// What a state adds to the current record.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Action {
    Nothing,
    /// A record that is not a protobuf message, from a buffer.
    Record {
        buffer: usize,
    },
    StartMessage,
    StartSubmessage,
    EndSubmessage,
    /// The tag alone.
    Tag,
    /// The tag and a value of one byte.
    Inline(u8),
    /// The tag and a varint of this length, which is stored without its continuation bits.
    Varint {
        buffer: usize,
        length: usize,
    },
    /// The tag and a value of this length.
    Fixed {
        buffer: usize,
        length: usize,
    },
    /// The tag, the length and the value.
    Bytes {
        buffer: usize,
    },
}

#[derive(Debug, Clone)]
struct State {
    action: Action,
    tag: u32,
    next: usize,
    /// Whether the next state follows without a transition.
    is_implicit: bool,
}

/// Decodes the records of a chunk: the concatenated records and their sizes. The caller has checked the number and the size of
/// the records in the header of the chunk.
pub(super) fn decode_transposed(chunk: &RecordChunk) -> Result<(Bytes, Vec<usize>), String> {
    // Every buffer contains parts of the records, or their lengths. Every transition adds to a record.
    let buffers_bytes = chunk.decoded_bytes.saturating_add(chunk.records.saturating_mul(MAX_LENGTH_BYTES));
    let machine_bytes = buffers_bytes.saturating_add(MIN_LIMIT_BYTES);
    let mut data = chunk.data.as_slice();
    let (&compression, rest) = data.split_first().ok_or_else(truncated)?;
    data = rest;
    let header = take_bytes(&mut data)?;
    let header = decompress(compression, header, machine_bytes.min(MAX_HEADER_BYTES))?;
    let mut header = header.as_ref();
    let buckets = read_buckets(&mut header, &mut data, compression, buffers_bytes)?;
    let buffers = divide(&mut header, &buckets)?;
    let (states, first) = parse_states(&mut header, buffers.len())?;
    let transitions = decompress(compression, data, machine_bytes)?;
    let lengths = buffers.last().copied().unwrap_or_default();
    let mut builder = RecordBuilder {
        states: &states,
        buffers,
        lengths,
        stack: Vec::new(),
        reversed: Vec::new(),
        ends: Vec::new(),
        max_bytes: chunk.decoded_bytes as usize,
        max_records: usize::try_from(chunk.records).map_err(|_| wrong())?,
    };
    builder.run(first, &transitions)?;
    builder.finish(chunk.decoded_bytes)
}

fn wrong() -> String {
    "the state machine of a transposed chunk is invalid: the file is corrupted".to_owned()
}

fn take_number(bytes: &mut &[u8]) -> Result<usize, String> {
    let number = take_varint(bytes)?;
    u32::try_from(number).map(|number| number as usize).map_err(|_| wrong())
}

fn take<'a>(bytes: &mut &'a [u8], size: usize) -> Result<&'a [u8], String> {
    let (taken, rest) = bytes.split_at_checked(size).ok_or_else(truncated)?;
    *bytes = rest;
    Ok(taken)
}

/// Removes bytes with their length from the start of `bytes`.
fn take_bytes<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], String> {
    let size = usize::try_from(take_varint(bytes)?).map_err(|_| truncated())?;
    take(bytes, size)
}

/// Reads the numbers of buckets and buffers, and decompresses the buckets. Returns the buckets and the number of buffers.
fn read_buckets(
    header: &mut &[u8],
    data: &mut &[u8],
    compression: u8,
    max_bytes: u64,
) -> Result<(Vec<Bytes>, usize), String> {
    let (buckets, buffers) = (take_number(header)?, take_number(header)?);
    let mut left = max_bytes;
    let mut read = Vec::new();
    for _ in 0..buckets {
        let size = usize::try_from(take_varint(header)?).map_err(|_| truncated())?;
        let bucket = decompress(compression, take(data, size)?, left)?;
        left -= bucket.len() as u64;
        read.push(bucket);
    }
    Ok((read, buffers))
}

/// Divides the buckets into buffers.
fn divide<'a>(
    header: &mut &[u8],
    (buckets, count): &'a (Vec<Bytes>, usize),
) -> Result<Vec<&'a [u8]>, String> {
    let mut rests = buckets.iter().map(Bytes::as_ref);
    let mut rest: &[u8] = rests.next().unwrap_or_default();
    let mut buffers = Vec::new();
    for _ in 0..*count {
        let size = usize::try_from(take_varint(header)?).map_err(|_| truncated())?;
        buffers.push(take(&mut rest, size)?);
        while rest.is_empty() {
            let Some(next) = rests.next() else { break };
            rest = next;
        }
    }
    if rest.is_empty() && rests.next().is_none() { Ok(buffers) } else { Err(wrong()) }
}

/// Parses the states, and the index of the first state.
fn parse_states(header: &mut &[u8], buffers: usize) -> Result<(Vec<State>, usize), String> {
    let count = take_number(header)?;
    let tags = (0..count).map(|_| take_number(header)).collect::<Result<Vec<_>, _>>()?;
    let nexts = (0..count).map(|_| take_number(header)).collect::<Result<Vec<_>, _>>()?;
    let varints = tags.iter().filter(|tag| is_tag(**tag as u32) && **tag as u32 & 7 == VARINT).count();
    let mut subtypes = take(header, varints)?.iter().copied();
    let mut states = Vec::new();
    for (tag, next) in tags.into_iter().zip(nexts) {
        let is_implicit = next >= count;
        let next = if is_implicit { next - count } else { next };
        if next >= count {
            return Err(wrong());
        }
        let mut tag = tag as u32;
        let action = parse_action(&mut tag, header, &mut subtypes, buffers)?;
        states.push(State { action, tag, next, is_implicit });
    }
    let first = take_number(header)?;
    if first < count && header.is_empty() { Ok((states, first)) } else { Err(wrong()) }
}

fn is_tag(tag: u32) -> bool {
    tag >= 8 && tag & 7 <= FIXED32
}

/// Parses the action of a state. Replaces the tag of a state that ends a submessage by the tag of the submessage.
fn parse_action(
    tag: &mut u32,
    header: &mut &[u8],
    subtypes: &mut impl Iterator<Item = u8>,
    buffers: usize,
) -> Result<Action, String> {
    let mut buffer =
        || take_number(header).and_then(|buffer| if buffer < buffers { Ok(buffer) } else { Err(wrong()) });
    match *tag {
        0 => return Ok(Action::Nothing),
        1 => return Ok(Action::Record { buffer: buffer()? }),
        2 => return Ok(Action::StartSubmessage),
        3 => return Ok(Action::StartMessage),
        _ => {}
    }
    if *tag & 7 == SUBMESSAGE_END {
        *tag -= SUBMESSAGE_END - LENGTH_DELIMITED;
        return if is_tag(*tag) { Ok(Action::EndSubmessage) } else { Err(wrong()) };
    }
    if !is_tag(*tag) {
        return Err(wrong());
    }
    Ok(match *tag & 7 {
        VARINT => match subtypes.next().ok_or_else(wrong)? {
            subtype @ 0..FIRST_INLINE => {
                Action::Varint { buffer: buffer()?, length: usize::from(subtype) + 1 }
            }
            subtype @ FIRST_INLINE..=MAX_INLINE => Action::Inline(subtype - FIRST_INLINE),
            _ => return Err(wrong()),
        },
        FIXED64 => Action::Fixed { buffer: buffer()?, length: 8 },
        FIXED32 => Action::Fixed { buffer: buffer()?, length: 4 },
        LENGTH_DELIMITED => Action::Bytes { buffer: buffer()? },
        START_GROUP | END_GROUP => Action::Tag,
        _ => return Err(wrong()),
    })
}

/// Builds records from their end to their start.
struct RecordBuilder<'a> {
    states: &'a [State],
    buffers: Vec<&'a [u8]>,
    /// The lengths of the records that are not protobuf messages, which are in the last buffer.
    lengths: &'a [u8],
    /// The open submessages: the output size at their end, and their tag.
    stack: Vec<(usize, u32)>,
    /// The output in reverse order.
    reversed: Vec<u8>,
    /// The output sizes after each record.
    ends: Vec<usize>,
    max_bytes: usize,
    max_records: usize,
}

impl RecordBuilder<'_> {
    fn run(&mut self, first: usize, transitions: &[u8]) -> Result<(), String> {
        let states = self.states;
        let mut transitions = transitions.iter();
        let mut index = first;
        let mut repeats = u8::from(states[first].is_implicit);
        // A longer path without a transition is a cycle.
        let mut implicit_steps = 0;
        // Every step adds to the output, ends a submessage, or belongs to a transition.
        let max_steps =
            1_024 + 4 * (self.max_bytes as u64 + self.max_records as u64 + transitions.len() as u64);
        for _ in 0..max_steps {
            let state = states.get(index).ok_or_else(wrong)?;
            self.apply(state)?;
            index = state.next;
            if repeats > 0 {
                repeats -= u8::from(!states[index].is_implicit);
                implicit_steps += 1;
                if implicit_steps > 4 * states.len() {
                    return Err(wrong());
                }
                continue;
            }
            implicit_steps = 0;
            let Some(transition) = transitions.next() else { return Ok(()) };
            index += usize::from(transition >> 2);
            repeats = (transition & 3) + u8::from(states.get(index).ok_or_else(wrong)?.is_implicit);
        }
        Err(wrong())
    }

    fn apply(&mut self, state: &State) -> Result<(), String> {
        match state.action {
            Action::Nothing => Ok(()),
            Action::Record { buffer } => {
                let length = take_number(&mut self.lengths)?;
                let record = take(&mut self.buffers[buffer], length)?;
                self.prepend(record)?;
                self.end_record()
            }
            Action::StartMessage => self.end_record(),
            Action::EndSubmessage => {
                // Every open submessage needs output.
                if self.stack.len() > self.max_bytes {
                    return Err(wrong());
                }
                self.stack.push((self.reversed.len(), state.tag));
                Ok(())
            }
            Action::StartSubmessage => {
                let (end, tag) = self.stack.pop().ok_or_else(wrong)?;
                let length = self.reversed.len() - end;
                self.prepend(&varint(length as u64))?;
                self.prepend(&varint(u64::from(tag)))
            }
            Action::Tag => self.prepend(&varint(u64::from(state.tag))),
            Action::Inline(value) => self.prepend_field(state.tag, &[value]),
            Action::Varint { buffer, length } => {
                let mut value = [0; 10];
                let value = &mut value[..length];
                value.copy_from_slice(take(&mut self.buffers[buffer], length)?);
                value[..length - 1].iter_mut().for_each(|byte| *byte |= 0x80);
                self.prepend_field(state.tag, value)
            }
            Action::Fixed { buffer, length } => {
                let value = take(&mut self.buffers[buffer], length)?;
                self.prepend_field(state.tag, value)
            }
            Action::Bytes { buffer } => {
                let mut rest = self.buffers[buffer];
                let whole = rest;
                take_bytes(&mut rest)?;
                self.buffers[buffer] = rest;
                self.prepend_field(state.tag, &whole[..whole.len() - rest.len()])
            }
        }
    }

    fn prepend_field(&mut self, tag: u32, value: &[u8]) -> Result<(), String> {
        self.prepend(value)?;
        self.prepend(&varint(u64::from(tag)))
    }

    fn prepend(&mut self, bytes: &[u8]) -> Result<(), String> {
        if self.reversed.len() + bytes.len() > self.max_bytes {
            return Err("the records of a transposed chunk exceed its size: the file is corrupted".to_owned());
        }
        self.reversed.extend(bytes.iter().rev());
        Ok(())
    }

    fn end_record(&mut self) -> Result<(), String> {
        if !self.stack.is_empty() || self.ends.len() == self.max_records {
            return Err(wrong());
        }
        self.ends.push(self.reversed.len());
        Ok(())
    }

    fn finish(mut self, decoded_bytes: u64) -> Result<(Bytes, Vec<usize>), String> {
        let last = self.ends.last().copied().unwrap_or(0);
        let is_complete = self.stack.is_empty()
            && self.ends.len() == self.max_records
            && last == self.reversed.len()
            && last as u64 == decoded_bytes;
        if !is_complete {
            return Err(wrong());
        }
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let mut sizes: Vec<usize> = self.ends.iter().zip(starts).map(|(end, start)| end - start).collect();
        sizes.reverse();
        self.reversed.reverse();
        Ok((self.reversed.into(), sizes))
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn records_that_are_not_messages_are_joined() {
        // Two records of a chunk that the library array_record wrote.
        let data = b"\0\x0b\x02\x02\x18\x02\x18\x02\x01\x01\0\0\0rec1rec1rec1rec0rec0rec0\x0c\x0c\0";
        let chunk = RecordChunk { kind: b't', records: 2, decoded_bytes: 24, data: data.to_vec() };
        let found = decode_transposed(&chunk);
        assert_eq!(found.unwrap(), (Bytes::from_static(b"rec0rec0rec0rec1rec1rec1"), vec![12, 12]));
        for length in 0..data.len() {
            let chunk =
                RecordChunk { kind: b't', records: 2, decoded_bytes: 24, data: data[..length].to_vec() };
            assert!(decode_transposed(&chunk).is_err(), "{length}");
        }
    }

    #[test]
    fn a_cycle_without_transitions_ends() {
        // No buckets and no buffers; one state that does nothing, and follows itself without a transition.
        let header = [0, 0, 1, 0, 1, 0];
        let data = [&[0, header.len() as u8][..], &header].concat();
        let chunk = RecordChunk { kind: b't', records: 1 << 40, decoded_bytes: 1 << 50, data };
        assert_eq!(decode_transposed(&chunk), Err(wrong()));
    }

    proptest! {
        #[test]
        fn damaged_chunks_are_errors(data in prop::collection::vec(0_u8..40, 0..120), records in 0_u64..5) {
            let chunk = RecordChunk { kind: b't', records, decoded_bytes: 40, data: [vec![0], data].concat() };
            if let Ok((values, sizes)) = decode_transposed(&chunk) {
                prop_assert_eq!(sizes.len() as u64, records);
                prop_assert_eq!(sizes.iter().sum::<usize>(), values.len());
            }
        }
    }
}
