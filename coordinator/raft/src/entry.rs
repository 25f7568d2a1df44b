//! What entries of the log say: a version, a kind, then JSON.

use feedline_cluster::records::Record;
use serde::{Deserialize, Serialize};

const VERSION: u8 = 1;

/// What an entry says.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EntryPayload {
    /// A leader begins: its life of the state machine is the one of this number.
    Lead { life: u64 },
    /// A leader's decisions, which follow from those before.
    Decided(Vec<Record>),
}

/// Bytes of an entry of decisions, but for one that a single record fills: a message has one entry at least, however large it is.
const MOST_BYTES: usize = 8 << 20;

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
        bytes.extend(body.expect("numbers, texts and lists of them always have a JSON form"));
        bytes
    }

    /// Decisions as entries of at most [`MOST_BYTES`], in their order; one entry at least.
    pub(crate) fn decided(records: &[Record]) -> Vec<Vec<u8>> {
        Self::decided_within(records, MOST_BYTES)
    }

    fn decided_within(records: &[Record], most_bytes: usize) -> Vec<Vec<u8>> {
        let mut entries = Vec::new();
        let mut entry = vec![VERSION, DECIDED, b'['];
        let empty = entry.len();
        for record in records {
            let body =
                serde_json::to_vec(record).expect("numbers, texts and lists of them always have a JSON form");
            if entry.len() > empty {
                // With what stands between records and at the end.
                if entry.len() + body.len() + 2 > most_bytes {
                    entry.push(b']');
                    entries.push(std::mem::replace(&mut entry, vec![VERSION, DECIDED, b'[']));
                } else {
                    entry.push(b',');
                }
            }
            entry.extend(body);
        }
        entry.push(b']');
        entries.push(entry);
        entries
    }

    /// Reads one; one clause where that cannot be done.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let (version, kind, body) = match bytes {
            [version, kind, body @ ..] => (*version, *kind, body),
            _ => return Err("an entry is cut short".to_owned()),
        };
        if version != VERSION {
            return Err(format!("an entry is of version {version}, this release reads version {VERSION}"));
        }
        match kind {
            LEAD => serde_json::from_slice(body).map(|Lead { life }| Self::Lead { life }),
            DECIDED => serde_json::from_slice(body).map(Self::Decided),
            _ => return Err(format!("an entry is of kind {kind}, which this release does not know")),
        }
        .map_err(|error| format!("an entry cannot be read: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use feedline_data::ids::JobId;
    use feedline_data::messages::JobState;

    use super::*;

    #[test]
    fn payloads_are_read_as_they_were_written() {
        let record = Record::Ended { job: JobId(7), state: JobState::Completed };
        for payload in [EntryPayload::Lead { life: u64::MAX }, EntryPayload::Decided(vec![record])] {
            assert_eq!(EntryPayload::from_bytes(&payload.to_bytes()), Ok(payload));
        }
    }

    #[test]
    fn many_decisions_are_several_entries() {
        let records: Vec<Record> =
            (1..=100).map(|job| Record::Ended { job: JobId(job), state: JobState::Completed }).collect();
        let whole = EntryPayload::Decided(records.clone()).to_bytes();
        assert_eq!(
            EntryPayload::decided(&records),
            std::slice::from_ref(&whole),
            "the same bytes where one is enough"
        );
        assert_eq!(EntryPayload::decided(&[]), [EntryPayload::Decided(Vec::new()).to_bytes()]);
        for most_bytes in [0, 1, 100, 1_000, whole.len() - 1, whole.len()] {
            let entries = EntryPayload::decided_within(&records, most_bytes);
            let mut read = Vec::new();
            for entry in &entries {
                let Ok(EntryPayload::Decided(records)) = EntryPayload::from_bytes(entry) else {
                    panic!("{entry:?}")
                };
                assert!(entry.len() <= most_bytes || records.len() == 1, "{} bytes", entry.len());
                read.extend(records);
            }
            assert_eq!(read, records);
            assert_eq!(entries.len() == 1, most_bytes == whole.len());
        }
    }

    #[test]
    fn what_is_no_payload_is_told() {
        for (bytes, said) in [
            (&b""[..], "cut short"),
            (&[9, 1][..], "version 9"),
            (&[1, 9][..], "kind 9"),
            (&[1, 2, b'x'][..], "cannot be read"),
        ] {
            let error = EntryPayload::from_bytes(bytes).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
