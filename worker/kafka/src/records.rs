//! The records of a block: parts of one buffer.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::ops::Range;

use crate::error::KafkaError;
use crate::memory::BlockMemory;
use crate::native::Message;

/// Maximum number of bytes of the records of one block. A block usually has about 1 MiB.
pub(crate) const MAX_BLOCK_BYTES: usize = 1 << 30;

/// The requested parts of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordParts {
    /// Whether keys are read.
    pub key: bool,
    /// Whether headers are read.
    pub headers: bool,
    /// Whether payloads are read.
    pub value: bool,
}

/// A part of the buffer of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The first byte.
    pub start: u32,
    /// The number of bytes.
    pub len: u32,
}

impl Span {
    /// The span as a range.
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }
}

/// One record. Parts that were not requested are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KafkaRecord {
    /// The offset in the partition.
    pub offset: u64,
    /// Milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
    /// The key; `None` if the record has no key.
    pub key: Option<Span>,
    /// The headers as a JSON object.
    pub headers: Option<Span>,
    /// The payload; `None` for a tombstone.
    pub value: Option<Span>,
    /// Whether the record has no payload.
    pub is_tombstone: bool,
}

/// A range of offsets whose records were deleted or lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRecords {
    /// The offsets.
    pub offsets: Range<u64>,
    /// Why they no longer exist, as a part of a sentence.
    pub reason: String,
}

/// The records of a range of offsets. Offsets without a record are missing from the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordBlock {
    /// The bytes of keys, headers and payloads.
    pub data: Vec<u8>,
    /// The records, with ascending offsets.
    pub records: Vec<KafkaRecord>,
    /// The offset after the last offset that was read. Before the end of the range only if the size of the records was limited.
    pub next: u64,
    /// Ranges of offsets whose records were deleted or lost.
    pub missing: Vec<MissingRecords>,
    /// The size of all keys and payloads in bytes, requested or not.
    pub read_bytes: u64,
}

impl RecordBlock {
    pub(crate) fn with_capacity(records: usize, bytes: usize) -> Self {
        Self { data: Vec::with_capacity(bytes), records: Vec::with_capacity(records), ..Self::default() }
    }

    /// Copies the requested parts of a record. Fails if the block becomes too large.
    pub(crate) fn push(
        &mut self,
        message: &Message,
        parts: RecordParts,
        memory: &mut BlockMemory,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<(), KafkaError> {
        let (key, value) = (message.key(), message.value());
        let length = |part: Option<&[u8]>| part.map_or(0, <[u8]>::len);
        let bytes = length(key) + length(value);
        let headers = if parts.headers { headers_len(message) } else { 0 };
        let wanted =
            headers + if parts.key { length(key) } else { 0 } + if parts.value { length(value) } else { 0 };
        let block_bytes = self.data.len().saturating_add(wanted);
        if !memory.is_allowed(block_bytes as u64) || block_bytes > MAX_BLOCK_BYTES {
            return Err(self.too_large(message.offset() as u64, wanted as u64, memory));
        }
        memory.grow(block_bytes as u64, is_cancelled)?;
        self.read_bytes += bytes as u64;
        let key = parts.key.then(|| key.map(|key| self.append(key))).flatten();
        let headers = parts.headers.then(|| self.append_headers(message));
        self.read_bytes += headers.map_or(0, |span| u64::from(span.len));
        memory.grow(self.data.len() as u64, is_cancelled)?;
        let is_tombstone = value.is_none();
        let value = parts.value.then(|| value.map(|value| self.append(value))).flatten();
        let (offset, timestamp_ms) = (message.offset() as u64, message.timestamp_ms());
        self.records.push(KafkaRecord { offset, timestamp_ms, key, headers, value, is_tombstone });
        Ok(())
    }

    /// The error of a record that does not fit the block.
    fn too_large(&self, offset: u64, bytes: u64, memory: &BlockMemory) -> KafkaError {
        let limit = memory.limit().min(MAX_BLOCK_BYTES as u64);
        let total = self.data.len() as u64 + bytes;
        let subject = match self.records.first() {
            Some(first) if bytes <= limit => {
                let count = self.records.len() + 1;
                format!("the {count} records from offset {} to {offset} have {total} bytes", first.offset)
            }
            _ => format!("the record at offset {offset} has {bytes} bytes"),
        };
        let needed = if bytes <= limit { total } else { bytes };
        let advice = if needed > MAX_BLOCK_BYTES as u64 {
            "read a shorter range, or store large payloads in an object store and their URLs in the topic"
                .to_owned()
        } else {
            memory.advice(needed)
        };
        KafkaError::permanent(format!(
            "{subject}, but this worker reads at most {limit} bytes of records at a time: {advice}"
        ))
    }

    /// The bytes of a part.
    pub fn bytes(&self, span: Span) -> &[u8] {
        &self.data[span.range()]
    }

    fn append(&mut self, part: &[u8]) -> Span {
        let start = self.data.len() as u32;
        self.data.extend_from_slice(part);
        Span { start, len: part.len() as u32 }
    }

    fn append_headers(&mut self, message: &Message) -> Span {
        let start = self.data.len();
        let mut headers: BTreeMap<String, String> = BTreeMap::new();
        message.for_each_header(|name, value| {
            headers.insert(String::from_utf8_lossy(name).into_owned(), header_value(value));
        });
        self.data.push(b'{');
        for (number, (name, value)) in headers.into_iter().enumerate() {
            if number > 0 {
                self.data.push(b',');
            }
            self.data.extend_from_slice(json_text(&name).as_bytes());
            self.data.push(b':');
            self.data.extend_from_slice(value.as_bytes());
        }
        self.data.push(b'}');
        Span { start: start as u32, len: (self.data.len() - start) as u32 }
    }
}

/// The size of the headers of a record in bytes, before they become JSON.
fn headers_len(message: &Message) -> usize {
    let mut bytes = 0;
    message.for_each_header(|name, value| bytes += name.len() + value.map_or(0, <[u8]>::len));
    bytes
}

/// Returns a header's value as JSON: text, or a list of bytes if it is not UTF-8.
fn header_value(value: Option<&[u8]>) -> String {
    match value.map(|value| (value, std::str::from_utf8(value))) {
        None => "null".to_owned(),
        Some((_, Ok(text))) => json_text(text),
        Some((bytes, Err(_))) => {
            let mut list = String::with_capacity(4 * bytes.len() + 2);
            for byte in bytes {
                list.push(if list.is_empty() { '[' } else { ',' });
                // Writing to text cannot fail.
                let _ = write!(list, "{byte}");
            }
            list.push(']');
            list
        }
    }
}

fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_text_or_bytes() {
        assert_eq!(header_value(None), "null");
        assert_eq!(header_value(Some("ä\"".as_bytes())), r#""ä\"""#);
        assert_eq!(header_value(Some(&[1, 255])), "[1,255]");
    }
}
