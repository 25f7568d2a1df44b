//! Reads ranges of offsets of Kafka partitions. Reads are independent of each other and use no consumer group, so that a job
//! alone decides which offsets are read, and when.
//!
//! The crate knows nothing about pipelines: callers pass topics, offsets and connection settings. Only [`native`] contains
//! `unsafe` code.

mod client;
mod connection;
mod context;
mod ends;
mod error;
mod group;
mod leaders;
mod listing;
mod memory;
mod native;
mod partition;
mod probe;
mod records;
mod request;
mod settings;
mod shared_wait;
mod stream;
mod topic_ids;

pub use client::KafkaClient;
pub use context::{AccessToken, TokenSource};
pub use ends::PartitionEnds;
pub use error::KafkaError;
pub use group::GroupOffset;
pub use listing::{PartitionRange, RangeEnd, RangeRequest, RangeStart};
pub use memory::{ClientLimits, ClientMemory};
pub use records::{KafkaRecord, MissingRecords, RecordBlock, RecordParts, Span};
pub use request::{GapPolicy, ReadRequest, ReplacementCheck};
pub use settings::{ConnectionSettings, OPTION_NAMES, check_options};
