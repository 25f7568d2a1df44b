//! Finds the partition whose records exceed the memory of a worker. A response of a broker contains the records of several partitions,
//! and one that is too large is rejected before it says which. A read that receives nothing then requests its own records alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::Consumer;

use crate::connection::Connection;
use crate::native::{Client, FetchedPartition, Messages};

/// How long a read receives nothing before it requests its records alone.
const MIN_SILENCE: Duration = Duration::from_secs(1);
/// How long a read waits for the records that it has requested alone.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Interval in which the wait looks for errors and cancellation.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// The probes of one read.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// The time of the last rejected response that the read has examined.
    examined: Option<Instant>,
}

impl Probes {
    /// Whether the read must request its records alone. `rejected_at` is the time of the last rejected response.
    pub(crate) fn is_due(&self, rejected_at: Instant, silence: Duration) -> bool {
        silence >= MIN_SILENCE && self.examined != Some(rejected_at)
    }

    pub(crate) fn on_examined(&mut self, rejected_at: Instant) {
        self.examined = Some(rejected_at);
    }
}

impl Connection {
    /// Requests the records of one partition with a client of its own. Returns the size of the response if it exceeds the limit;
    /// `None` if the records arrive, or if the broker does not answer.
    pub(crate) fn oversized_response(
        &self,
        topic: &str,
        partition: i32,
        offset: i64,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Option<u64> {
        let (config, context) = self.context().for_another_client();
        let client = Arc::new(Client::from_config_and_context(&config, context).ok()?);
        let mut fetched = FetchedPartition::start(&client, topic, partition, offset).ok()?;
        // Dropped before the partition.
        let mut messages = Messages::default();
        let started = Instant::now();
        while started.elapsed() < TIME_LIMIT && !is_cancelled() {
            // Serves the callbacks of the client, which receive the rejection.
            let _ = client.poll(Duration::ZERO);
            if let Some(rejected) = client.client().context().rejected_response() {
                return Some(rejected.bytes);
            }
            fetched.receive(&mut messages, 1, WAIT_SLICE);
            if messages.first().is_some_and(|message| message.event().is_none()) {
                return None;
            }
            messages.clear();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_read_examines_each_rejected_response_once() {
        let (mut probes, first) = (Probes::default(), Instant::now());
        assert!(!probes.is_due(first, MIN_SILENCE / 2), "its records may arrive soon");
        assert!(probes.is_due(first, MIN_SILENCE));
        probes.on_examined(first);
        assert!(!probes.is_due(first, 10 * MIN_SILENCE));
        assert!(probes.is_due(first + TIME_LIMIT, MIN_SILENCE), "the next one");
    }
}
