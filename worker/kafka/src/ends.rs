//! Lists the present ends of partitions for a job that follows topics, with requests to the leader of each partition. A leader that does
//! not answer delays only the first listing. Later ones do not contain its partitions until it answers again.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::TopicPartitionListElem;
use rdkafka::{Offset, TopicPartitionList};

use crate::client::KafkaClient;
use crate::connection::{Connection, REQUEST_TIMEOUT};
use crate::error::KafkaError;
use crate::leaders::UnreachableLeaders;
use crate::listing::{CONCURRENT_REQUESTS, PartitionRange, check_partition_count};

/// How long a listing waits for brokers. The caller lists again soon.
const BUDGET: Duration = Duration::from_secs(2);

/// The present ends of partitions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PartitionEnds {
    /// The ranges of the partitions, from their first record to their end, sorted by topic and partition.
    pub ranges: Vec<PartitionRange>,
    /// The topics and numbers of the partitions whose leader does not answer.
    pub unreachable: Vec<(String, i32)>,
}

impl KafkaClient {
    /// Returns the ends of all partitions of the topics.
    ///
    /// # Errors
    /// Returns an error if a topic does not exist, or no leader answers.
    pub async fn list_ends(&self, topics: Vec<String>) -> Result<PartitionEnds, KafkaError> {
        let connection = Connection::new(&self.connection().client, BUDGET);
        let unreachable = Arc::clone(self.unreachable_leaders());
        let listed = tokio::task::spawn_blocking(move || connection.list_ends(&topics, &unreachable)).await;
        listed.unwrap_or_else(|_| Err(KafkaError::retryable("the listing stopped: try again")))
    }
}

impl Connection {
    fn list_ends(
        &self,
        topics: &[String],
        unreachable: &Arc<Mutex<UnreachableLeaders>>,
    ) -> Result<PartitionEnds, KafkaError> {
        let topics: Vec<String> = self.select_topics(topics)?.into_iter().collect();
        let mut listed = PartitionEnds::default();
        let mut leaders: BTreeMap<i32, Vec<PartitionRange>> = BTreeMap::new();
        let mut count = 0;
        for topic in self.describe(&topics, self.budget)? {
            count += topic.leaders.len();
            check_partition_count(count)?;
            for (partition, leader) in (0..).zip(&topic.leaders) {
                let (name, topic_id) = (topic.name.clone(), topic.id.clone());
                match leader {
                    Some(leader) => leaders.entry(*leader).or_default().push(PartitionRange {
                        topic: name,
                        topic_id,
                        partition,
                        from: 0,
                        to: 0,
                        leader_epoch: None,
                    }),
                    None => listed.unreachable.push((name, partition)),
                }
            }
        }
        let silent = lock(unreachable).silent(leaders.keys().copied());
        let (skipped, asked): (Vec<_>, Vec<_>) =
            leaders.into_iter().partition(|(leader, _)| silent.contains(leader));
        let mut failure = None;
        for ((leader, partitions), answer) in asked.iter().zip(self.ask_leaders(&asked)?) {
            match answer {
                Ok(ends) => {
                    lock(unreachable).record(*leader, None, Instant::now());
                    listed.ranges.extend(ends.ranges);
                    listed.unreachable.extend(ends.unreachable);
                }
                Err(error) if !error.is_retryable => return Err(error),
                Err(error) => {
                    lock(unreachable).record(*leader, Some(&error), Instant::now());
                    listed.unreachable.extend(partitions.iter().map(name_of));
                    failure = Some(error);
                }
            }
        }
        listed.unreachable.extend(skipped.iter().flat_map(|(_, partitions)| partitions).map(name_of));
        self.ask_silent_leaders(skipped, unreachable);
        if listed.ranges.is_empty() {
            let no_leader = "no partition has a leader that answers: check the brokers and the network";
            return Err(failure.unwrap_or_else(|| KafkaError::retryable(no_leader)));
        }
        listed.ranges.sort_by(|a, b| (&a.topic, a.partition).cmp(&(&b.topic, b.partition)));
        Ok(listed)
    }

