//! Lists the partitions of topics, and determines the range of offsets that a job reads of each.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Mutex;

use rdkafka::consumer::Consumer;
use rdkafka::{Offset, TopicPartitionList};
use regex::Regex;

use crate::client::KafkaClient;
use crate::connection::{Connection, REQUEST_TIMEOUT};
use crate::error::KafkaError;
use crate::native::leader_epochs;

/// Maximum number of partitions of a source.
const MAX_PARTITIONS: usize = 1_000_000;
/// Number of partitions, or leaders of partitions, whose ends are requested at a time.
pub(crate) const CONCURRENT_REQUESTS: usize = 16;
/// Number of partitions whose leader epochs are requested at a time. librdkafka compares each of them with all others.
const PARTITIONS_PER_REQUEST: usize = 1_000;
/// The prefix of the names of internal topics, such as `__consumer_offsets`, which patterns do not select.
const INTERNAL_PREFIX: &str = "__";
/// Maximum size of a compiled pattern in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The partitions and offsets that a job reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeRequest {
    /// Names of topics. A name that starts with `^` is a regular expression.
    pub topics: Vec<String>,
    /// The first offset of each partition.
    pub start: RangeStart,
    /// The offset after the last one of each partition.
    pub end: RangeEnd,
    /// Whether an explicit start before the first record is moved to the first record.
    pub skips_gaps: bool,
}

/// The first offset of each partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeStart {
    /// The first record.
    Earliest,
    /// The end.
    Latest,
    /// Offsets by `TOPIC/PARTITION`. Other partitions start at their first record.
    Offsets(BTreeMap<String, u64>),
    /// The first record with at least this timestamp, in milliseconds since 1970.
    Time(u64),
}

/// The offset after the last one of each partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RangeEnd {
    /// The present end.
    Latest,
    /// Offsets by `TOPIC/PARTITION`. Other partitions end at their present end.
    Offsets(BTreeMap<String, u64>),
    /// The first record with at least this timestamp, in milliseconds since 1970.
    Time(u64),
}

/// A range of offsets of one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartitionRange {
    /// The topic.
    pub topic: String,
    /// The id of the topic.
    pub topic_id: String,
    /// The partition.
    pub partition: i32,
    /// The first offset.
    pub from: u64,
    /// The offset after the last one.
    pub to: u64,
    /// The largest leader epoch that a record before the end may have, if known.
    pub leader_epoch: Option<i32>,
}

/// The present state of a partition.
struct PartitionState {
    topic: String,
    topic_id: String,
    partition: i32,
    low: i64,
    high: i64,
    leader_epoch: Option<i32>,
}

impl KafkaClient {
    /// Returns the ranges of all partitions of the topics, sorted by topic and partition.
    ///
    /// # Errors
    /// Returns an error if a topic does not exist, or a range is outside of its partition.
    pub async fn list(&self, request: RangeRequest) -> Result<Vec<PartitionRange>, KafkaError> {
        let connection = self.connection().clone();
        let listed = tokio::task::spawn_blocking(move || connection.list(&request)).await;
        listed.unwrap_or_else(|_| Err(KafkaError::retryable("the listing stopped: try again")))
    }
}

impl Connection {
    fn list(&self, request: &RangeRequest) -> Result<Vec<PartitionRange>, KafkaError> {
        let topics: Vec<String> = self.select_topics(&request.topics)?.into_iter().collect();
        let mut states = Vec::new();
        for topic in self.describe(&topics, self.budget)? {
            for partition in 0..topic.leaders.len() as i32 {
                let (topic, topic_id) = (topic.name.clone(), topic.id.clone());
                let (low, high, leader_epoch) = (0, 0, None);
                states.push(PartitionState { topic, topic_id, partition, low, high, leader_epoch });
            }
            check_partition_count(states.len())?;
        }
        self.request_ends(&mut states)?;
        self.request_leader_epochs(&mut states)?;
        states.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        let times = |time: u64| self.offsets_at(&states, time);
        let starts = match &request.start {
            RangeStart::Time(time) => times(*time)?,
            _ => Vec::new(),
        };
        let ends = match &request.end {
            RangeEnd::Time(time) => times(*time)?,
            _ => Vec::new(),
        };
        check_names(request, &states)?;
        let ranges = states.iter().enumerate();
        ranges.map(|(index, state)| range_of(request, state, starts.get(index), ends.get(index))).collect()
    }

