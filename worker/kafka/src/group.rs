//! Writes offsets to consumer groups, for tools that show the lag.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode as Code;
use rdkafka::{Offset, TopicPartitionList};

use crate::client::KafkaClient;
use crate::connection::Connection;
use crate::error::KafkaError;
use crate::native::admin::commit_offsets;

/// Time limit for one commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The offset of a partition in a consumer group: the first record that is not processed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupOffset {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The offset.
    pub offset: u64,
}

impl KafkaClient {
    /// Sets the offsets of a consumer group, which must have no members.
    ///
    /// # Errors
    /// Returns an error if the brokers reject the offsets or do not answer within 4 s.
    pub async fn commit(&self, group: String, offsets: Vec<GroupOffset>) -> Result<(), KafkaError> {
        let connection = self.connection().clone();
        let committed = tokio::task::spawn_blocking(move || connection.commit(&group, &offsets)).await;
        committed.unwrap_or_else(|_| Err(KafkaError::retryable("the commit stopped: try again")))
    }
}

impl Connection {
    fn commit(&self, group: &str, offsets: &[GroupOffset]) -> Result<(), KafkaError> {
        let mut list = TopicPartitionList::with_capacity(offsets.len());
        for GroupOffset { topic, partition, offset } in offsets {
            let offset = Offset::Offset(i64::try_from(*offset).unwrap_or(i64::MAX));
            list.add_partition_offset(topic, *partition, offset)
                .map_err(|error| KafkaError::permanent(format!("invalid offset of {topic}: {error}")))?;
        }
        commit_offsets(&self.client, group, &list, COMMIT_TIMEOUT)
            .map_err(|(code, text)| self.commit_failure(code, &text))
    }

    fn commit_failure(&self, code: Code, text: &str) -> KafkaError {
        match code {
            Code::GroupAuthorizationFailed => {
                KafkaError::permanent("access denied: grant READ on the group to the user of `credentials`")
            }
            Code::UnknownMemberId
            | Code::IllegalGeneration
            | Code::RebalanceInProgress
            | Code::NonEmptyGroup => {
                KafkaError::permanent("the group has members: use a group that no consumer joins")
            }
            code => self.failure(code, text),
        }
    }
}
