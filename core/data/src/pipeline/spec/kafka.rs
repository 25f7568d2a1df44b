//! The settings of a Kafka source: topics, the range of offsets, and the encoding of the payloads.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::period::Period;
use super::timestamp::Timestamp;

/// The settings of a source with `format: kafka`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KafkaOptions {
    /// Names of topics. A name that starts with `^` is a regular expression, which selects all topics that it matches.
    pub topics: Vec<String>,
    /// The first offset of each partition.
    #[serde(default)]
    pub start: StartOffset,
    /// The offset after the last one of each partition.
    #[serde(default)]
    pub until: EndOffset,
    /// Whether records of open and aborted transactions are read.
    #[serde(default)]
    pub isolation: Isolation,
    /// The encoding of the payloads.
    #[serde(default)]
    pub payload: Payload,
    /// What a record without payload becomes.
    #[serde(default)]
    pub on_tombstone: OnTombstone,
    /// What happens if records in the range no longer exist.
    #[serde(default)]
    pub on_gap: OnGap,
    /// The consumer group that receives the offsets of delivered records, for tools that show the lag. Never read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit_group: Option<String>,
    /// With [`EndOffset::Unbounded`], when an epoch ends; `None` for a job with one epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<EpochEnd>,
}

impl KafkaOptions {
    /// Creates settings that read all records of one topic, as bytes.
    pub fn topic(name: impl Into<String>) -> Self {
        Self {
            topics: vec![name.into()],
            start: StartOffset::default(),
            until: EndOffset::default(),
            isolation: Isolation::default(),
            payload: Payload::default(),
            on_tombstone: OnTombstone::default(),
            on_gap: OnGap::default(),
            commit_group: None,
            epoch: None,
        }
    }

    /// Returns the settings that affect rows.
    #[must_use]
    pub fn without_commit_group(&self) -> Self {
        Self { commit_group: None, ..self.clone() }
    }

    /// Returns the settings of a job that reads the records that the topics retain when it opens.
    #[must_use]
    pub fn retained(&self) -> Self {
        let start =
            if self.start == StartOffset::Latest { StartOffset::Earliest } else { self.start.clone() };
        Self { start, until: EndOffset::Latest, epoch: None, ..self.without_commit_group() }
    }
}

/// Offsets by topic and partition, such as `events/3`.
pub type PartitionOffsets = BTreeMap<String, u64>;

/// The first offset of each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "StartEntry", into = "StartEntry")]
pub enum StartOffset {
    /// The first record that the brokers retain.
    #[default]
    Earliest,
    /// The end of the partition when the job opens.
    Latest,
    /// The given offsets. Partitions that are not listed start at their first record.
    Offsets(PartitionOffsets),
    /// The first record with at least this timestamp.
    Time(Timestamp),
}

/// The offset after the last one of each partition.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "EndEntry", into = "EndEntry")]
pub enum EndOffset {
    /// The end of the partition when the job opens: the last stable offset with `isolation: read_committed`, and the high
    /// watermark with `read_uncommitted`.
    #[default]
    Latest,
    /// The given offsets. Partitions that are not listed end where they end when the job opens.
    Offsets(PartitionOffsets),
    /// The first record with at least this timestamp, which is not read.
    Time(Timestamp),
    /// No end: the job follows the topics, including partitions and topics that are added later.
    Unbounded,
}

/// When an epoch of an unbounded job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "EpochEntry", into = "EpochEntry")]
pub enum EpochEnd {
    /// This time after its start, by the clock of the leader.
    Every(Period),
    /// After this number of offsets.
    Rows(u64),
}

/// The form of [`EpochEnd`] in pipeline files: a map with one key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EpochEntry {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<Period>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rows: Option<u64>,
}

impl TryFrom<EpochEntry> for EpochEnd {
    type Error = &'static str;

    fn try_from(entry: EpochEntry) -> Result<Self, Self::Error> {
        match (entry.every, entry.rows) {
            (Some(period), None) => Ok(Self::Every(period)),
            (None, Some(rows)) => Ok(Self::Rows(rows)),
            _ => Err("invalid `epoch`: expected `{every: TIME}` or `{rows: N}`"),
        }
    }
}

impl From<EpochEnd> for EpochEntry {
    fn from(end: EpochEnd) -> Self {
        match end {
            EpochEnd::Every(period) => Self { every: Some(period), rows: None },
            EpochEnd::Rows(rows) => Self { every: None, rows: Some(rows) },
        }
    }
}