    /// Requests the ends of the partitions of several leaders at a time. Returns the answer of each leader.
    fn ask_leaders(
        &self,
        leaders: &[(i32, Vec<PartitionRange>)],
    ) -> Result<Vec<Result<PartitionEnds, KafkaError>>, KafkaError> {
        let part = leaders.len().div_ceil(CONCURRENT_REQUESTS).max(1);
        let ask = |part: &[(i32, Vec<PartitionRange>)]| -> Vec<Result<PartitionEnds, KafkaError>> {
            part.iter().map(|(_, partitions)| self.ends_of_leader(partitions)).collect()
        };
        std::thread::scope(|scope| {
            let ask = &ask;
            let threads: Vec<_> = leaders.chunks(part).map(|part| scope.spawn(move || ask(part))).collect();
            let mut answers = Vec::with_capacity(leaders.len());
            for thread in threads {
                let stopped = |_| KafkaError::retryable("the listing stopped: try again");
                answers.extend(thread.join().map_err(stopped)?);
            }
            Ok(answers)
        })
    }

    /// Asks the silent leaders again that are due, each in a blocking thread of the runtime. A later listing contains the partitions
    /// of those that answer. A process that ends waits for these threads at most for the short time that it waits for all blocking
    /// threads, and then drops the answers.
    fn ask_silent_leaders(
        &self,
        leaders: Vec<(i32, Vec<PartitionRange>)>,
        unreachable: &Arc<Mutex<UnreachableLeaders>>,
    ) {
        for (leader, mut partitions) in leaders {
            if !lock(unreachable).begin_request(leader, Instant::now()) {
                continue;
            }
            let (connection, unreachable) = (Self::new(&self.client, self.budget), Arc::clone(unreachable));
            // One partition shows whether the leader answers.
            partitions.truncate(1);
            // Each of the two requests ends within the budget and one more attempt.
            drop(tokio::task::spawn_blocking(move || {
                let error = connection.ends_of_leader(&partitions).err();
                lock(&unreachable).record(leader, error.as_ref(), Instant::now());
            }));
        }
    }

    /// Requests the ends of the partitions of one leader.
    fn ends_of_leader(&self, partitions: &[PartitionRange]) -> Result<PartitionEnds, KafkaError> {
        let first = self.special_offsets(partitions, Offset::Beginning)?;
        let ends = self.special_offsets(partitions, Offset::End)?;
        let mut listed = PartitionEnds::default();
        for (partition, offsets) in partitions.iter().zip(first.into_iter().zip(ends)) {
            match offsets {
                (Some(from), Some(to)) => {
                    listed.ranges.push(PartitionRange { from, to: to.max(from), ..partition.clone() });
                }
                _ => listed.unreachable.push(name_of(partition)),
            }
        }
        Ok(listed)
    }

    /// Returns the first offset or the end of each partition; `None` if its leader has changed. The brokers give the numbers of both
    /// a meaning as timestamps.
    fn special_offsets(
        &self,
        ranges: &[PartitionRange],
        which: Offset,
    ) -> Result<Vec<Option<u64>>, KafkaError> {
        let mut list = TopicPartitionList::with_capacity(ranges.len());
        for range in ranges {
            list.add_partition_offset(&range.topic, range.partition, which)
                .map_err(|error| KafkaError::retryable(format!("cannot list offsets: {error}")))?;
        }
        let timeout = REQUEST_TIMEOUT.min(self.budget);
        let found = self.retried(self.budget, || self.client.offsets_for_times(list.clone(), timeout))?;
        let elements = found.elements();
        let by_name: HashMap<(&str, i32), &TopicPartitionListElem<'_>> =
            elements.iter().map(|element| ((element.topic(), element.partition()), element)).collect();
        let offset = |range: &PartitionRange| {
            let element = by_name.get(&(range.topic.as_str(), range.partition))?;
            match (element.error(), element.offset()) {
                (Ok(()), Offset::Offset(offset)) => u64::try_from(offset).ok(),
                // An empty partition may have no offset of its own.
                (Ok(()), Offset::End | Offset::Beginning) => Some(0),
                _ => None,
            }
        };
        Ok(ranges.iter().map(offset).collect())
    }
}

fn name_of(partition: &PartitionRange) -> (String, i32) {
    (partition.topic.clone(), partition.partition)
}

fn lock(leaders: &Mutex<UnreachableLeaders>) -> MutexGuard<'_, UnreachableLeaders> {
    leaders.lock().unwrap_or_else(PoisonError::into_inner)
}
