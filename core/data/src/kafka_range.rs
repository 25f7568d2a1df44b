//! The version of a shard of a Kafka source: the id of its topic, and the range of offsets that a job reads.

use std::fmt;
use std::str::FromStr;

use crate::urls::is_kafka;

/// A range of offsets of one partition. The text form is the `version` of the shard, such as `d0sEXWAWQ6uU1K8Fvz2l9g@0-1000`,
/// `d0sEXWAWQ6uU1K8Fvz2l9g@0-1000~3` with a leader epoch, or `d0sEXWAWQ6uU1K8Fvz2l9g@0-1000~3#7` with the id of a schema too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaRange {
    /// The id of the topic. A topic that is deleted and created again has another id.
    pub topic_id: String,
    /// The first offset.
    pub from: u64,
    /// The offset after the last one.
    pub to: u64,
    /// The epoch of the leader that returned the end, if known. A record of the range with a later epoch has replaced another one.
    pub leader_epoch: Option<i32>,
    /// The id of the reader's schema in the schema registry, if payloads have schemas.
    pub schema_id: Option<u32>,
}

impl KafkaRange {
    /// Returns the range of a shard; `None` if the shard does not belong to a Kafka source.
    pub fn of(url: &str, version: &str) -> Option<Self> {
        if is_kafka(url) { version.parse().ok() } else { None }
    }
}

impl fmt::Display for KafkaRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}-{}", self.topic_id, self.from, self.to)?;
        if let Some(epoch) = self.leader_epoch {
            write!(f, "~{epoch}")?;
        }
        match self.schema_id {
            Some(id) => write!(f, "#{id}"),
            None => Ok(()),
        }
    }
}

impl FromStr for KafkaRange {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (topic_id, range) = text.rsplit_once('@').ok_or(())?;
        let (range, schema_id) = match range.split_once('#') {
            Some((range, id)) => (range, Some(id.parse().map_err(|_| ())?)),
            None => (range, None),
        };
        let (range, leader_epoch) = match range.split_once('~') {
            Some((range, epoch)) => (range, Some(epoch.parse().map_err(|_| ())?)),
            None => (range, None),
        };
        let (from, to) = range.split_once('-').ok_or(())?;
        let offset = |text: &str| text.parse::<u64>().map_err(|_| ());
        let (from, to) = (offset(from)?, offset(to)?);
        if from > to || to > i64::MAX as u64 {
            return Err(());
        }
        Ok(Self { topic_id: topic_id.to_owned(), from, to, leader_epoch, schema_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "kafka://a:1/events/3";

    #[test]
    fn the_range_of_a_shard_is_in_its_version() {
        for (leader_epoch, schema_id) in [(None, None), (None, Some(7)), (Some(0), None), (Some(3), Some(7))]
        {
            let range = KafkaRange { topic_id: "a-b_9".to_owned(), from: 5, to: 5, leader_epoch, schema_id };
            assert_eq!(KafkaRange::of(URL, &range.to_string()), Some(range));
        }
        for version in ["", "x", "x@1", "x@2-1", "x@a-b", "x@0-1#", "x@0-1~", "x@0-9223372036854775808", "@-"]
        {
            assert_eq!(KafkaRange::of(URL, version), None, "{version}");
        }
        assert_eq!(KafkaRange::of("s3://b/x", "x@0-1"), None);
    }
}
