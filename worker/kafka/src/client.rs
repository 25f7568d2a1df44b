//! A client of one cluster: its connection, the thread that serves callbacks, and the readers of its partitions.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::BaseConsumer;

use crate::connection::Connection;
use crate::context::{Context, TokenSource};
use crate::error::KafkaError;
use crate::leaders::UnreachableLeaders;
use crate::memory::ClientMemory;
use crate::partition::PartitionReader;
use crate::records::RecordBlock;
use crate::request::ReadRequest;
use crate::settings::ConnectionSettings;

/// How long the thread of a client waits for a callback.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// How long a wait for the leader of a partition lasts. The caller waits again.
const LEADER_WAIT: Duration = Duration::from_secs(2);
/// How long a partition is fetched although nothing is read.
const IDLE_AFTER: Duration = Duration::from_secs(10);

/// A client of one cluster, with one set of credentials and one isolation level.
pub struct KafkaClient {
    shared: Arc<ClientShared>,
    stopping: Arc<AtomicBool>,
}

/// The readers of a client, by topic and partition.
type PartitionReaders = HashMap<(Arc<str>, i32), Arc<PartitionReader>>;

/// What the threads of a client share.
struct ClientShared {
    connection: Arc<Connection>,
    memory: Arc<ClientMemory>,
    readers: Mutex<PartitionReaders>,
    unreachable_leaders: Arc<Mutex<UnreachableLeaders>>,
}

impl std::fmt::Debug for KafkaClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KafkaClient").finish_non_exhaustive()
    }
}

impl KafkaClient {
    /// Creates a client. Connects when it is used. `budget` limits how long an operation waits for brokers, and `memory` the
    /// records that all clients hold.
    ///
    /// # Errors
    /// Returns an error if the settings are invalid. The message contains no values.
    pub fn new(
        settings: &ConnectionSettings,
        read_committed: bool,
        tokens: Option<Arc<dyn TokenSource>>,
        budget: Duration,
        memory: &Arc<ClientMemory>,
    ) -> Result<Self, KafkaError> {
        let config = settings.client_config(read_committed, memory)?;
        let context = Context::new(settings.clone(), config.clone(), tokens);
        let client = BaseConsumer::from_config_and_context(&config, context).map_err(|error| {
            let reason = settings.without_values(&error.to_string());
            KafkaError::permanent(format!(
                "cannot create a client of the cluster ({reason}): check `credentials` of the source"
            ))
        })?;
        let shared = Arc::new(ClientShared {
            connection: Arc::new(Connection::new(&Arc::new(client), budget)),
            memory: Arc::clone(memory),
            readers: Mutex::default(),
            unreachable_leaders: Arc::default(),
        });
        let stopping = Arc::new(AtomicBool::new(false));
        let (own, is_stopping) = (Arc::clone(&shared), Arc::clone(&stopping));
        std::thread::Builder::new()
            .name("kafka-events".to_owned())
            .spawn(move || own.serve_events(&is_stopping))
            .map_err(|error| KafkaError::retryable(format!("cannot start a thread: {error}")))?;
        Ok(Self { shared, stopping })
    }

    /// Reads the records of a range of offsets. Deleted and lost records do not fail it: [`RecordBlock::missing`] contains their
    /// offsets, which the caller must check.
    ///
    /// # Errors
    /// Returns an error if the brokers do not answer within the budget or deny access, if the topic is not the expected one, or if
    /// records are corrupted or too large.
    pub async fn read(&self, request: ReadRequest) -> Result<RecordBlock, KafkaError> {
        let reader = self.shared.reader(&request.topic, request.partition);
        reader.read(&self.shared.connection, request).await
    }

