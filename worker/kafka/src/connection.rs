//! The connection to a cluster: requests for offsets, and the explanation of their errors.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rdkafka::consumer::Consumer;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode as Code};

use crate::context::Context;
use crate::error::KafkaError;
use crate::native::Client;

/// Time limit for one request for metadata or offsets.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// Waits between two attempts, in a thread that only waits for brokers.
#[expect(clippy::disallowed_methods, reason = "the budget of an operation limits the number of attempts")]
pub(crate) fn pause() {
    std::thread::sleep(RETRY_PAUSE);
}

/// The connection to a cluster.
pub(crate) struct Connection {
    pub(crate) client: Arc<Client>,
    /// How long an operation waits for brokers.
    pub(crate) budget: Duration,
    /// The ids of topics, and when they were checked.
    pub(crate) checked_ids: Mutex<HashMap<String, (String, Instant)>>,
    /// Held while a thread requests the ids of topics.
    pub(crate) id_check: Mutex<()>,
    /// Held while a thread looks for the partition of a response that was too large.
    pub(crate) probing: Mutex<()>,
}

impl Connection {
    pub(crate) fn new(client: &Arc<Client>, budget: Duration) -> Self {
        let (checked_ids, id_check, probing) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { client: Arc::clone(client), budget, checked_ids, id_check, probing }
    }

    pub(crate) fn context(&self) -> &Context {
        self.client.client().context()
    }

    /// Returns the first offset and the end of a partition. The end is the last stable offset if the client reads only committed
    /// records. Repeats the request for at most `budget`.
    pub(crate) fn watermarks(
        &self,
        topic: &str,
        partition: i32,
        budget: Duration,
    ) -> Result<(i64, i64), KafkaError> {
        let timeout = REQUEST_TIMEOUT.min(budget);
        self.retried(budget, || self.client.fetch_watermarks(topic, partition, timeout))
    }

    /// Repeats a request until it succeeds, fails permanently, or the budget is exhausted.
    pub(crate) fn retried<T>(
        &self,
        budget: Duration,
        mut request: impl FnMut() -> Result<T, ClientError>,
    ) -> Result<T, KafkaError> {
        let started = Instant::now();
        loop {
            let error = match request() {
                Ok(value) => {
                    self.context().on_success();
                    return Ok(value);
                }
                Err(error) => error,
            };
            let code = error.rdkafka_error_code().unwrap_or(Code::Fail);
            let failure = self.failure(code, &error.to_string());
            if !failure.is_retryable || started.elapsed() >= budget {
                return Err(failure);
            }
            pause();
        }
    }

    /// Explains why a request to the cluster failed.
    pub(crate) fn failure(&self, code: Code, text: &str) -> KafkaError {
        if let Some(error) = self.context().authentication_error() {
            return error;
        }
        let text = self.context().clean(text);
        match code {
            Code::TopicAuthorizationFailed | Code::ClusterAuthorizationFailed => {
                KafkaError::permanent(format!(
                    "access denied ({text}): grant DESCRIBE and READ on the topics to the user of `credentials`"
                ))
            }
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownPartition => {
                KafkaError::unknown_topic(format!(
                    "the topic or partition does not exist ({text}): check `topics`"
                ))
            }
            _ => {
                let reason = self.context().reason().unwrap_or(text);
                KafkaError::retryable(format!(
                    "the cluster does not answer ({reason}): check the URL, the brokers and the network, and whether the brokers need TLS"
                ))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::config::FromClientConfigAndContext;

    use super::*;
    use crate::settings::ConnectionSettings;

    #[test]
    fn the_code_of_an_error_tells_whether_a_topic_is_unknown() {
        let settings = ConnectionSettings::new("127.0.0.1:1", []);
        let config = settings.connection_config().expect("the options are valid");
        let context = Context::new(settings, config.clone(), None);
        let client = Client::from_config_and_context(&config, context).expect("it connects when it is used");
        let connection = Connection::new(&Arc::new(client), Duration::ZERO);
        let unknown = connection.failure(Code::UnknownTopicOrPartition, "no such topic");
        assert!(unknown.is_unknown_topic && !unknown.is_retryable, "{unknown}");
        let other = connection.failure(Code::OperationTimedOut, "the host does not exist");
        assert!(!other.is_unknown_topic && other.is_retryable, "{other}");
    }
}
