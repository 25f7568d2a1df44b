//! The payload of a log entry: a version, a kind, then JSON.

use feedline_cluster::records::Record;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

/// The payload of an entry.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EntryPayload {
    /// A leader begins, with this life of the state machine.
    Lead { life: u64 },
    /// The records of a leader.
    Decided(Vec<Record>),
}

/// Most bytes of an entry with several records. A larger record has an entry alone: a message contains at least one entry.
const MAX_ENTRY_BYTES: usize = 8 << 20;

const LEAD: u8 = 1;
const DECIDED: u8 = 2;

#[derive(Serialize, Deserialize)]
struct Lead {
    life: u64,
}

impl EntryPayload {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Lead { life } => (LEAD, serde_json::to_vec(&Lead { life: *life })),
            Self::Decided(records) => (DECIDED, serde_json::to_vec(records)),
        };
        let mut bytes = vec![VERSION, kind];
        bytes.extend(body.expect("records can be encoded as JSON"));
        bytes
    }

    /// Encodes records as at least one entry, each of at most [`MAX_ENTRY_BYTES`], in order. Returns the bytes and the records of
    /// each entry.
    pub(crate) fn encode_records(records: Vec<Record>) -> Vec<(Vec<u8>, Vec<Record>)> {
        Self::encode_records_within(records, MAX_ENTRY_BYTES)
    }

    fn encode_records_within(records: Vec<Record>, max_bytes: usize) -> Vec<(Vec<u8>, Vec<Record>)> {
        let begin = || vec![VERSION, DECIDED, b'['];
        let mut entries = Vec::new();
        let (mut entry, mut own) = (begin(), Vec::new());
        for record in records {
            let body = serde_json::to_vec(&record).expect("records can be encoded as JSON");
            // With a separator and the end of the list.
            if !own.is_empty() && entry.len() + body.len() + 2 > max_bytes {
                entry.push(b']');
                entries.push((std::mem::replace(&mut entry, begin()), std::mem::take(&mut own)));
            }
            if !own.is_empty() {
                entry.push(b',');
            }
            entry.extend(body);
            own.push(record);
        }
        entry.push(b']');
        entries.push((entry, own));
        entries
    }

    /// Decodes a payload. The error is one clause.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (version, kind, body) = match bytes {
            [version, kind, body @ ..] => (*version, *kind, body),
            _ => return Err("a log entry is truncated".to_owned()),
        };
        if version != VERSION {
            return Err(format!(
                "a log entry has version {version}, and this release reads version {VERSION}"
            ));
        }
        match kind {
            LEAD => serde_json::from_slice(body).map(|Lead { life }| Self::Lead { life }),
            DECIDED => serde_json::from_slice(body).map(Self::Decided),
            _ => return Err(format!("a log entry has the unknown kind {kind}; start a newer release")),
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
    fn payloads_survive_encoding() {
        let record = Record::Ended { job: JobId(7), state: JobState::Completed };
        for payload in [EntryPayload::Lead { life: u64::MAX }, EntryPayload::Decided(vec![record])] {
            assert_eq!(EntryPayload::from_bytes(&payload.to_bytes()), Ok(payload));
        }
    }

    #[test]
    fn many_records_become_several_entries() {
        let records: Vec<Record> =
            (1..=100).map(|job| Record::Ended { job: JobId(job), state: JobState::Completed }).collect();
        let whole = EntryPayload::Decided(records.clone()).to_bytes();
        let one = [(whole.clone(), records.clone())];
        assert_eq!(
            EntryPayload::encode_records(records.clone()),
            one,
            "one entry has the bytes of a single payload"
        );
        let empty = [(EntryPayload::Decided(Vec::new()).to_bytes(), Vec::new())];
        assert_eq!(EntryPayload::encode_records(Vec::new()), empty);
        for max_bytes in [0, 1, 100, 1_000, whole.len() - 1, whole.len()] {
            let entries = EntryPayload::encode_records_within(records.clone(), max_bytes);
            let mut read = Vec::new();
            for (entry, own) in &entries {
                assert_eq!(EntryPayload::from_bytes(entry), Ok(EntryPayload::Decided(own.clone())));
                assert!(entry.len() <= max_bytes || own.len() == 1, "{} bytes", entry.len());
                read.extend(own.iter().cloned());
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
