//! The payload of a log entry: a version, a kind, then JSON.

use feedline_cluster::records::Record;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

/// The payload of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EntryPayload {
    /// A new leader, with the incarnation of its state machine.
    Lead { incarnation: u64 },
    /// Records that a leader has proposed.
    Records(Vec<Record>),
}

/// Maximum size of an entry with several records. A larger record has its own entry.
const MAX_ENTRY_BYTES: usize = 8 << 20;

const KIND_LEAD: u8 = 1;
const KIND_RECORDS: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Lead {
    #[serde(rename = "life")]
    incarnation: u64,
}

impl EntryPayload {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Lead { incarnation } => {
                (KIND_LEAD, serde_json::to_vec(&Lead { incarnation: *incarnation }))
            }
            Self::Records(records) => (KIND_RECORDS, serde_json::to_vec(records)),
        };
        let mut bytes = vec![VERSION, kind];
        bytes.extend(body.expect("records can be encoded as JSON"));
        bytes
    }

    /// Encodes records, in order, as one or more entries of at most [`MAX_ENTRY_BYTES`]. Returns the bytes and the records
    /// of each entry.
    pub(crate) fn encode_records(records: Vec<Record>) -> Vec<(Vec<u8>, Vec<Record>)> {
        Self::encode_records_within(records, MAX_ENTRY_BYTES)
    }

    fn encode_records_within(records: Vec<Record>, max_bytes: usize) -> Vec<(Vec<u8>, Vec<Record>)> {
        let begin = || vec![VERSION, KIND_RECORDS, b'['];
        let mut entries = Vec::new();
        let (mut entry, mut entry_records) = (begin(), Vec::new());
        for record in records {
            let body = serde_json::to_vec(&record).expect("records can be encoded as JSON");
            // The 2 additional bytes are a separator and the closing bracket.
            if !entry_records.is_empty() && entry.len() + body.len() + 2 > max_bytes {
                entry.push(b']');
                entries.push((std::mem::replace(&mut entry, begin()), std::mem::take(&mut entry_records)));
            }
            if !entry_records.is_empty() {
                entry.push(b',');
            }
            entry.extend(body);
            entry_records.push(record);
        }
        entry.push(b']');
        entries.push((entry, entry_records));
        entries
    }

    /// Decodes a payload. The error is part of a sentence.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (version, kind, body) = match bytes {
            [version, kind, body @ ..] => (*version, *kind, body),
            _ => return Err("a log entry is truncated".to_owned()),
        };
        if version != VERSION {
            return Err(format!(
                "a log entry has version {version}, but this release reads version {VERSION}"
            ));
        }
        match kind {
            KIND_LEAD => serde_json::from_slice(body).map(|Lead { incarnation }| Self::Lead { incarnation }),
            KIND_RECORDS => serde_json::from_slice(body).map(Self::Records),
            _ => return Err(format!("a log entry has unknown kind {kind}; upgrade to a newer release")),
        }
        .map_err(|error| format!("invalid log entry: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use feedline_data::messages::JobState;

    use super::*;

    #[test]
    fn encoded_payloads_decode_to_the_same_payloads() {
        let record = Record::Ended { job: JobId(7), state: JobState::Completed };
        for payload in [EntryPayload::Lead { incarnation: u64::MAX }, EntryPayload::Records(vec![record])] {
            assert_eq!(EntryPayload::from_bytes(&payload.to_bytes()), Ok(payload));
        }
    }

    #[test]
    fn records_are_split_into_entries_of_a_maximum_size() {
        let records: Vec<Record> =
            (1..=100).map(|job| Record::Ended { job: JobId(job), state: JobState::Completed }).collect();
        let whole = EntryPayload::Records(records.clone()).to_bytes();
        let one = [(whole.clone(), records.clone())];
        assert_eq!(
            EntryPayload::encode_records(records.clone()),
            one,
            "one entry has the bytes of a single payload"
        );
        let empty = [(EntryPayload::Records(Vec::new()).to_bytes(), Vec::new())];
        assert_eq!(EntryPayload::encode_records(Vec::new()), empty);
        for max_bytes in [0, 1, 100, 1_000, whole.len() - 1, whole.len()] {
            let entries = EntryPayload::encode_records_within(records.clone(), max_bytes);
            let mut read = Vec::new();
            for (entry, entry_records) in &entries {
                assert_eq!(EntryPayload::from_bytes(entry), Ok(EntryPayload::Records(entry_records.clone())));
                assert!(entry.len() <= max_bytes || entry_records.len() == 1, "{} bytes", entry.len());
                read.extend(entry_records.iter().cloned());
            }
            assert_eq!(read, records);
            assert_eq!(entries.len() == 1, max_bytes == whole.len());
        }
    }

    #[test]
    fn invalid_payloads_are_rejected() {
        for (bytes, expected) in [
            (&b""[..], "truncated"),
            (&[9, 1][..], "version 9"),
            (&[1, 9][..], "kind 9"),
            (&[1, 2, b'x'][..], "invalid log entry"),
        ] {
            let error = EntryPayload::from_bytes(bytes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