    /// Waits until the leader of a partition answers a request.
    ///
    /// # Errors
    /// Returns an error if it does not answer within a few seconds, or rejects the request.
    pub async fn wait_for_leader(&self, topic: Arc<str>, partition: i32) -> Result<(), KafkaError> {
        let reader = self.shared.reader(&topic, partition);
        let request = || {
            let connection = Arc::clone(&self.shared.connection);
            tokio::task::spawn_blocking(move || {
                connection.watermarks(&topic, partition, LEADER_WAIT).map(drop)
            })
        };
        reader
            .leader_wait
            .join(|| async {
                request()
                    .await
                    .unwrap_or_else(|_| Err(KafkaError::retryable("the request stopped: try again")))
            })
            .await
    }

    /// How long an operation waits for brokers.
    pub fn budget(&self) -> Duration {
        self.shared.connection.budget
    }

    pub(crate) fn connection(&self) -> &Arc<Connection> {
        &self.shared.connection
    }

    pub(crate) fn unreachable_leaders(&self) -> &Arc<Mutex<UnreachableLeaders>> {
        &self.shared.unreachable_leaders
    }
}

impl Drop for KafkaClient {
    /// The thread of the client ends within the poll interval, and closes the connections then, which takes some time.
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

impl ClientShared {
    fn reader(&self, topic: &Arc<str>, partition: i32) -> Arc<PartitionReader> {
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        let reader = readers.entry((Arc::clone(topic), partition));
        Arc::clone(reader.or_insert_with(|| PartitionReader::new(&self.memory)))
    }

    fn all_readers(&self) -> Vec<Arc<PartitionReader>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Stops fetching idle partitions, and forgets the readers that are no longer needed.
    fn sweep(&self) {
        let idle: HashSet<*const PartitionReader> = self
            .all_readers()
            .into_iter()
            .filter(|reader| reader.stop_if_idle(IDLE_AFTER))
            .map(|reader| Arc::as_ptr(&reader))
            .collect();
        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        // A reader to which only the list refers cannot receive a read, because the list is locked.
        readers.retain(|_, reader| Arc::strong_count(reader) > 1 || !idle.contains(&Arc::as_ptr(reader)));
    }

    /// Serves callbacks, and stops fetching idle partitions.
    fn serve_events(&self, is_stopping: &AtomicBool) {
        let mut swept = Instant::now();
        while !is_stopping.load(Ordering::Relaxed) {
            // The queue contains no messages: each partition has a queue of its own. Errors were passed to the context.
            let _ = self.connection.client.poll(POLL_INTERVAL);
            if swept.elapsed() >= IDLE_AFTER / 2 {
                swept = Instant::now();
                self.sweep();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::listing::{RangeEnd, RangeRequest, RangeStart};
    use crate::memory::ClientLimits;

    /// Starts a server that answers the first bytes of each connection, and closes it.
    fn serve(answer: &'static [u8]) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound").to_string();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let Ok(mut connection) = connection else { return };
                let _ = connection.read(&mut [0; 512]);
                let _ = connection.write_all(answer);
            }
        });
        address
    }

    #[tokio::test]
    async fn a_server_that_is_not_a_broker_is_an_error_with_the_fix() {
        const TLS_ALERT: &[u8] = &[21, 3, 3, 0, 2, 2, 70];
        for answer in [&b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"[..], b"", TLS_ALERT] {
            let settings = ConnectionSettings::new(serve(answer), []);
            let limits =
                ClientLimits { budget_bytes: 1 << 20, block_bytes: 1 << 20, prefetch_bytes: 1 << 20 };
            let memory = ClientMemory::new(limits, Arc::default());
            let client = KafkaClient::new(&settings, true, None, Duration::from_secs(5), &memory)
                .expect("it connects when it is used");
            let request = RangeRequest {
                topics: vec!["events".to_owned()],
                start: RangeStart::Earliest,
                end: RangeEnd::Latest,
                skips_gaps: false,
            };
            let error = client.list(request).await.expect_err("the server is not a broker");
            assert!(error.is_retryable, "{error}");
            let fix = "check the URL, the brokers and the network, and whether the brokers need TLS";
            assert!(error.message.ends_with(fix), "{error}");
        }
    }
}