    /// Requests the start and the end of each partition, of several partitions at a time.
    fn request_ends(&self, states: &mut [PartitionState]) -> Result<(), KafkaError> {
        let failure: Mutex<Option<KafkaError>> = Mutex::default();
        let has_failed = || failure.lock().is_ok_and(|failure| failure.is_some());
        let part = states.len().div_ceil(CONCURRENT_REQUESTS).max(1);
        std::thread::scope(|scope| {
            let (failure, has_failed) = (&failure, &has_failed);
            for part in states.chunks_mut(part) {
                scope.spawn(move || {
                    for state in part.iter_mut().take_while(|_| !has_failed()) {
                        match self.watermarks(&state.topic, state.partition, self.budget) {
                            Ok(ends) => (state.low, state.high) = ends,
                            Err(error) => drop(failure.lock().map(|mut failure| failure.replace(error))),
                        }
                    }
                });
            }
        });
        failure.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// Requests the leader epoch of each partition. The ends were requested before, so no record of a range has a larger one.
    fn request_leader_epochs(&self, states: &mut [PartitionState]) -> Result<(), KafkaError> {
        for part in states.chunks_mut(PARTITIONS_PER_REQUEST) {
            let mut list = TopicPartitionList::with_capacity(part.len());
            for state in part.iter() {
                list.add_partition_offset(&state.topic, state.partition, Offset::End)
                    .map_err(|error| KafkaError::retryable(format!("cannot list offsets: {error}")))?;
            }
            let found =
                self.retried(self.budget, || self.client.offsets_for_times(list.clone(), REQUEST_TIMEOUT))?;
            let elements = found.elements();
            let epochs: HashMap<(&str, i32), Option<i32>> = elements
                .iter()
                .zip(leader_epochs(&found))
                .map(|(element, epoch)| ((element.topic(), element.partition()), epoch))
                .collect();
            for state in part {
                state.leader_epoch = epochs.get(&(state.topic.as_str(), state.partition)).copied().flatten();
            }
        }
        Ok(())
    }

    pub(crate) fn select_topics(&self, entries: &[String]) -> Result<BTreeSet<String>, KafkaError> {
        let (patterns, names): (Vec<&String>, Vec<&String>) =
            entries.iter().partition(|entry| entry.starts_with('^'));
        let mut topics: BTreeSet<String> = names.into_iter().cloned().collect();
        if patterns.is_empty() {
            return Ok(topics);
        }
        let timeout = REQUEST_TIMEOUT.min(self.budget);
        let metadata = self.retried(self.budget, || self.client.fetch_metadata(None, timeout))?;
        let names = metadata.topics().iter().map(rdkafka::metadata::MetadataTopic::name);
        let existing: Vec<&str> = names.filter(|name| !name.starts_with(INTERNAL_PREFIX)).collect();
        for pattern in patterns {
            let regex = compile(pattern)?;
            let before = topics.len();
            topics.extend(existing.iter().filter(|name| regex.is_match(name)).map(|name| (*name).to_owned()));
            if topics.len() == before && !existing.iter().any(|name| regex.is_match(name)) {
                return Err(KafkaError::permanent(format!(
                    "no topic matches `{pattern}`: check the pattern, and that the user may DESCRIBE the topics"
                )));
            }
        }
        Ok(topics)
    }

    /// Returns the first offset with at least this timestamp in each partition, or its end.
    fn offsets_at(&self, states: &[PartitionState], time: u64) -> Result<Vec<i64>, KafkaError> {
        let time = i64::try_from(time).unwrap_or(i64::MAX);
        let mut list = TopicPartitionList::new();
        for state in states {
            list.add_partition_offset(&state.topic, state.partition, Offset::Offset(time))
                .map_err(|error| KafkaError::permanent(format!("invalid time {time}: {error}")))?;
        }
        let found =
            self.retried(self.budget, || self.client.offsets_for_times(list.clone(), REQUEST_TIMEOUT))?;
        let elements = found.elements();
        let offsets: HashMap<(&str, i32), Offset> = elements
            .iter()
            .map(|element| ((element.topic(), element.partition()), element.offset()))
            .collect();
        let offset = |state: &PartitionState| match offsets.get(&(state.topic.as_str(), state.partition)) {
            Some(Offset::Offset(offset)) => *offset,
            _ => state.high,
        };
        Ok(states.iter().map(offset).collect())
    }
}

pub(crate) fn check_partition_count(partitions: usize) -> Result<(), KafkaError> {
    if partitions > MAX_PARTITIONS {
        return Err(KafkaError::permanent(format!(
            "the topics have more than {MAX_PARTITIONS} partitions: select fewer topics"
        )));
    }
    Ok(())
}

/// Compiles a pattern, which must match the whole name.
fn compile(pattern: &str) -> Result<Regex, KafkaError> {
    let invalid = |error: regex::Error| {
        let reason = error.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned();
        KafkaError::permanent(format!("invalid pattern `{pattern}`: {reason}"))
    };
    let whole = format!("^(?:{pattern})$");
    regex::RegexBuilder::new(&whole).size_limit(MAX_PATTERN_BYTES).build().map_err(invalid)
}

/// Checks that each partition with an explicit offset exists.
fn check_names(request: &RangeRequest, states: &[PartitionState]) -> Result<(), KafkaError> {
    let known: BTreeSet<String> = states.iter().map(name_of).collect();
    let none = BTreeMap::new();
    let starts = if let RangeStart::Offsets(offsets) = &request.start { offsets } else { &none };
    let ends = if let RangeEnd::Offsets(offsets) = &request.end { offsets } else { &none };
    match starts.keys().chain(ends.keys()).find(|name| !known.contains(*name)) {
        Some(name) => Err(KafkaError::permanent(format!(
            "`{name}` is not a partition of the selected topics: correct its offset in `start` or `until`"
        ))),
        None => Ok(()),
    }
}

fn name_of(state: &PartitionState) -> String {
    format!("{}/{}", state.topic, state.partition)
}

fn range_of(
    request: &RangeRequest,
    state: &PartitionState,
    start_at: Option<&i64>,
    end_at: Option<&i64>,
) -> Result<PartitionRange, KafkaError> {
    let (low, high) = (state.low.max(0), state.high.max(0));
    let name = name_of(state);
    let explicit = |offsets: &BTreeMap<String, u64>| offsets.get(&name).map(|offset| *offset as i64);
    let mut from = match &request.start {
        RangeStart::Earliest => low,
        RangeStart::Latest => high,
        RangeStart::Offsets(offsets) => explicit(offsets).unwrap_or(low),
        // Records may have arrived since the end was requested.
        RangeStart::Time(_) => start_at.copied().unwrap_or(high).min(high),
    };
    let to = match &request.end {
        RangeEnd::Latest => high,
        RangeEnd::Offsets(offsets) => explicit(offsets).unwrap_or(high),
        RangeEnd::Time(_) => end_at.copied().unwrap_or(high).min(high),
    };
    // Without this setting, the read of the missing offsets fails. A job that resumes after them does not read them.
    if from < low && request.skips_gaps {
        from = low;
    }
    if to > high {
        return Err(KafkaError::permanent(format!(
            "offset {to} of {name} is behind the end of the partition at {high}: correct `until`"
        )));
    }
    if from > high {
        return Err(KafkaError::permanent(format!(
            "offset {from} of {name} is behind the end of the partition at {high}: correct `start`"
        )));
    }
    Ok(PartitionRange {
        topic: state.topic.clone(),
        topic_id: state.topic_id.clone(),
        partition: state.partition,
        from: from as u64,
        to: to.max(from) as u64,
        leader_epoch: state.leader_epoch,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> PartitionState {
        let (topic, topic_id) = ("t".to_owned(), "id".to_owned());
        PartitionState { topic, topic_id, partition: 3, low: 10, high: 50, leader_epoch: Some(2) }
    }

    fn request(start: RangeStart, end: RangeEnd) -> RangeRequest {
        RangeRequest { topics: vec!["t".to_owned()], start, end, skips_gaps: false }
    }

    fn range(request: &RangeRequest) -> Result<(u64, u64), String> {
        let range = range_of(request, &state(), Some(&20), Some(&30)).map_err(|error| error.message)?;
        Ok((range.from, range.to))
    }

    fn offsets(offset: u64) -> BTreeMap<String, u64> {
        [("t/3".to_owned(), offset)].into()
    }

    #[test]
    fn ranges_follow_from_start_and_end() {
        let of = |start, end| range(&request(start, end));
        assert_eq!(of(RangeStart::Earliest, RangeEnd::Latest), Ok((10, 50)));
        assert_eq!(of(RangeStart::Latest, RangeEnd::Latest), Ok((50, 50)));
        assert_eq!(of(RangeStart::Time(0), RangeEnd::Time(1)), Ok((20, 30)));
        // Records arrived between the two requests.
        let late = range_of(&request(RangeStart::Time(0), RangeEnd::Time(1)), &state(), Some(&55), Some(&60));
        assert_eq!(late.map(|range| (range.from, range.to, range.leader_epoch)), Ok((50, 50, Some(2))));
        assert_eq!(of(RangeStart::Offsets(offsets(12)), RangeEnd::Offsets(offsets(13))), Ok((12, 13)));
        assert_eq!(of(RangeStart::Offsets(offsets(40)), RangeEnd::Offsets(offsets(13))), Ok((40, 40)));
        assert_eq!(
            of(RangeStart::Offsets(BTreeMap::new()), RangeEnd::Offsets(BTreeMap::new())),
            Ok((10, 50))
        );
    }

    #[test]
    fn ranges_outside_of_the_partition_are_rejected() {
        let error = |start, end| range(&request(start, end)).expect_err("outside");
        let missing = request(RangeStart::Offsets(offsets(4)), RangeEnd::Latest);
        assert_eq!(range(&missing), Ok((4, 50)), "the read of the missing records fails");
        assert!(error(RangeStart::Offsets(offsets(51)), RangeEnd::Latest).contains("correct `start`"));
        assert!(error(RangeStart::Earliest, RangeEnd::Offsets(offsets(51))).contains("correct `until`"));
        let skipping =
            RangeRequest { skips_gaps: true, ..request(RangeStart::Offsets(offsets(4)), RangeEnd::Latest) };
        assert_eq!(range(&skipping), Ok((10, 50)));
        let unknown = request(RangeStart::Offsets([("t/4".to_owned(), 1)].into()), RangeEnd::Latest);
        assert!(check_names(&unknown, &[state()]).expect_err("unknown").message.contains("`t/4`"));
    }

    #[test]
    fn a_pattern_matches_the_whole_name() {
        let regex = compile("^events-.*").expect("valid");
        assert!(regex.is_match("events-a") && !regex.is_match("my-events-a"));
        assert!(!compile("^events$").expect("valid").is_match("events2"));
        assert!(compile("^a|b").expect("valid").is_match("b"));
        assert!(compile("^(").expect_err("invalid").message.contains("unclosed group"));
    }
}