/// The form of [`StartOffset`] in pipeline files: a word, or a map with one key.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid `start`: expected `earliest`, `latest`, `{offsets: {TOPIC/PARTITION: N}}` or `{time: TIME}`"
)]
enum StartEntry {
    Word(StartWord),
    Explicit(ExplicitOffset),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StartWord {
    Earliest,
    Latest,
}

/// The form of [`EndOffset`] in pipeline files: a word, or a map with one key.
#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "invalid `until`: expected `latest`, `none`, `{offsets: {TOPIC/PARTITION: N}}` or `{time: TIME}`"
)]
enum EndEntry {
    Word(EndWord),
    Explicit(ExplicitOffset),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EndWord {
    Latest,
    None,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ExplicitOffset {
    Offsets(OffsetsEntry),
    Time(TimeEntry),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OffsetsEntry {
    offsets: PartitionOffsets,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TimeEntry {
    time: Timestamp,
}

impl From<StartEntry> for StartOffset {
    fn from(entry: StartEntry) -> Self {
        match entry {
            StartEntry::Word(StartWord::Earliest) => Self::Earliest,
            StartEntry::Word(StartWord::Latest) => Self::Latest,
            StartEntry::Explicit(ExplicitOffset::Offsets(entry)) => Self::Offsets(entry.offsets),
            StartEntry::Explicit(ExplicitOffset::Time(entry)) => Self::Time(entry.time),
        }
    }
}

impl From<StartOffset> for StartEntry {
    fn from(start: StartOffset) -> Self {
        match start {
            StartOffset::Earliest => Self::Word(StartWord::Earliest),
            StartOffset::Latest => Self::Word(StartWord::Latest),
            StartOffset::Offsets(offsets) => {
                Self::Explicit(ExplicitOffset::Offsets(OffsetsEntry { offsets }))
            }
            StartOffset::Time(time) => Self::Explicit(ExplicitOffset::Time(TimeEntry { time })),
        }
    }
}

impl From<EndEntry> for EndOffset {
    fn from(entry: EndEntry) -> Self {
        match entry {
            EndEntry::Word(EndWord::Latest) => Self::Latest,
            EndEntry::Word(EndWord::None) => Self::Unbounded,
            EndEntry::Explicit(ExplicitOffset::Offsets(entry)) => Self::Offsets(entry.offsets),
            EndEntry::Explicit(ExplicitOffset::Time(entry)) => Self::Time(entry.time),
        }
    }
}

impl From<EndOffset> for EndEntry {
    fn from(end: EndOffset) -> Self {
        match end {
            EndOffset::Latest => Self::Word(EndWord::Latest),
            EndOffset::Unbounded => Self::Word(EndWord::None),
            EndOffset::Offsets(offsets) => Self::Explicit(ExplicitOffset::Offsets(OffsetsEntry { offsets })),
            EndOffset::Time(time) => Self::Explicit(ExplicitOffset::Time(TimeEntry { time })),
        }
    }
}

/// Whether records of open and aborted transactions are read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Only records of committed transactions, and records without a transaction.
    #[default]
    ReadCommitted,
    /// All records.
    ReadUncommitted,
}

/// The encoding of the payloads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "PayloadEntry")]
pub struct Payload {
    /// The format.
    pub format: PayloadFormat,
    /// The URL of the schema registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The full name of the Protobuf message. The default is the message that the newest schema describes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The subject of the reader's schema in the registry. The default is `TOPIC-value`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// `payload: json`, or a map with the format and its settings.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a payload format, such as `json`, or a map with `format` and its settings"
)]
enum PayloadEntry {
    Format(PayloadFormat),
    Settings(PayloadSettings),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PayloadSettings {
    format: PayloadFormat,
    registry: Option<String>,
    message: Option<String>,
    subject: Option<String>,
}

impl From<PayloadEntry> for Payload {
    fn from(entry: PayloadEntry) -> Self {
        match entry {
            PayloadEntry::Format(format) => Self { format, ..Self::default() },
            PayloadEntry::Settings(PayloadSettings { format, registry, message, subject }) => {
                Self { format, registry, message, subject }
            }
        }
    }
}

/// The format of the payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadFormat {
    /// The column `value` with the payload's bytes.
    #[default]
    Bytes,
    /// The column `text` with the payload as UTF-8.
    Text,
    /// A JSON object, with one column for each key.
    Json,
    /// A `tf.train.Example`, with one column for each feature.
    Example,
    /// Avro in Confluent's wire format.
    Avro,
    /// Protobuf in Confluent's wire format.
    Protobuf,
    /// JSON in Confluent's wire format.
    JsonSchema,
}

impl PayloadFormat {
    /// The name in pipeline files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Text => "text",
            Self::Json => "json",
            Self::Example => "example",
            Self::Avro => "avro",
            Self::Protobuf => "protobuf",
            Self::JsonSchema => "json_schema",
        }
    }

    /// Whether payloads refer to a schema in a registry.
    pub fn has_registry(self) -> bool {
        matches!(self, Self::Avro | Self::Protobuf | Self::JsonSchema)
    }
}

/// What a record without payload becomes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnTombstone {
    /// No row.
    #[default]
    Skip,
    /// A row whose payload columns are null.
    Null,
}

/// What happens if records in the range no longer exist, because the brokers have deleted or lost them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnGap {
    /// The job fails. The message contains the missing offsets.
    #[default]
    Fail,
    /// The job continues with the next record.
    Skip,
}
