//! The ids of topics, which tell a topic from another one that was created with the same name after its deletion.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rdkafka::error::RDKafkaErrorCode as Code;

use crate::connection::{Connection, pause};
use crate::error::KafkaError;
use crate::native::admin::{TopicDescription, describe_topics};

/// How long an id that was checked counts as valid. The records of a new topic are detected after at most this time.
const MAX_AGE: Duration = Duration::from_secs(1);
/// How long a topic that existed may be unknown. A broker that restarts does not know the topics at first.
const UNKNOWN_GRACE: Duration = Duration::from_secs(5);
/// How long an id counts as valid while another thread checks ids, so that many partitions do not send equal requests.
const MAX_AGE_WHILE_CHECKING: Duration = Duration::from_secs(3);
/// Time limit for one description.
const TIMEOUT: Duration = Duration::from_secs(10);

impl Connection {
    /// Checks the id of a topic from which records were read. While one thread requests the ids, the others use the last ones. Waits
    /// for brokers that do not answer for at most `budget`.
    pub(crate) fn check_topic_id(
        &self,
        topic: &str,
        expected: &str,
        budget: Duration,
    ) -> Result<(), KafkaError> {
        let is_checked = |max_age: Duration| {
            let checked = self.checked_ids.lock().unwrap_or_else(PoisonError::into_inner);
            checked.get(topic).is_some_and(|(id, at)| id == expected && at.elapsed() < max_age)
        };
        if is_checked(MAX_AGE) {
            return Ok(());
        }
        match self.id_check.try_lock() {
            Ok(_alone) => self.check_topic_id_now(topic, expected, budget),
            Err(_) if is_checked(MAX_AGE_WHILE_CHECKING) => Ok(()),
            Err(_) => self.check_topic_id_now(topic, expected, budget),
        }
    }

    /// Requests the id of a topic and checks it. Waits for brokers that do not answer for at most `budget`.
    pub(crate) fn check_topic_id_now(
        &self,
        topic: &str,
        expected: &str,
        budget: Duration,
    ) -> Result<(), KafkaError> {
        let started = Instant::now();
        let description = loop {
            match self.describe_topic(topic, budget) {
                Err(error) if error.is_unknown_topic && started.elapsed() < UNKNOWN_GRACE => pause(),
                result => break result?,
            }
        };
        self.compare_topic_id(&description, expected)
    }

    /// Requests the id of a topic once and checks it, if the cluster answers.
    pub(crate) fn check_topic_id_if_reachable(&self, topic: &str, expected: &str) -> Result<(), KafkaError> {
        match self.describe_once(std::slice::from_ref(&topic.to_owned())) {
            Ok(described) => described.iter().try_for_each(|found| self.compare_topic_id(found, expected)),
            Err(error) if error.is_retryable || error.is_unknown_topic => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn compare_topic_id(&self, found: &TopicDescription, expected: &str) -> Result<(), KafkaError> {
        if found.id != expected {
            return Err(KafkaError::permanent(format!(
                "the topic was deleted and created again while the job ran (its id was {expected} and is {} now): open a new job",
                found.id
            )));
        }
        let mut checked = self.checked_ids.lock().unwrap_or_else(PoisonError::into_inner);
        checked.insert(found.name.clone(), (found.id.clone(), Instant::now()));
        Ok(())
    }

    /// Describes one topic, which must exist.
    fn describe_topic(&self, topic: &str, budget: Duration) -> Result<TopicDescription, KafkaError> {
        let described = self.describe(std::slice::from_ref(&topic.to_owned()), budget)?;
        described
            .into_iter()
            .next()
            .ok_or_else(|| KafkaError::retryable("the cluster did not describe the topic: try again"))
    }

    /// Describes topics, which must exist. Repeats the request until it succeeds, fails permanently, or the budget is exhausted.
    pub(crate) fn describe(
        &self,
        topics: &[String],
        budget: Duration,
    ) -> Result<Vec<TopicDescription>, KafkaError> {
        let started = Instant::now();
        loop {
            let described = self.describe_once(topics);
            match described {
                Err(error) if error.is_retryable && started.elapsed() < budget => {}
                result => return result,
            }
            pause();
        }
    }

    fn describe_once(&self, topics: &[String]) -> Result<Vec<TopicDescription>, KafkaError> {
        let timeout = TIMEOUT.min(self.budget);
        let is_rejected = || self.context().authentication_error().is_some();
        let described = describe_topics(&self.client, topics, timeout, &is_rejected)
            .map_err(|(code, text)| self.failure(code, &text))?;
        for topic in &described {
            if let Some((code, text)) = &topic.error {
                return Err(match code {
                    Code::UnknownTopicOrPartition | Code::UnknownTopic => KafkaError::unknown_topic(format!(
                        "the topic `{}` does not exist: create it, or correct `topics`",
                        topic.name
                    )),
                    Code::TopicAuthorizationFailed => KafkaError::permanent(format!(
                        "the brokers deny access to the topic `{}`: grant DESCRIBE and READ on it to the user of `credentials`",
                        topic.name
                    )),
                    code => self.failure(*code, text),
                });
            }
        }
        self.context().on_success();
        Ok(described)
    }
}
