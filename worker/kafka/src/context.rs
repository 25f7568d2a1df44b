//! The callbacks of a client: errors of the connection, log lines and OAuth tokens.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rdkafka::client::OAuthToken;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError as ClientError, RDKafkaErrorCode};
use rdkafka::{ClientConfig, ClientContext};

use crate::error::KafkaError;
use crate::settings::ConnectionSettings;

/// How long an error of the connection explains why the cluster does not answer. librdkafka reports equal errors of a broker every 30 s.
const ERROR_MAX_AGE: Duration = Duration::from_secs(60);
/// How long a client may fail to authenticate before its reads fail. A broker that restarts may refuse correct passwords.
pub(crate) const AUTHENTICATION_GRACE: Duration = Duration::from_secs(5);

/// Requests OAuth tokens. Called on a thread of the client, which it may block.
pub trait TokenSource: Send + Sync {
    /// Returns a new token.
    ///
    /// # Errors
    /// Returns a message without secrets.
    fn token(&self) -> Result<AccessToken, String>;
}

/// An OAuth token.
#[derive(Clone)]
pub struct AccessToken {
    /// The token.
    pub token: String,
    /// When the token expires.
    pub expires_in: Duration,
}

/// Receives the callbacks of a client.
pub(crate) struct Context {
    settings: ConnectionSettings,
    config: ClientConfig,
    tokens: Option<Arc<dyn TokenSource>>,
    state: Mutex<ConnectionState>,
}

#[derive(Default)]
struct ConnectionState {
    last_error: Option<(Instant, String)>,
    /// The first error of authentication or TLS since the last success, and its text.
    authentication: Option<(Instant, String)>,
    rejected_response: Option<RejectedResponse>,
}

/// A response that was larger than the limit. It may contain records of any partition that the client fetches from the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RejectedResponse {
    pub(crate) at: Instant,
    pub(crate) bytes: u64,
}

impl Context {
    pub(crate) fn new(
        settings: ConnectionSettings,
        config: ClientConfig,
        tokens: Option<Arc<dyn TokenSource>>,
    ) -> Self {
        Self { settings, config, tokens, state: Mutex::default() }
    }

    /// Returns the configuration and the context of another client of the same cluster.
    pub(crate) fn for_another_client(&self) -> (ClientConfig, Self) {
        let context = Self::new(self.settings.clone(), self.config.clone(), self.tokens.clone());
        (self.config.clone(), context)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ConnectionState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes secrets from a text of librdkafka, and its line breaks.
    pub(crate) fn clean(&self, text: &str) -> String {
        self.settings.without_values(text).replace(['\n', '\r'], " ")
    }

    /// Records that the cluster has answered, so that earlier errors do not matter.
    pub(crate) fn on_success(&self) {
        let mut state = self.lock();
        if state.authentication.is_some() || state.last_error.is_some() {
            let rejected_response = state.rejected_response;
            *state = ConnectionState { rejected_response, ..ConnectionState::default() };
        }
    }

    /// Returns the last response that was larger than the limit.
    pub(crate) fn rejected_response(&self) -> Option<RejectedResponse> {
        self.lock().rejected_response.filter(|rejected| rejected.at.elapsed() < ERROR_MAX_AGE)
    }

    /// Returns the error of a client that cannot authenticate, once it had time to succeed.
    pub(crate) fn authentication_error(&self) -> Option<KafkaError> {
        let state = self.lock();
        let (since, reason) = state.authentication.as_ref()?;
        (since.elapsed() >= AUTHENTICATION_GRACE).then(|| {
            KafkaError::permanent(format!(
                "the brokers reject the connection ({reason}): check `credentials` of the source"
            ))
        })
    }

    /// Describes the last error of the connection, to explain why an operation has failed.
    pub(crate) fn reason(&self) -> Option<String> {
        let state = self.lock();
        let (_, reason) = state.last_error.as_ref().filter(|(at, _)| at.elapsed() < ERROR_MAX_AGE)?;
        Some(reason.clone())
    }
}

impl ClientContext for Context {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message = %self.clean(message), "librdkafka");
    }

    fn error(&self, error: ClientError, reason: &str) {
        use RDKafkaErrorCode::{Authentication, SSL, SaslAuthenticationFailed};
        let reason = self.clean(reason);
        tracing::debug!(%error, reason, "error of a Kafka connection");
        let mut state = self.lock();
        if let Some(bytes) = rejected_size(&reason) {
            state.rejected_response = Some(RejectedResponse { at: Instant::now(), bytes });
        }
        let code = error.rdkafka_error_code();
        // A broker that rejects the certificate of the client closes the connection with an alert.
        let is_authentication = matches!(code, Some(Authentication | SaslAuthenticationFailed | SSL))
            || reason.contains("SSL alert number");
        if is_authentication && state.authentication.is_none() {
            state.authentication = Some((Instant::now(), reason.clone()));
        }
        // "All brokers are down" follows the error that explains it.
        let explains = !matches!(error.rdkafka_error_code(), Some(RDKafkaErrorCode::AllBrokersDown));
        if explains || state.last_error.is_none() {
            state.last_error = Some((Instant::now(), reason));
        }
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn Error>> {
        let tokens = self.tokens.as_ref().ok_or("the credentials contain no OAuth token endpoint")?;
        let token = tokens.token().map_err(|message| self.clean(&message))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let lifetime_ms = i64::try_from((now + token.expires_in).as_millis())?;
        Ok(OAuthToken { token: token.token, principal_name: "feedline".to_owned(), lifetime_ms })
    }
}

impl ConsumerContext for Context {}

/// The size of a response in the text of librdkafka that rejects it.
fn rejected_size(reason: &str) -> Option<u64> {
    const TEXTS: [&str; 2] = ["Invalid frame size ", "Invalid response size "];
    let rest = TEXTS.iter().find_map(|text| reason.split_once(text)).map(|(_, rest)| rest)?;
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_beyond_the_limit_are_recognized() {
        assert_eq!(rejected_size("Receive failed: Invalid frame size 73400389"), Some(73_400_389));
        assert_eq!(rejected_size("Invalid response size 9 (0..8): increase"), Some(9));
        assert_eq!(rejected_size("Invalid frame size -1"), None);
        assert_eq!(rejected_size("Connection refused"), None);
    }

    #[test]
    fn all_reads_learn_of_a_rejected_response() {
        let context = Context::new(ConnectionSettings::new("a:1", []), ClientConfig::new(), None);
        assert_eq!(context.rejected_response(), None);
        let text = "a:1/0: Receive failed: Invalid frame size 73400389";
        context.error(ClientError::Global(RDKafkaErrorCode::BadMessage), text);
        let first = context.rejected_response();
        assert_eq!(first.map(|rejected| rejected.bytes), Some(73_400_389));
        context.on_success();
        assert_eq!(context.rejected_response(), first, "the records of another partition have arrived");
    }
}
