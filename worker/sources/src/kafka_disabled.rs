//! Rejects Kafka sources in builds without the feature `kafka`.

use std::time::Duration;

use feedline_data::committed_offsets::PartitionOffset;
use feedline_data::manifest::{ShardIndex, ShardRef};
use feedline_data::pipeline::Source;

use crate::error::SourceError;
use crate::reader::{BlockRead, BlockRows};
use crate::select::Selection;
use crate::stores::ScopedStores;

/// The clients of Kafka clusters.
pub(crate) mod clients {
    use crate::read_memory::ReadMemory;

    /// No clients.
    pub(crate) struct KafkaClients;

    impl KafkaClients {
        pub(crate) fn new(_: ReadMemory) -> Self {
            Self
        }
    }
}

/// A Kafka dataset, which this build cannot read.
pub(crate) enum DisabledKafka {}

/// The name of the dataset in builds that can read it.
pub(crate) type KafkaDataset = DisabledKafka;

impl DisabledKafka {
    pub(crate) fn new(source: &Source, _: &ScopedStores, _: &Selection) -> Result<Self, SourceError> {
        Err(SourceError::Url {
            url: source.url.first().cloned().unwrap_or_default(),
            reason: "this build does not read Kafka topics: build with the feature `kafka`".to_owned(),
        })
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn list(&self) -> Result<Vec<ShardRef>, SourceError> {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn list_growth(&self) -> Result<Vec<ShardRef>, SourceError> {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn index(&self, _: &ShardRef) -> Result<ShardIndex, SourceError> {
        match *self {}
    }

    pub(crate) fn outage_budget(&self) -> Duration {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn wait_for_leader(&self, _: &ShardRef) -> Result<(), SourceError> {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn commit(&self, _: &[PartitionOffset]) -> Result<(), SourceError> {
        match *self {}
    }

    #[allow(clippy::unused_async, reason = "the enabled module has the same functions")]
    pub(crate) async fn read(&self, _: &BlockRead<'_>) -> Result<BlockRows, SourceError> {
        match *self {}
    }
}
